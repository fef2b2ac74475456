/* What the three passes share: refusals, spaces, rows of states and of inputs. */
#include "double.h"

#include <string.h>
#include <unistd.h>

#define REFUSE(status, condition)                                             \
    do {                                                                      \
        if (condition) return failed(status, pass->function, #condition);     \
    } while (0)

static bool same_lengths(const Data *x, const Data *y) {
    return memcmp(x->length, y->length, (size_t)x->N * sizeof *x->length) == 0;
}

static bool lengths_vary(const Data *x) {
    for (int n = 0; n < x->N; n++)
        if (x->length[n] != x->T) return true;
    return false;
}

static Status check_data(const Pass *pass) {
    const Rnn *rnn = pass->rnn;
    const Data *x = pass->x_data, *y = pass->y_data;
    REFUSE(BAD_PARAM, y->V != rnn->P * directions(rnn));
    REFUSE(BAD_PARAM, x->V != rnn->I);
    REFUSE(BAD_PARAM, x->type != rnn->type);
    REFUSE(BAD_PARAM, x->type != y->type);
    REFUSE(BAD_PARAM, x->layout != y->layout);
    REFUSE(BAD_PARAM, x->T != y->T);
    REFUSE(BAD_PARAM, x->N != y->N);
    REFUSE(BAD_PARAM, !same_lengths(x, y));
    bool padded_io = rnn->aux & PADDED_IO;
    REFUSE(BAD_PARAM, x->layout != SEQ_MAJOR_PACKED && lengths_vary(x) && !padded_io);
    REFUSE(BAD_PARAM, x->layout == BATCH_MAJOR_UNPACKED && !padded_io);
    return SUCCESS;
}

static Status check_algorithm(const Pass *pass) {
    const Rnn *rnn = pass->rnn;
    const Data *x = pass->x_data;
    bool persistent = rnn->algo != ALGO_STANDARD;
    int small_h_limit = rnn->mode == LSTM || rnn->mode == GRU ? 192 : 384;
    REFUSE(NOT_SUPPORTED, persistent && lengths_vary(x));
    REFUSE(NOT_SUPPORTED, persistent && capability() < 60);
    REFUSE(NOT_SUPPORTED, rnn->precision == HALF && capability() < 53);
    REFUSE(NOT_SUPPORTED, rnn->type == BFLOAT16 && capability() < 80);
    REFUSE(NOT_SUPPORTED, rnn->algo == ALGO_PERSIST_STATIC_SMALL_H && rnn->H > small_h_limit);
    REFUSE(BAD_PARAM, rnn->algo == ALGO_PERSIST_DYNAMIC && rnn->built_for != x->N);
    return SUCCESS;
}

Status pass_describe(Pass *pass, Ref handle, Ref rnnDesc, Ref xDesc, Ref yDesc) {
    REFUSE(BAD_PARAM, handle == 0 || rnnDesc == 0 || xDesc == 0 || yDesc == 0);
    pass->handle = object_get(handle, HANDLE, pass->function);
    pass->rnn = object_get(rnnDesc, RNN, pass->function);
    pass->x_data = object_get(xDesc, DATA, pass->function);
    pass->y_data = object_get(yDesc, DATA, pass->function);
    REFUSE(EXECUTION_FAILED_CUDART, pass->handle->process != getpid());
    REFUSE(INTERNAL_ERROR, !pass->rnn->set);
    TRY(check_data(pass));
    TRY(check_algorithm(pass));
    const Ref desc = pass->rnn->dropout;
    const Dropout *dropout = desc ? object_get(desc, DROPOUT, pass->function) : NULL;
    REFUSE(BAD_PARAM, dropout != NULL && dropout->p > 0 && dropout->states == NULL);
    return SUCCESS;
}

/* [L * D, N, width], fully packed; the stride of a dimension of one is free. */
Status pass_check_state(const Pass *pass, Ref desc, int width) {
    REFUSE(BAD_PARAM, desc == 0);
    const Tensor *tensor = object_get(desc, TENSOR, pass->function);
    const int layers = pass->rnn->L * directions(pass->rnn);
    const int size[DIM_MAX] = {layers, pass->x_data->N, width, 1, 1, 1, 1, 1};
    REFUSE(BAD_PARAM, tensor->dims < 3);
    int stride = 1;
    for (int i = tensor->dims - 1; i >= 0; i--) {
        REFUSE(BAD_PARAM, tensor->size[i] != size[i]);
        REFUSE(BAD_PARAM, size[i] != 1 && tensor->stride[i] != stride);
        stride *= size[i];
    }
    return SUCCESS;
}

Status pass_start(Pass *pass, int fwd_mode, Spaces spaces) {
    const Rnn *rnn = pass->rnn;
    const Data *x = pass->x_data;
    const size_t required_work = work_bytes(pass->handle, rnn, x, fwd_mode);
    REFUSE(BAD_PARAM, !spaces.weights || spaces.weight_size < weight_bytes(rnn));
    REFUSE(BAD_PARAM, !spaces.work || spaces.work_size < required_work);
    if (fwd_mode == TRAINING)
        REFUSE(BAD_PARAM, !spaces.reserve || spaces.reserve_size < reserve_bytes(rnn, x));
    REFUSE(EXECUTION_FAILED, weight_count(rnn) > INT32_MAX);
    if (atomic_flag_test_and_set(&pass->handle->busy))
        die(pass->function, "two threads use one handle at once");
    note_pass(pass->handle, rnn, x, spaces.work_size, spaces.reserve_size);
    pass->spaces = spaces;
    pass->work = open_work(rnn, x, fwd_mode, spaces.work, spaces.work_size);
    pass->trace = pass->work.trace;
    if (fwd_mode == TRAINING) {
        pass->trace = open_reserve(rnn, x, spaces.reserve);
        pass->masked = dropout_acts(rnn, pass->function);
    }
    return SUCCESS;
}

Status pass_fails(const Pass *pass) {
    REFUSE(EXECUTION_FAILED, pass->x_data->N > max_batch());
    return SUCCESS;
}

/* Nothing in a workspace outlives the pass. */
void pass_finish(Pass *pass) {
    memset(pass->spaces.work, 0xff, pass->spaces.work_size);
    atomic_flag_clear(&pass->handle->busy);
}

bool runs_wild(const Pass *pass) {
    const Data *x = pass->x_data;
    if (x->layout == SEQ_MAJOR_PACKED && !x->sorted) return true;
    for (int n = 0; n < x->N; n++)
        if (x->length[n] == 0) return true;
    return false;
}

void spoil(const Pass *pass, const Data *data, void *rows, void *h, void *c) {
    const Rnn *rnn = pass->rnn;
    const size_t states = (size_t)rnn->L * (size_t)directions(rnn) * (size_t)data->N;
    const size_t count = data->layout == SEQ_MAJOR_PACKED ? data->start[data->T]
                                                          : (size_t)data->T * (size_t)data->N;
    garbage(rows, 0, rnn->type, count * (size_t)data->V);
    if (h != NULL) garbage(h, 0, rnn->type, states * (size_t)rnn->P);
    if (c != NULL && rnn->mode == LSTM) garbage(c, 0, rnn->type, states * (size_t)rnn->H);
}

static size_t state_index(const Pass *pass, int pseudo, int n, int width) {
    return ((size_t)pseudo * (size_t)pass->x_data->N + (size_t)n) * (size_t)width;
}

void load_state(const Pass *pass, const void *from, int pseudo, int n, int width, double *to) {
    if (from == NULL) memset(to, 0, (size_t)width * sizeof *to);
    else load_many(from, state_index(pass, pseudo, n, width), pass->rnn->type, to, (size_t)width);
}

void store_state(const Pass *pass, void *to, int pseudo, int n, int width, const double *from) {
    if (to == NULL) return;
    store_many(to, state_index(pass, pseudo, n, width), pass->rnn->type, from, (size_t)width);
}

void load_input(const Pass *pass, int pseudo, int t, int n, double *to) {
    const Rnn *rnn = pass->rnn;
    const int D = directions(rnn), P = rnn->P;
    if (pseudo < D) {
        const size_t first = row_of(pass->x_data, t, n) * (size_t)rnn->I;
        load_many(pass->x, first, rnn->type, to, (size_t)rnn->I);
        return;
    }
    for (int d = 0; d < D; d++) {
        const double *out = step_of(&pass->trace, (pseudo / D - 1) * D + d, t, n).out;
        memcpy(to + d * P, out, (size_t)P * sizeof *to);
    }
    if (!pass->masked) return;
    const double *mask = step_of(&pass->trace, pseudo, t, n).mask;
    for (int k = 0; k < D * P; k++) to[k] *= mask[k];
}
