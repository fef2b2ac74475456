/* Handles and their streams. */
#include "double.h"

#include <pthread.h>
#include <unistd.h>

EXPORT Status cudnnCreate(Ref *handle) {
    BEGIN();
    BAD_IF(!handle);
    if (no_device())
        return failed(NOT_INITIALIZED, __func__, "cudaGetDeviceCount(&count) != cudaSuccess");
    *handle = object_add(HANDLE, sizeof(Handle));
    Handle *made = GET(HANDLE, *handle);
    made->process = getpid();
    made->thread = (unsigned long)pthread_self();
    atomic_flag_clear(&made->busy);
    return SUCCESS;
}

EXPORT Status cudnnDestroy(Ref handle) {
    BEGIN();
    if (handle == 0) return SUCCESS;
    Handle *old = GET(HANDLE, handle);
    FAIL_IF(EXECUTION_FAILED_CUDART, old->process != getpid());
    object_remove(handle, HANDLE, __func__);
    return SUCCESS;
}

EXPORT Status cudnnSetStream(Ref handle, uintptr_t stream) {
    BEGIN();
    BAD_WITHOUT_TEXT_IF(handle == 0);
    Handle *of = GET(HANDLE, handle);
    FAIL_IF(EXECUTION_FAILED_CUDART, of->process != getpid());
    note_thread(of);
    of->stream = stream;
    return SUCCESS;
}

EXPORT Status cudnnGetStream(Ref handle, uintptr_t *stream) {
    BEGIN();
    BAD_IF(handle == 0 || stream == NULL);
    *stream = ((Handle *)GET(HANDLE, handle))->stream;
    return SUCCESS;
}
