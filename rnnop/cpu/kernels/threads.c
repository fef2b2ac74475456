/* The pool: made at first use, kept for the life of the process, made anew in a forked child.
 *
 * A worker that has nothing to do spins for a short while, since the next call is often near, and
 * then sleeps. A call that finds the pool taken by another Python thread runs alone: the results
 * do not depend on the number of threads, so it only takes longer.
 */
#include "threads.h"

#include <pthread.h>
#include <sched.h>

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() ((void)0)
#endif

enum { MAX_THREADS = 256, SPINS = 4000 };

static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER; /* held by the caller that has the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* guards sleeping and `job` */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int workers;

static struct {
    Body body;
    void *argument;
    Barrier barrier;
    atomic_int number; /* changes with every run */
    atomic_int running;
} job;

static void run_part(int index)
{
    job.body(job.argument, (Thread){index, job.barrier.threads, &job.barrier});
}

static void *work(void *argument)
{
    int index = (int)((intptr_t)argument % MAX_THREADS);
    int seen = (int)((intptr_t)argument / MAX_THREADS);
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load(&job.number) == seen; i++) PAUSE();
        pthread_mutex_lock(&lock);
        while (atomic_load(&job.number) == seen) pthread_cond_wait(&wake, &lock);
        seen = atomic_load(&job.number);
        int mine = index < job.barrier.threads;
        pthread_mutex_unlock(&lock);
        if (mine) {
            run_part(index);
            atomic_fetch_sub(&job.running, 1);
        }
    }
    return 0;
}

static void forget_workers(void)
{
    /* In a forked child the threads are gone, and a lock may have been held by one of them. */
    pthread_mutex_init(&taken, 0);
    pthread_mutex_init(&lock, 0);
    pthread_cond_init(&wake, 0);
    workers = 0;
    atomic_store(&job.number, 0);
}

static void make_workers(int wanted)
{
    static int registered;
    if (!registered) {
        registered = 1;
        pthread_atfork(0, 0, forget_workers);
    }
    while (workers < wanted) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        /* A worker waits for the first run after its birth. */
        intptr_t start = (intptr_t)atomic_load(&job.number) * MAX_THREADS + workers + 1;
        int failed = pthread_create(&thread, &attributes, work, (void *)start);
        pthread_attr_destroy(&attributes);
        if (failed) return;
        workers++;
    }
}

void rnnop_run_on_threads(Body body, void *argument, int threads)
{
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > 1 && pthread_mutex_trylock(&taken) == 0) {
        make_workers(threads - 1);
        if (threads > workers + 1) threads = workers + 1;
        pthread_mutex_lock(&lock);
        job.body = body;
        job.argument = argument;
        job.barrier.threads = threads;
        atomic_store(&job.barrier.arrived, 0);
        atomic_store(&job.running, threads - 1);
        atomic_store(&job.number, (atomic_load(&job.number) + 1) & 0xffffff);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
        run_part(0);
        for (int i = 0; atomic_load(&job.running) > 0; i++) {
            if (i < SPINS) PAUSE();
            else sched_yield();
        }
        pthread_mutex_unlock(&taken);
    } else {
        Barrier alone = {.threads = 1};
        body(argument, (Thread){0, 1, &alone});
    }
}

void rnnop_barrier(Thread thread)
{
    Barrier *barrier = thread.barrier;
    if (barrier->threads == 1) return;
    int round = atomic_load(&barrier->round);
    if (atomic_fetch_add(&barrier->arrived, 1) == barrier->threads - 1) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->round, 1);
        return;
    }
    for (int i = 0; atomic_load(&barrier->round) == round; i++) {
        if (i < SPINS) PAUSE();
        else sched_yield();
    }
}
