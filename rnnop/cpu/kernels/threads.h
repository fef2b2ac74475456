/* A pool of threads that run one function together, and the barrier between its steps. */
#ifndef RNNOP_THREADS_H
#define RNNOP_THREADS_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    int threads;
    atomic_int arrived;
    atomic_int round;
} Barrier;

typedef struct {
    int index;   /* 0 .. threads - 1 */
    int threads; /* into how many parts the work is cut */
    Barrier *barrier;
} Thread;

typedef void (*Body)(void *argument, Thread thread);

/* Run body for every index of `threads` parts that never wait for each other, and return when all
 * are done. The caller is one of those who take them; a thread that comes late finds its part taken. */
void rnnop_run_parts(Body body, void *argument, int threads);

/* Run body on up to `threads` threads at the same time, so that they may meet at the barrier. Those
 * that are not there at once are left out: body must do all the work whatever thread.threads says. */
void rnnop_run_together(Body body, void *argument, int threads);

/* Wait until every thread of the run is here. Spins for a while, then yields its core. */
void rnnop_barrier(Thread thread);

#endif
