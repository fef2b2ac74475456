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
    int threads; /* how many run */
    Barrier *barrier;
} Thread;

typedef void (*Body)(void *argument, Thread thread);

/* Run body on `threads` threads, the caller being number 0, and wait for all. When the pool is
 * taken by another caller, or its threads cannot be made, body runs on fewer: it must do all the
 * work whatever thread.threads says. */
void rnnop_run_on_threads(Body body, void *argument, int threads);

/* Wait until every thread of the run is here. Spins for a while, then yields its core. */
void rnnop_barrier(Thread thread);

#endif
