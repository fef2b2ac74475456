/* The pool of the engine under many callers: each run says whether all of it was done, once. */
#include "threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 8, STEPS = 5, CALLERS = 4 };

typedef struct {
    int together, threads;
    long by_thread[MOST]; /* each thread writes its own */
} Job;

static void fail(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

static void body(void *argument, Thread thread)
{
    Job *job = argument;
    if (thread.index == 0) job->threads = thread.threads;
    if (!job->together) {
        job->by_thread[thread.index]++;
        return;
    }
    for (int step = 0; step < STEPS; step++) {
        job->by_thread[thread.index] = step + 1;
        rnnop_barrier(thread);
        for (int i = 0; i < thread.threads; i++)
            if (job->by_thread[i] != step + 1) fail("a thread passed a barrier before others came");
        rnnop_barrier(thread);
    }
}

static void *caller(void *argument)
{
    unsigned seed = (unsigned)(size_t)argument;
    for (int runs = RUNS; runs > 0; runs--) {
        int threads = 1 + rand_r(&seed) % MOST;
        Job job = {.together = rand_r(&seed) % 2};
        (job.together ? rnnop_run_together : rnnop_run_parts)(body, &job, threads);
        if (job.threads < 1 || job.threads > threads) fail("more threads than asked for");
        for (int i = 0; i < MOST; i++)
            if (job.by_thread[i] != (i >= job.threads ? 0 : job.together ? STEPS : 1))
                fail("a part was not done once");
        if (rand_r(&seed) % 50 == 0) { /* let the workers fall asleep */
            struct timespec pause = {0, rand_r(&seed) % 400000};
            nanosleep(&pause, 0);
        }
    }
    return 0;
}

int main(void)
{
    pthread_t threads[CALLERS];
    for (size_t i = 0; i < CALLERS; i++) pthread_create(threads + i, 0, caller, (void *)(i + 1));
    for (size_t i = 0; i < CALLERS; i++) pthread_join(threads[i], 0);
    printf("done\n");
    return 0;
}
