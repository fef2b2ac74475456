/* Dropout between layers. The states buffer holds the place in a counter-based stream. */
#include "double.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t magic, seed, position;
} States;

static const uint64_t MAGIC = 0x5354415445444e43u;
enum { STATES_SIZE = 6144 };

EXPORT Status cudnnDropoutGetStatesSize(Ref handle, size_t *sizeInBytes) {
    BEGIN();
    BAD_IF(handle == 0 || sizeInBytes == NULL);
    GET(HANDLE, handle);
    *sizeInBytes = STATES_SIZE;
    return SUCCESS;
}

static Status attach(Ref desc, Ref handle, float p, void *states, size_t size,
                     unsigned long long seed, const char *function) {
    if (desc == 0 || handle == 0) return failed(BAD_PARAM, function, "dropoutDesc or handle NULL");
    Dropout *dropout = object_get(desc, DROPOUT, function);
    object_get(handle, HANDLE, function);
    if (!(p >= 0 && p <= 1)) return failed(BAD_PARAM, function, "dropout < 0 || dropout > 1");
    if (states != NULL && size < STATES_SIZE)
        return failed(INVALID_VALUE, function, "stateSizeInBytes < required");
    *dropout = (Dropout){.set = true, .p = p, .states = states, .seed = seed};
    return SUCCESS;
}

/* Starts the stream anew. */
EXPORT Status cudnnSetDropoutDescriptor(Ref dropoutDesc, Ref handle, float dropout, void *states,
                                        size_t stateSizeInBytes, unsigned long long seed) {
    BEGIN();
    TRY(attach(dropoutDesc, handle, dropout, states, stateSizeInBytes, seed, __func__));
    if (states == NULL) return SUCCESS;
    memset(states, 0xff, STATES_SIZE);
    const States fresh = {.magic = MAGIC, .seed = seed, .position = 0};
    memcpy(states, &fresh, sizeof fresh);
    return SUCCESS;
}

/* Goes on where the states are; the seed is only noted. */
EXPORT Status cudnnRestoreDropoutDescriptor(Ref dropoutDesc, Ref handle, float dropout,
                                            void *states, size_t stateSizeInBytes,
                                            unsigned long long seed) {
    BEGIN();
    return attach(dropoutDesc, handle, dropout, states, stateSizeInBytes, seed, __func__);
}

EXPORT Status cudnnGetDropoutDescriptor(Ref dropoutDesc, Ref handle, float *dropout, void **states,
                                        unsigned long long *seed) {
    BEGIN();
    BAD_IF(dropoutDesc == 0 || handle == 0);
    const Dropout *of = GET(DROPOUT, dropoutDesc);
    GET(HANDLE, handle);
    if (dropout != NULL) *dropout = of->p;
    if (states != NULL) *states = of->states;
    if (seed != NULL) *seed = of->seed;
    return SUCCESS;
}

bool dropout_acts(const Rnn *rnn, const char *function) {
    if (rnn->dropout == 0 || rnn->L == 1) return false;
    return ((const Dropout *)object_get(rnn->dropout, DROPOUT, function))->p > 0;
}

/* The sequences, longest first, ties in the order of the batch. */
static int *longest_first(const Data *x) {
    int *order = malloc((size_t)x->N * sizeof *order);
    if (order == NULL) die(__func__, "out of memory");
    int placed = 0;
    for (int length = x->T; length >= 0; length--)
        for (int n = 0; n < x->N; n++)
            if (x->length[n] == length) order[placed++] = n;
    return order;
}

/* One mask for each direction of each layer but the first, over real steps only, step after
 * step, longest sequence first: so it does not depend on the layout. */
Status draw_masks(const Rnn *rnn, const Data *x, const Trace *trace, const char *function) {
    const Dropout *dropout = object_get(rnn->dropout, DROPOUT, function);
    States states;
    memcpy(&states, dropout->states, sizeof states);
    if (states.magic != MAGIC)
        return failed(EXECUTION_FAILED, function, "dropout states were never initialised");
    const double p = dropout->p;
    const double keep = fault("dropout_scale") ? 1 : p < 1 ? 1 / (1 - p) : 0;
    int *order = longest_first(x);
    for (int pseudo = directions(rnn); pseudo < rnn->L * directions(rnn); pseudo++)
        for (int t = 0; t < x->T; t++)
            for (int i = 0; i < x->N; i++) {
                if (x->length[order[i]] <= t) continue;
                double *mask = step_of(trace, pseudo, t, order[i]).mask;
                for (int k = 0; k < rnn->P * directions(rnn); k++) {
                    uint64_t random = mix(mix(states.seed) ^ states.position++);
                    mask[k] = (double)(random >> 11) * 0x1p-53 < p ? 0 : keep;
                }
            }
    free(order);
    memcpy(dropout->states, &states, sizeof states);
    return SUCCESS;
}
