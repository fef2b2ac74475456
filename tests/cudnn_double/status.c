/* Statuses, the text of the last error, the log callback, versions. */
#include "double.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Status status;
    const char *name;
} Name;

static const Name NAMES[] = {
    {0, "CUDNN_STATUS_SUCCESS"},
#if IS_V9
    {1001, "CUDNN_STATUS_NOT_INITIALIZED"},
    {1002, "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"},
    {1003, "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH"},
    {1004, "CUDNN_STATUS_DEPRECATED"},
    {1005, "CUDNN_STATUS_LICENSE_ERROR"},
    {1006, "CUDNN_STATUS_RUNTIME_IN_PROGRESS"},
    {1007, "CUDNN_STATUS_RUNTIME_FP_OVERFLOW"},
#if SINCE(90200)
    {1008, "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"},
#endif
    {2000, "CUDNN_STATUS_BAD_PARAM"},
    {2001, "CUDNN_STATUS_INVALID_VALUE"},
    {2002, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
    {2003, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
    {2004, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
    {2005, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
    {2006, "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"},
    {2007, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
    {2008, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
    {2009, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"},
    {2010, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
#if SINCE(90500)
    {2011, "CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH"},
#endif
#if SINCE(90600)
    {2012, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
#endif
    {3000, "CUDNN_STATUS_NOT_SUPPORTED"},
    {3001, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
    {3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"},
    {3003, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
    {3004, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
    {3005, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER"},
    {3006, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART"},
    {3007, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"},
    {3008, "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"},
    {3009, "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"},
    {3010, "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
    {3011, "CUDNN_STATUS_NOT_SUPPORTED_PADDING"},
    {3012, "CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM"},
#if SINCE(90500)
    {3013, "CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API"},
#endif
#if SINCE(91800)
    {3014, "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE"},
#endif
    {4000, "CUDNN_STATUS_INTERNAL_ERROR"},
    {4001, "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"},
    {4002, "CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE"},
    {4003, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {4004, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    {4005, "CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM"},
    {4006, "CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED"},
    {5000, "CUDNN_STATUS_EXECUTION_FAILED"},
    {5001, "CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"},
    {5002, "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS"},
    {5003, "CUDNN_STATUS_EXECUTION_FAILED_CUDART"},
    {5004, "CUDNN_STATUS_EXECUTION_FAILED_CURAND"},
#else
    {1, "CUDNN_STATUS_NOT_INITIALIZED"},
    {2, "CUDNN_STATUS_ALLOC_FAILED"},
    {3, "CUDNN_STATUS_BAD_PARAM"},
    {4, "CUDNN_STATUS_INTERNAL_ERROR"},
    {5, "CUDNN_STATUS_INVALID_VALUE"},
    {6, "CUDNN_STATUS_ARCH_MISMATCH"},
    {7, "CUDNN_STATUS_MAPPING_ERROR"},
    {8, "CUDNN_STATUS_EXECUTION_FAILED"},
    {9, "CUDNN_STATUS_NOT_SUPPORTED"},
    {10, "CUDNN_STATUS_LICENSE_ERROR"},
    {11, "CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING"},
    {12, "CUDNN_STATUS_RUNTIME_IN_PROGRESS"},
    {13, "CUDNN_STATUS_RUNTIME_FP_OVERFLOW"},
    {14, "CUDNN_STATUS_VERSION_MISMATCH"},
#endif
};

const char *status_name(Status status) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].status == status) return NAMES[i].name;
    return "CUDNN_UNKNOWN_STATUS";
}

/* ---- the log callback ---- */

typedef enum { SEVERITY_FATAL, SEVERITY_ERROR, SEVERITY_WARNING, SEVERITY_INFO } Severity;

typedef struct {
    unsigned version;
    Status status;
    unsigned seconds, microseconds, delta;
    Ref handle;
    uintptr_t stream;
    unsigned long long process, thread;
    int device;
    int reserved[15];
} Debug;

typedef void (*Callback)(Severity, void *, const Debug *, const char *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned callback_mask;
static void *callback_data;
static Callback callback;

EXPORT Status cudnnGetCallback(unsigned *mask, void **data, Callback *function) {
    *mask = callback_mask;
    *data = callback_data;
    *function = callback;
    return SUCCESS;
}

EXPORT Status cudnnSetCallback(unsigned mask, void *data, Callback function) {
    BEGIN();
    pthread_mutex_lock(&lock);
    callback_mask = function == NULL ? 0 : mask;
    callback_data = data;
    callback = function;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* The message is a block of strings, each with its NUL, closed by an empty one. */
static void log_message(Severity severity, const char *function, const char *label, Status status,
                        const char *reason) {
    pthread_mutex_lock(&lock);
    Callback to = callback_mask & 1u << severity ? callback : NULL;
    void *data = callback_data;
    pthread_mutex_unlock(&lock);
    if (to == NULL) return;
    enum { LINE = 256 };
    char lines[3][LINE], block[4 * LINE] = {0};
    int count = 1;
    snprintf(lines[0], LINE, "CuDNN (v%d) function %s() called:", CUDNN_DOUBLE_VERSION, function);
    if (reason != NULL) {
        snprintf(lines[1], LINE, "    Info: Traceback contains 1 message(s)");
        snprintf(lines[2], LINE, "        %s: %s; Reason: %s", label, status_name(status), reason);
        count = 3;
    }
    char *end = block;
    for (int i = 0; i < count; i++) {
        strcpy(end, lines[i]);
        end += strlen(lines[i]) + 1;
    }
    const Debug debug = {.version = CUDNN_DOUBLE_VERSION,
                         .status = status,
                         .process = (unsigned long long)getpid(),
                         .thread = (unsigned long long)pthread_self()};
    to(severity, data, &debug, block);
}

/* ---- errors ---- */

static _Thread_local char last_error[256];

#if IS_V9
EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    note_call(__func__);
    if (message == NULL || size == 0) return;
    snprintf(message, size, "%s", last_error);
    last_error[0] = '\0';
}
#endif

/* NOT_SUPPORTED is a warning: its reason goes to the log and not to the last error. */
Status failed(Status status, const char *function, const char *reason) {
    if (reason == NULL) return status;
    if (status == NOT_SUPPORTED) {
        log_message(SEVERITY_WARNING, function, "Warning", status, reason);
        return status;
    }
    snprintf(last_error, sizeof last_error, "%s", reason);
    log_message(SEVERITY_ERROR, function, "Error", status, reason);
    return status;
}

_Noreturn void die(const char *function, const char *reason) {
    fprintf(stderr, "cudnn_double: %s: %s\n", function, reason);
    fflush(stderr);
    abort();
}

Status begin(const char *function) {
    note_call(function);
    log_message(SEVERITY_INFO, function, "Info", SUCCESS, NULL);
    Status asked = asked_failure(function);
    return asked == SUCCESS ? SUCCESS : failed(asked, function, "CUDNN_DOUBLE_FAIL");
}

EXPORT const char *cudnnGetErrorString(Status status) {
    note_call(__func__);
    return status_name(status);
}

/* ---- versions ---- */

EXPORT size_t cudnnGetVersion(void) {
    note_call(__func__);
    return CUDNN_DOUBLE_VERSION;
}

EXPORT size_t cudnnGetCudartVersion(void) {
    note_call(__func__);
    return SINCE(90200) ? 12090 : SINCE(90100) ? 12040 : IS_V9 ? 12030 : 12020;
}

EXPORT size_t cudnnGetMaxDeviceVersion(void) {
    note_call(__func__);
    return SINCE(90700) ? 1210 : 900;
}

EXPORT Status cudnnGetProperty(int type, int *value) {
    BEGIN();
    BAD_IF(value == NULL);
    FAIL_IF(INVALID_VALUE, type < 0 || type > 2);
    const int major = IS_V9 ? 10000 : 1000;
    const int parts[] = {CUDNN_DOUBLE_VERSION / major, CUDNN_DOUBLE_VERSION % major / 100,
                         CUDNN_DOUBLE_VERSION % 100};
    *value = parts[type];
    return SUCCESS;
}

#define VERSION_CHECK(name)      \
    EXPORT Status name(void) {   \
        BEGIN();                 \
        return SUCCESS;          \
    }
#if IS_V9
VERSION_CHECK(cudnnGraphVersionCheck)
VERSION_CHECK(cudnnOpsVersionCheck)
VERSION_CHECK(cudnnAdvVersionCheck)
#else
VERSION_CHECK(cudnnOpsInferVersionCheck)
VERSION_CHECK(cudnnOpsTrainVersionCheck)
VERSION_CHECK(cudnnAdvInferVersionCheck)
VERSION_CHECK(cudnnAdvTrainVersionCheck)
#endif
