/* The weight space: all matrices, pseudo layer after pseudo layer, then all biases; no gaps. */
#include "double.h"

#include <string.h>

typedef struct {
    int64_t offset; /* in elements; -1 when there is no such item */
    int rows, cols;
} Block;

int gate_count(const Rnn *rnn) { return rnn->mode == LSTM ? 4 : rnn->mode == GRU ? 3 : 1; }

int input_size(const Rnn *rnn, int pseudo) {
    return pseudo < directions(rnn) ? rnn->I : rnn->P * directions(rnn);
}

static bool has_input_matrix(const Rnn *rnn, int pseudo) {
    return pseudo >= directions(rnn) || rnn->input == LINEAR_INPUT;
}

static bool has_input_bias(const Rnn *rnn) {
    return rnn->bias == SINGLE_INP_BIAS || rnn->bias == DOUBLE_BIAS;
}

static bool has_recurrent_bias(const Rnn *rnn) {
    return rnn->bias == SINGLE_REC_BIAS || rnn->bias == DOUBLE_BIAS;
}

static int64_t input_elements(const Rnn *rnn, int pseudo) {
    return has_input_matrix(rnn, pseudo) ? (int64_t)rnn->H * input_size(rnn, pseudo) : 0;
}

static int64_t matrix_elements(const Rnn *rnn, int pseudo) {
    int64_t recurrent = (int64_t)rnn->H * rnn->P;
    return gate_count(rnn) * (input_elements(rnn, pseudo) + recurrent) +
           (projected(rnn) ? recurrent : 0);
}

static int64_t bias_elements(const Rnn *rnn) {
    return (int64_t)gate_count(rnn) * rnn->H * (has_input_bias(rnn) + has_recurrent_bias(rnn));
}

/* The elements of the matrices of all pseudo layers before this one. */
static int64_t matrices_before(const Rnn *rnn, int pseudo) {
    int first = pseudo < directions(rnn) ? pseudo : directions(rnn);
    return first * matrix_elements(rnn, 0) +
           (pseudo - first) * matrix_elements(rnn, directions(rnn));
}

static Block matrix(const Rnn *rnn, int pseudo, int id) {
    int gates = gate_count(rnn);
    int64_t inputs = gates * input_elements(rnn, pseudo);
    int64_t one = (int64_t)rnn->H * rnn->P;
    int64_t base = matrices_before(rnn, pseudo);
    int64_t input_base = base, recurrent_base = base + inputs;
    if (fault("weight_layout")) {
        recurrent_base = base;
        input_base = base + gates * one;
    }
    if (id < gates && has_input_matrix(rnn, pseudo))
        return (Block){input_base + id * input_elements(rnn, pseudo), rnn->H,
                       input_size(rnn, pseudo)};
    if (id >= gates && id < 2 * gates)
        return (Block){recurrent_base + (id - gates) * one, rnn->H, rnn->P};
    if (id == 2 * gates && projected(rnn))
        return (Block){base + inputs + gates * one, rnn->P, rnn->H};
    return (Block){-1, 0, 0};
}

static Block bias(const Rnn *rnn, int pseudo, int id) {
    int gates = gate_count(rnn);
    bool recurrent = id >= gates;
    if (id >= 2 * gates || !(recurrent ? has_recurrent_bias(rnn) : has_input_bias(rnn)))
        return (Block){-1, 0, 0};
    int64_t base = matrices_before(rnn, rnn->L * directions(rnn)) + pseudo * bias_elements(rnn);
    int place = recurrent && !has_input_bias(rnn) ? id - gates : id;
    return (Block){base + (int64_t)place * rnn->H, rnn->H, 1};
}

int64_t weight_count(const Rnn *rnn) {
    int pseudo_layers = rnn->L * directions(rnn);
    return matrices_before(rnn, pseudo_layers) + pseudo_layers * bias_elements(rnn);
}

size_t weight_bytes(const Rnn *rnn) {
    int32_t count = (int32_t)(uint32_t)(uint64_t)weight_count(rnn);
    return (size_t)(int64_t)count * size_of(rnn->type);
}

static double *place(double *weights, Block block) {
    return block.offset < 0 ? NULL : weights + block.offset;
}

static void exchange(double *pair[]) {
    double *first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

Cell cell_of(const Rnn *rnn, int pseudo, double *weights) {
    int gates = gate_count(rnn);
    Cell cell = {.K = input_size(rnn, pseudo)};
    for (int gate = 0; gate < gates; gate++) {
        cell.W[gate] = place(weights, matrix(rnn, pseudo, gate));
        cell.R[gate] = place(weights, matrix(rnn, pseudo, gates + gate));
        cell.bW[gate] = place(weights, bias(rnn, pseudo, gate));
        cell.bR[gate] = place(weights, bias(rnn, pseudo, gates + gate));
        if (fault("recurrent_bias_ignored")) cell.bR[gate] = NULL;
    }
    cell.projection = place(weights, matrix(rnn, pseudo, 2 * gates));
    if (gates > 1 && fault("gate_order")) {
        exchange(cell.W);
        exchange(cell.R);
        exchange(cell.bW);
        exchange(cell.bR);
    }
    return cell;
}

EXPORT Status cudnnGetRNNWeightSpaceSize(Ref handle, Ref rnnDesc, size_t *weightSpaceSize) {
    BEGIN();
    BAD_IF(handle == 0 || rnnDesc == 0 || weightSpaceSize == NULL);
    GET(HANDLE, handle);
    const Rnn *rnn = GET(RNN, rnnDesc);
    FAIL_IF(NOT_INITIALIZED, !IS_V9 && !rnn->set);
    *weightSpaceSize = rnn->set ? weight_bytes(rnn) : 0;
    return SUCCESS;
}

/* Three dimensions [1, rows, cols], or none for an absent item, whose address is NULL. */
static void tell(Ref desc, void **address, Block block, const void *space, int type,
                 const char *function) {
    Tensor *tensor = object_get(desc, TENSOR, function);
    *tensor = (Tensor){.type = type};
    *address = NULL;
    if (block.offset < 0) return;
    tensor->dims = 3;
    const int size[] = {1, block.rows, block.cols};
    const int stride[] = {block.rows * block.cols, block.cols, 1};
    memcpy(tensor->size, size, sizeof size);
    memcpy(tensor->stride, stride, sizeof stride);
    *address = (void *)((uintptr_t)space + (size_t)block.offset * size_of(type));
}

EXPORT Status cudnnGetRNNWeightParams(Ref handle, Ref rnnDesc, int32_t pseudoLayer,
                                      size_t weightSpaceSize, const void *weightSpace,
                                      int32_t linLayerID, Ref mDesc, void **mAddr, Ref bDesc,
                                      void **bAddr) {
    BEGIN();
    BAD_IF(handle == 0 || rnnDesc == 0);
    bool matrix_half = (mDesc == 0) != (mAddr == NULL), bias_half = (bDesc == 0) != (bAddr == NULL);
    if (IS_V9) {
        DIE_IF(matrix_half); /* crashes */
        DIE_IF(bias_half);
        BAD_IF(weightSpaceSize == 0);
    } else {
        BAD_IF(mDesc == 0 || mAddr == NULL || bDesc == 0 || bAddr == NULL);
        BAD_IF(weightSpace == NULL);
    }
    GET(HANDLE, handle);
    const Rnn *rnn = GET(RNN, rnnDesc);
    FAIL_IF(INTERNAL_ERROR, !rnn->set);
    BAD_IF(pseudoLayer < 0 || pseudoLayer >= rnn->L * directions(rnn));
    BAD_IF(linLayerID < 0 || linLayerID > 2 * gate_count(rnn));
    BAD_IF((uintptr_t)weightSpace % size_of(rnn->type) != 0);
    if (mDesc != 0)
        tell(mDesc, mAddr, matrix(rnn, pseudoLayer, linLayerID), weightSpace, rnn->type, __func__);
    if (bDesc != 0)
        tell(bDesc, bAddr, bias(rnn, pseudoLayer, linLayerID), weightSpace, rnn->type, __func__);
    return SUCCESS;
}
