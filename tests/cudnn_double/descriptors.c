/* Tensor, recurrent-data and recurrent-network descriptors, with cuDNN's own rejections. */
#include "double.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CREATE_DESTROY(name, kind, type)                    \
    EXPORT Status cudnnCreate##name(Ref *desc) {            \
        BEGIN();                                            \
        BAD_IF(!desc);                                      \
        *desc = object_add(kind, sizeof(type));             \
        return SUCCESS;                                     \
    }                                                       \
    EXPORT Status cudnnDestroy##name(Ref desc) {            \
        BEGIN();                                            \
        if (desc != 0) object_remove(desc, kind, __func__); \
        return SUCCESS;                                     \
    }

CREATE_DESTROY(TensorDescriptor, TENSOR, Tensor)
CREATE_DESTROY(DropoutDescriptor, DROPOUT, Dropout)
CREATE_DESTROY(RNNDataDescriptor, DATA, Data)
CREATE_DESTROY(RNNDescriptor, RNN, Rnn)

/* ---- tensors ---- */

EXPORT Status cudnnSetTensorNdDescriptor(Ref desc, int type, int nbDims, const int dimA[],
                                         const int strideA[]) {
    BEGIN();
    BAD_IF(desc == 0 || dimA == NULL || strideA == NULL);
    Tensor *tensor = GET(TENSOR, desc);
    BAD_WITHOUT_TEXT_IF(type < 0 || type > 9);
    BAD_IF(nbDims < (SINCE(90100) ? 2 : 3));
    UNSUPPORTED_IF(nbDims > DIM_MAX);
    int64_t extent = 1;
    for (int i = 0; i < nbDims; i++) {
        BAD_IF(dimA[i] <= 0);
        BAD_IF(strideA[i] == 0 && dimA[i] != 1);
        extent += (int64_t)(dimA[i] - 1) * strideA[i];
    }
    UNSUPPORTED_IF(extent > INT32_MAX);
    *tensor = (Tensor){.type = type, .dims = nbDims};
    memcpy(tensor->size, dimA, (size_t)nbDims * sizeof *dimA);
    memcpy(tensor->stride, strideA, (size_t)nbDims * sizeof *strideA);
    return SUCCESS;
}

EXPORT Status cudnnGetTensorNdDescriptor(Ref desc, int nbDimsRequested, int *type, int *nbDims,
                                         int dimA[], int strideA[]) {
    BEGIN();
    BAD_IF(desc == 0 || type == NULL || nbDims == NULL || nbDimsRequested < 0);
    const Tensor *tensor = GET(TENSOR, desc);
    *type = tensor->type;
    *nbDims = tensor->dims;
    int count = tensor->dims < nbDimsRequested ? tensor->dims : nbDimsRequested;
    BAD_IF(count > 0 && (dimA == NULL || strideA == NULL));
    for (int i = 0; i < count; i++) {
        dimA[i] = tensor->size[i];
        strideA[i] = tensor->stride[i];
    }
    return SUCCESS;
}

EXPORT Status cudnnGetTensorSizeInBytes(Ref desc, size_t *size) {
    BEGIN();
    BAD_IF(desc == 0 || size == NULL);
    const Tensor *tensor = GET(TENSOR, desc);
    static const size_t SIZES[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2};
    size_t last = 0;
    for (int i = 0; i < tensor->dims; i++)
        last += (size_t)(tensor->size[i] - 1) * (size_t)abs(tensor->stride[i]);
    *size = tensor->dims == 0 ? 0 : (last + 1) * SIZES[tensor->type];
    return SUCCESS;
}

/* ---- sequences ---- */

void data_free(Data *data) {
    free(data->length);
    free(data->start);
}

static bool takes_type(int type) {
    if (type == BFLOAT16) return SINCE(91300);
    return type == FLOAT || type == DOUBLE || type == HALF;
}

/* The first row of each step in the packed layout. */
static size_t *packed_starts(const int length[], int T, int N) {
    size_t *start = calloc((size_t)T + 1, sizeof *start);
    if (start == NULL) die(__func__, "out of memory");
    for (int n = 0; n < N; n++)
        for (int t = 0; t < length[n]; t++) start[t + 1]++;
    for (int t = 0; t < T; t++) start[t + 1] += start[t];
    return start;
}

EXPORT Status cudnnSetRNNDataDescriptor(Ref desc, int type, int layout, int maxSeqLength,
                                        int batchSize, int vectorSize, const int seqLengthArray[],
                                        const void *paddingFill) {
    BEGIN();
    BAD_IF(desc == 0);
    if (!SINCE(90200)) DIE_IF(seqLengthArray == NULL); /* these versions crash */
    BAD_IF(seqLengthArray == NULL);
    Data *data = GET(DATA, desc);
    BAD_IF(type < 0);
    UNSUPPORTED_IF(!takes_type(type));
    BAD_WITHOUT_TEXT_IF(layout < SEQ_MAJOR_UNPACKED || layout > BATCH_MAJOR_UNPACKED);
    BAD_IF(maxSeqLength <= 0 || batchSize <= 0 || vectorSize <= 0);
    UNSUPPORTED_IF(maxSeqLength > 65535);
    int shortest = maxSeqLength, longest = 0;
    bool isSortedSequences = true;
    for (int n = 0; n < batchSize; n++) {
        int length = seqLengthArray[n];
        UNSUPPORTED_IF(SINCE(90100) && !SINCE(90201) && length == 0);
        BAD_IF(length < 0 || length > maxSeqLength);
        if (n > 0 && length > seqLengthArray[n - 1]) isSortedSequences = false;
        if (length < shortest) shortest = length;
        if (length > longest) longest = length;
    }
    if (layout == SEQ_MAJOR_PACKED) {
        BAD_IF(longest != maxSeqLength);
        BAD_IF(SINCE(90500) && isSortedSequences == false);
        BAD_IF(SINCE(90100) && shortest == 0);
    }
    data_free(data);
    *data = (Data){.type = type, .layout = layout, .T = maxSeqLength, .N = batchSize,
                   .V = vectorSize, .sorted = isSortedSequences};
    data->length = malloc((size_t)batchSize * sizeof *data->length);
    if (data->length == NULL) die(__func__, "out of memory");
    memcpy(data->length, seqLengthArray, (size_t)batchSize * sizeof *data->length);
    data->start = packed_starts(data->length, data->T, data->N);
    data->fill_given = paddingFill != NULL;
    if (data->fill_given) memcpy(data->fill, paddingFill, size_of(type));
    return SUCCESS;
}

EXPORT Status cudnnGetRNNDataDescriptor(Ref desc, int *type, int *layout, int *maxSeqLength,
                                        int *batchSize, int *vectorSize, int arrayLengthRequested,
                                        int seqLengthArray[], void *paddingFill) {
    BEGIN();
    BAD_IF(desc == 0 || type == NULL || layout == NULL);
    BAD_IF(maxSeqLength == NULL || batchSize == NULL || vectorSize == NULL);
    BAD_IF(paddingFill == NULL);
    BAD_IF(arrayLengthRequested < 0 || (arrayLengthRequested > 0 && seqLengthArray == NULL));
    const Data *data = GET(DATA, desc);
    *type = data->type;
    *layout = data->layout;
    *maxSeqLength = data->T;
    *batchSize = data->N;
    *vectorSize = data->V;
    for (int n = 0; n < arrayLengthRequested; n++)
        seqLengthArray[n] = n < data->N ? data->length[n] : 0;
    memcpy(paddingFill, data->fill, size_of(data->type));
    return SUCCESS;
}

size_t row_of(const Data *data, int t, int n) {
    switch (data->layout) {
    case SEQ_MAJOR_PACKED: return data->start[t] + (size_t)n;
    case SEQ_MAJOR_UNPACKED: return (size_t)t * (size_t)data->N + (size_t)n;
    default: return (size_t)n * (size_t)data->T + (size_t)t;
    }
}

/* ---- networks ---- */

static bool takes_precision(int type, int precision) {
    if (!takes_type(type)) return false;
    return precision == type ? type != BFLOAT16
                             : precision == FLOAT && (type == HALF || type == BFLOAT16);
}

EXPORT Status cudnnSetRNNDescriptor_v8(Ref rnnDesc, int algo, int cellMode, int biasMode,
                                       int dirMode, int inputMode, int dataType, int mathPrec,
                                       int mathType, int32_t inputSize, int32_t hiddenSize,
                                       int32_t projSize, int32_t numLayers, Ref dropoutDesc,
                                       uint32_t auxFlags) {
    BEGIN();
    BAD_IF(rnnDesc == 0);
    Rnn *rnn = GET(RNN, rnnDesc);
    BAD_IF(cellMode < RELU || cellMode > GRU);
    BAD_IF(dirMode < 0 || dirMode > 1);
    BAD_IF(inputMode < LINEAR_INPUT || inputMode > SKIP_INPUT);
    BAD_IF(inputSize < 1 || hiddenSize < 1 || numLayers < 1);
    BAD_WITHOUT_TEXT_IF(algo < ALGO_STANDARD || algo > ALGO_PERSIST_STATIC_SMALL_H);
    BAD_WITHOUT_TEXT_IF(biasMode < NO_BIAS || biasMode > SINGLE_REC_BIAS);
    BAD_WITHOUT_TEXT_IF(mathType < 0 || mathType > 3);
    UNSUPPORTED_IF(biasMode != DOUBLE_BIAS && algo != ALGO_STANDARD);
    BAD_IF(projSize <= 0);
    BAD_IF((auxFlags & ~(uint32_t)PADDED_IO) != 0);
    UNSUPPORTED_IF(projSize > hiddenSize);
    UNSUPPORTED_IF(projSize != hiddenSize && cellMode != LSTM);
    UNSUPPORTED_IF(projSize != hiddenSize && algo != ALGO_STANDARD);
    UNSUPPORTED_IF(!takes_precision(dataType, mathPrec));
    UNSUPPORTED_IF(dataType == DOUBLE && algo != ALGO_STANDARD && algo != ALGO_PERSIST_DYNAMIC);
    UNSUPPORTED_IF(mathPrec == HALF && algo != ALGO_STANDARD);
    if (dropoutDesc != 0) GET(DROPOUT, dropoutDesc);
    *rnn = (Rnn){.set = true, .algo = algo, .mode = cellMode, .bias = biasMode,
                 .bidirectional = dirMode, .input = inputMode, .type = dataType,
                 .precision = mathPrec, .math = mathType, .I = inputSize, .H = hiddenSize,
                 .P = projSize, .L = numLayers, .dropout = dropoutDesc, .aux = auxFlags};
    return SUCCESS;
}

#define PUT(pointer, value)                         \
    do {                                            \
        if ((pointer) != NULL) *(pointer) = (value); \
    } while (0)

EXPORT Status cudnnGetRNNDescriptor_v8(Ref rnnDesc, int *algo, int *cellMode, int *biasMode,
                                       int *dirMode, int *inputMode, int *dataType, int *mathPrec,
                                       int *mathType, int32_t *inputSize, int32_t *hiddenSize,
                                       int32_t *projSize, int32_t *numLayers, Ref *dropoutDesc,
                                       uint32_t *auxFlags) {
    BEGIN();
    BAD_IF(rnnDesc == 0);
    const Rnn *rnn = GET(RNN, rnnDesc);
    FAIL_IF(NOT_INITIALIZED, !rnn->set);
    PUT(algo, rnn->algo);
    PUT(cellMode, rnn->mode);
    PUT(biasMode, rnn->bias);
    PUT(dirMode, rnn->bidirectional);
    PUT(inputMode, rnn->input);
    PUT(dataType, rnn->type);
    PUT(mathPrec, rnn->precision);
    PUT(mathType, rnn->math);
    PUT(inputSize, rnn->I);
    PUT(hiddenSize, rnn->H);
    PUT(projSize, rnn->P);
    PUT(numLayers, rnn->L);
    PUT(dropoutDesc, rnn->dropout);
    PUT(auxFlags, rnn->aux);
    return SUCCESS;
}

static Status set_clip(Ref rnnDesc, int mode, int nan_option, double lclip, double rclip,
                       const char *function) {
    if (rnnDesc == 0) return failed(BAD_PARAM, function, "rnnDesc == NULL");
    if (!(lclip <= rclip)) return failed(BAD_PARAM, function, "!(lclip <= rclip)");
    Rnn *rnn = object_get(rnnDesc, RNN, function);
    rnn->clip = mode;
    rnn->clip_nan = nan_option;
    rnn->clip_low = lclip;
    rnn->clip_high = rclip;
    return SUCCESS;
}

EXPORT Status cudnnRNNSetClip_v8(Ref rnnDesc, int clipMode, int clipNanOpt, double lclip,
                                 double rclip) {
    BEGIN();
    return set_clip(rnnDesc, clipMode, clipNanOpt, lclip, rclip, __func__);
}

EXPORT Status cudnnRNNGetClip_v8(Ref rnnDesc, int *clipMode, int *clipNanOpt, double *lclip,
                                 double *rclip) {
    BEGIN();
    BAD_IF(rnnDesc == 0);
    const Rnn *rnn = GET(RNN, rnnDesc);
    PUT(clipMode, rnn->clip);
    PUT(clipNanOpt, rnn->clip_nan);
    PUT(lclip, rnn->clip_low);
    PUT(rclip, rnn->clip_high);
    return SUCCESS;
}

#if IS_V9
EXPORT Status cudnnRNNSetClip_v9(Ref rnnDesc, int clipMode, double lclip, double rclip) {
    BEGIN();
    return set_clip(rnnDesc, clipMode, PROPAGATE_NAN, lclip, rclip, __func__);
}

EXPORT Status cudnnRNNGetClip_v9(Ref rnnDesc, int *clipMode, double *lclip, double *rclip) {
    BEGIN();
    BAD_IF(rnnDesc == 0);
    const Rnn *rnn = GET(RNN, rnnDesc);
    PUT(clipMode, rnn->clip);
    PUT(lclip, rnn->clip_low);
    PUT(rclip, rnn->clip_high);
    return SUCCESS;
}
#endif

EXPORT Status cudnnBuildRNNDynamic(Ref handle, Ref rnnDesc, int miniBatch) {
    BEGIN();
    BAD_IF(handle == 0 || rnnDesc == 0);
    BAD_IF(miniBatch <= 0);
    Rnn *rnn = GET(RNN, rnnDesc);
    GET(HANDLE, handle);
    UNSUPPORTED_IF(rnn->algo != ALGO_PERSIST_DYNAMIC);
    rnn->built_for = miniBatch;
    return SUCCESS;
}
