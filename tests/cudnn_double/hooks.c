/* What tests may ask the double about the calls it has seen: functions named cudnn_double_*. */
#include "double.h"

#include <pthread.h>
#include <string.h>

enum { MAX_FUNCTIONS = 64 };

typedef struct {
    const char *name;
    size_t calls;
} Counter;

/* Of the latest pass, whether it then succeeded or not. */
typedef struct {
    uintptr_t stream;
    Rnn rnn;
    int layout, T, N;
} Latest;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Counter counters[MAX_FUNCTIONS];
static Latest latest;
static size_t peak_workspace, peak_reserve, foreign_threads;

static Counter *counter_of(const char *name) {
    for (int i = 0; i < MAX_FUNCTIONS; i++) {
        if (counters[i].name == NULL) counters[i].name = name;
        if (strcmp(counters[i].name, name) == 0) return &counters[i];
    }
    die(__func__, "too many functions");
}

void note_call(const char *function) {
    pthread_mutex_lock(&lock);
    counter_of(function)->calls++;
    pthread_mutex_unlock(&lock);
}

void note_thread(const Handle *handle) {
    if (handle->thread == (unsigned long)pthread_self()) return;
    pthread_mutex_lock(&lock);
    foreign_threads++;
    pthread_mutex_unlock(&lock);
}

void note_pass(const Handle *handle, const Rnn *rnn, const Data *x, size_t work, size_t reserve) {
    note_thread(handle);
    pthread_mutex_lock(&lock);
    latest = (Latest){handle->stream, *rnn, x->layout, x->T, x->N};
    if (work > peak_workspace) peak_workspace = work;
    if (reserve > peak_reserve) peak_reserve = reserve;
    pthread_mutex_unlock(&lock);
}

/* Live objects: "handle", "rnn", "data", "tensor", "dropout". */
EXPORT size_t cudnn_double_live(const char *kind) {
    static const char *const KIND_NAMES[KINDS] = {"handle", "rnn", "data", "tensor", "dropout"};
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kind, KIND_NAMES[i]) == 0) return object_count((Kind)i);
    die(__func__, "no such kind");
}

/* Calls of a function of cuDNN, failed ones included. */
EXPORT size_t cudnn_double_calls(const char *function) {
    size_t calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_FUNCTIONS && counters[i].name != NULL; i++)
        if (strcmp(counters[i].name, function) == 0) calls = counters[i].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

/* A setting of the latest pass by name. */
EXPORT long cudnn_double_last(const char *what) {
    pthread_mutex_lock(&lock);
    const Latest seen = latest;
    pthread_mutex_unlock(&lock);
    const struct {
        const char *name;
        long value;
    } values[] = {
        {"algo", seen.rnn.algo},          {"mode", seen.rnn.mode},
        {"bias", seen.rnn.bias},          {"bidirectional", seen.rnn.bidirectional},
        {"input", seen.rnn.input},        {"type", seen.rnn.type},
        {"precision", seen.rnn.precision}, {"math", seen.rnn.math},
        {"I", seen.rnn.I},                {"H", seen.rnn.H},
        {"P", seen.rnn.P},                {"L", seen.rnn.L},
        {"aux", (long)seen.rnn.aux},      {"clip", seen.rnn.clip},
        {"clip_nan", seen.rnn.clip_nan},  {"layout", seen.layout},
        {"T", seen.T},                    {"N", seen.N},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(what, values[i].name) == 0) return values[i].value;
    die(__func__, "no such setting");
}

/* The stream of the latest pass's handle. */
EXPORT uintptr_t cudnn_double_last_stream(void) {
    pthread_mutex_lock(&lock);
    uintptr_t stream = latest.stream;
    pthread_mutex_unlock(&lock);
    return stream;
}

/* Calls that used a handle from a thread other than the one that created it. */
EXPORT size_t cudnn_double_foreign_threads(void) {
    pthread_mutex_lock(&lock);
    size_t count = foreign_threads;
    pthread_mutex_unlock(&lock);
    return count;
}

/* The largest workspace and reserve space that a pass was given, in bytes. */
EXPORT size_t cudnn_double_peak_workspace(void) { return peak_workspace; }
EXPORT size_t cudnn_double_peak_reserve(void) { return peak_reserve; }

/* Forgets the counts, peaks and settings; live objects stay. */
EXPORT void cudnn_double_reset(void) {
    pthread_mutex_lock(&lock);
    memset(counters, 0, sizeof counters);
    memset(&latest, 0, sizeof latest);
    peak_workspace = peak_reserve = foreign_threads = 0;
    pthread_mutex_unlock(&lock);
}
