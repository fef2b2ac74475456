/* Workspace and reserve space: how large they must be and what lies where.
 *
 * Both hold doubles. The sizes have a slack that depends on everything, so that nobody can guess
 * them or reuse those of another problem, and the workspace asked for changes with each forward
 * pass of the handle, so that it must be asked again before the backward pass. */
#include "double.h"

#include <string.h>

typedef struct {
    uint64_t magic, stage, fingerprint, unused[5];
} Header;

static const uint64_t MAGIC = 0x5253525645444e43u;

static uint64_t fingerprint(const Rnn *rnn, const Data *x) {
    const int64_t parts[] = {rnn->algo, rnn->mode, rnn->bias, rnn->bidirectional, rnn->input,
                             rnn->type, rnn->math, rnn->I,    rnn->H,             rnn->P,
                             rnn->L,    rnn->aux,  x->layout, x->T,               x->N,
                             rnn->dropout != 0};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        hash = mix(hash ^ (uint64_t)parts[i]);
    for (int n = 0; n < x->N; n++) hash = mix(hash ^ (uint64_t)x->length[n]);
    return hash;
}

int widest(const Rnn *rnn) {
    int out = rnn->P * directions(rnn);
    return rnn->I > out ? rnn->I : out;
}

/* Slots of width H in a step's gates: GRU keeps R_h h + bR_h beside its three. */
static int gate_slots(const Rnn *rnn) {
    return rnn->mode == LSTM || rnn->mode == GRU ? 4 : 1;
}

/* Hands out parts of a space; with a NULL base it only measures. */
typedef struct {
    double *base;
    size_t used;
} Arena;

static double *take(Arena *arena, size_t count) {
    double *part = arena->base == NULL ? NULL : arena->base + arena->used;
    arena->used += count;
    return part;
}

static Trace take_trace(Arena *arena, const Rnn *rnn, const Data *x) {
    size_t steps = (size_t)rnn->L * (size_t)directions(rnn) * (size_t)x->T * (size_t)x->N;
    size_t H = (size_t)rnn->H, P = (size_t)rnn->P;
    Trace trace = {.rnn = rnn, .T = x->T, .N = x->N};
    trace.gates = take(arena, steps * H * (size_t)gate_slots(rnn));
    trace.cell = take(arena, rnn->mode == LSTM ? steps * H : 0);
    trace.hidden = take(arena, projected(rnn) ? steps * H : 0);
    trace.out = take(arena, steps * P);
    trace.dout = take(arena, projected(rnn) ? steps * P : 0);
    trace.mask = take(arena, rnn->dropout != 0 && rnn->L > 1
                                 ? steps * P * (size_t)directions(rnn)
                                 : 0);
    return trace;
}

static double *at(double *base, size_t step, int width) {
    return base == NULL ? NULL : base + step * (size_t)width;
}

Step step_of(const Trace *trace, int pseudo, int t, int n) {
    const Rnn *rnn = trace->rnn;
    size_t step = ((size_t)pseudo * (size_t)trace->T + (size_t)t) * (size_t)trace->N + (size_t)n;
    return (Step){
        .gates = at(trace->gates, step, rnn->H * gate_slots(rnn)),
        .cell = at(trace->cell, step, rnn->H),
        .hidden = at(trace->hidden, step, rnn->H),
        .out = at(trace->out, step, rnn->P),
        .dout = at(trace->dout, step, rnn->P),
        .mask = at(trace->mask, step, rnn->P * directions(rnn)),
    };
}

static Work take_work(Arena *arena, const Rnn *rnn, const Data *x, int fwd_mode) {
    size_t rows = (size_t)x->T * (size_t)x->N, wide = (size_t)widest(rnn);
    Work work;
    work.weights = take(arena, (size_t)weight_count(rnn));
    work.above = take(arena, rows * wide);
    work.below = take(arena, rows * wide);
    work.vectors = take(arena, 8 * (wide + (size_t)rnn->H));
    work.trace = (Trace){0};
    if (fwd_mode == INFERENCE) work.trace = take_trace(arena, rnn, x);
    return work;
}

static size_t slack(uint64_t seed) { return 1 + mix(seed) % 4096; }

size_t work_bytes(const Handle *handle, const Rnn *rnn, const Data *x, int fwd_mode) {
    Arena arena = {0};
    take_work(&arena, rnn, x, fwd_mode);
    if (rnn->aux & PADDED_IO) take(&arena, (size_t)x->T * (size_t)x->N * (size_t)widest(rnn));
    return arena.used * sizeof(double) + slack(fingerprint(rnn, x) + handle->forwards);
}

size_t reserve_bytes(const Rnn *rnn, const Data *x) {
    Arena arena = {0};
    take_trace(&arena, rnn, x);
    return sizeof(Header) + arena.used * sizeof(double) + slack(~fingerprint(rnn, x));
}

/* The old contents of a workspace mean nothing, so they are lost first. */
Work open_work(const Rnn *rnn, const Data *x, int fwd_mode, void *space, size_t size) {
    DIE_IF((uintptr_t)space % sizeof(double) != 0);
    memset(space, 0xff, size);
    Arena arena = {.base = space};
    return take_work(&arena, rnn, x, fwd_mode);
}

Trace open_reserve(const Rnn *rnn, const Data *x, void *space) {
    DIE_IF((uintptr_t)space % sizeof(double) != 0);
    Arena arena = {.base = (double *)((char *)space + sizeof(Header))};
    return take_trace(&arena, rnn, x);
}

void reserve_mark(const Rnn *rnn, const Data *x, void *space, Stage stage) {
    Header header = {.magic = MAGIC, .stage = stage, .fingerprint = fingerprint(rnn, x)};
    memcpy(space, &header, sizeof header);
}

bool reserve_is(const Rnn *rnn, const Data *x, const void *space, Stage stage) {
    Header header;
    memcpy(&header, space, sizeof header);
    return header.magic == MAGIC && header.stage == stage &&
           header.fingerprint == fingerprint(rnn, x);
}

EXPORT Status cudnnGetRNNTempSpaceSizes(Ref handle, Ref rnnDesc, int fwdMode, Ref xDesc,
                                        size_t *workSpaceSize, size_t *reserveSpaceSize) {
    BEGIN();
    BAD_IF(handle == 0 || rnnDesc == 0 || xDesc == 0);
    BAD_IF(workSpaceSize == NULL || reserveSpaceSize == NULL);
    BAD_IF(fwdMode != INFERENCE && fwdMode != TRAINING);
    const Handle *of = GET(HANDLE, handle);
    const Rnn *rnn = GET(RNN, rnnDesc);
    const Data *x = GET(DATA, xDesc);
    FAIL_IF(INTERNAL_ERROR, !rnn->set);
    BAD_IF(x->type != rnn->type);
    BAD_IF(x->V != rnn->I);
    *workSpaceSize = work_bytes(of, rnn, x, fwdMode);
    *reserveSpaceSize = fwdMode == TRAINING ? reserve_bytes(rnn, x) : 0;
    return SUCCESS;
}
