/* The pool: made at first use, kept for the life of the process, made anew in a forked child.
 *
 * A worker that has nothing to do spins for a short while, since the next call is often near, and
 * then sleeps. Nobody waits for one that the system does not let run, be it that another program has
 * its core: its part is taken by a thread that runs, or the others begin without it. Where threads
 * that meet at each step were held up, the next calls do without them for a while. The results do not
 * depend on the number of threads. A call that finds the pool taken by another Python thread runs
 * alone.
 */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() ((void)0)
#endif

enum { MAX_THREADS = 256, SPINS = 4000 };

/* In seconds: several times what it takes to wake a thread for an idle core; more than a thread that
 * runs takes from one barrier to the next; and how long a pause is at first and at most. */
#define ROLL_CALL 5e-5
#define HELD_UP 1e-3
#define SHORT_PAUSE 0.05
#define LONG_PAUSE 1.0

static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER; /* held by the caller that has the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* guards sleeping */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int workers;
static double pause_until, pause = SHORT_PAUSE; /* of runs together */

/* The run that is on. Its first word says all that decides who does what: the number of the run, how
 * many parts it has, and how many of them are taken. */
static struct {
    atomic_uint_fast64_t word;
    Body body;
    void *argument;
    int together;
    Barrier barrier;
    atomic_uint begun;  /* the number of the run whose threads may begin together */
    atomic_int running; /* parts that are not done */
    atomic_int held_up; /* a thread has waited too long for another */
} job;

static uint64_t word(uint32_t number, int parts, int next)
{
    return (uint64_t)number << 32 | (uint64_t)parts << 16 | (uint64_t)next;
}

static uint32_t number_of(uint64_t now) { return (uint32_t)(now >> 32); }
static int parts_of(uint64_t now) { return now >> 16 & 0xffff; }
static int next_of(uint64_t now) { return now & 0xffff; }

/* Take the next part of run `number`; -1 if none is left, or another run is on. */
static int take(uint32_t number)
{
    uint_fast64_t now = atomic_load(&job.word);
    while (number_of(now) == number && next_of(now) < parts_of(now))
        if (atomic_compare_exchange_weak(&job.word, &now, now + 1)) return next_of(now);
    return -1;
}

static void run_part(int index)
{
    job.body(job.argument, (Thread){index, job.barrier.threads, &job.barrier});
    atomic_fetch_sub(&job.running, 1);
}

static void wait_a_little(int *spins)
{
    if ((*spins)++ < SPINS) PAUSE();
    else sched_yield();
}

static void *work(void *argument)
{
    uint32_t seen = (uint32_t)(uintptr_t)argument;
    for (;;) {
        for (int i = 0; i < SPINS && number_of(atomic_load(&job.word)) == seen; i++) PAUSE();
        pthread_mutex_lock(&lock);
        while (number_of(atomic_load(&job.word)) == seen) pthread_cond_wait(&wake, &lock);
        pthread_mutex_unlock(&lock);
        seen = number_of(atomic_load(&job.word));
        for (int index; (index = take(seen)) >= 0;) {
            for (int spins = 0; job.together && atomic_load(&job.begun) != seen;)
                wait_a_little(&spins);
            run_part(index);
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
        void *seen = (void *)(uintptr_t)number_of(atomic_load(&job.word));
        int failed = pthread_create(&thread, &attributes, work, seen);
        pthread_attr_destroy(&attributes);
        if (failed) return;
        workers++;
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Wait until all threads are here, or it takes too long; close the run to the others, and return how
 * many there are. */
static int roll_call(uint32_t number, int threads)
{
    double end = seconds() + ROLL_CALL;
    while (next_of(atomic_load(&job.word)) < threads && seconds() < end)
        for (int i = 0; i < 16; i++) PAUSE();
    return next_of(atomic_exchange(&job.word, word(number, 0, 0)));
}

static void run(Body body, void *argument, int threads, int together)
{
    make_workers(threads - 1);
    if (threads > workers + 1) threads = workers + 1;
    uint32_t number = number_of(atomic_load(&job.word)) + 1;
    job.body = body;
    job.argument = argument;
    job.together = together;
    job.barrier.threads = threads;
    atomic_store(&job.barrier.arrived, 0);
    atomic_store(&job.running, threads);
    atomic_store(&job.held_up, 0);
    pthread_mutex_lock(&lock);
    atomic_store(&job.word, word(number, threads, 1));
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    if (together) {
        job.barrier.threads = roll_call(number, threads);
        atomic_fetch_sub(&job.running, threads - job.barrier.threads);
        atomic_store(&job.begun, number);
    }
    for (int index = 0; index >= 0; index = take(number)) run_part(index);
    for (int spins = 0; atomic_load(&job.running) > 0;) wait_a_little(&spins);
}

static int take_pool(int threads) { return threads > 1 && pthread_mutex_trylock(&taken) == 0; }

static int at_most(int threads) { return threads < MAX_THREADS ? threads : MAX_THREADS; }

static void run_alone(Body body, void *argument)
{
    Barrier alone = {.threads = 1};
    body(argument, (Thread){0, 1, &alone});
}

void rnnop_run_parts(Body body, void *argument, int threads)
{
    if (!take_pool(threads)) {
        run_alone(body, argument);
        return;
    }
    run(body, argument, at_most(threads), 0);
    pthread_mutex_unlock(&taken);
}

void rnnop_run_together(Body body, void *argument, int threads)
{
    if (!take_pool(threads)) {
        run_alone(body, argument);
        return;
    }
    if (seconds() < pause_until) {
        run_alone(body, argument);
    } else {
        run(body, argument, at_most(threads), 1);
        if (atomic_load(&job.held_up)) {
            pause_until = seconds() + pause;
            pause = pause < LONG_PAUSE / 2 ? 2 * pause : LONG_PAUSE;
        } else {
            pause = SHORT_PAUSE;
        }
    }
    pthread_mutex_unlock(&taken);
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
    int spins = 0;
    double late = 0;
    while (atomic_load(&barrier->round) == round) {
        wait_a_little(&spins);
        if (spins < SPINS) continue;
        if (late == 0) late = seconds() + HELD_UP;
        else if (seconds() > late) atomic_store(&job.held_up, 1);
    }
}
