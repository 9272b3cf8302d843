/* runtime.cpp - the CUDA runtime's calls on a processor: devices and memory. streams.cpp has streams, events and graphs.
 *
 *     MPP_SHIM_DRIVER=N     the driver's version (13000); 0: there is none
 *     MPP_SHIM_DEVICES=N    GPUs (16)
 *     MPP_SHIM_MEMORY=N     bytes of memory of all of them together (no limit)
 *
 * Memory of cudaMalloc begins with NaNs, ends at the byte asked for, and is malloc's, so that AddressSanitizer sees what is
 * read or written outside. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <shim_queues.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { ALIGNMENT = 256, MOST_BLOCKS = 4096 };

struct allocation {
    void *at;
    size_t bytes;
};

allocation allocations[MOST_BLOCKS];
size_t allocated_bytes;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__thread cudaError_t last_error;
__thread int device; /* of the calling thread */

long long setting(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoll(text) : otherwise;
}

size_t memory_bytes(void)
{
    return (size_t)setting("MPP_SHIM_MEMORY", (long long)1 << 46);
}

cudaError_t result(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

/* Without a driver every call fails alike. */
cudaError_t driver(void)
{
    long long version = setting("MPP_SHIM_DRIVER", CUDART_VERSION);
    return version >= CUDART_VERSION ? cudaSuccess : cudaErrorInsufficientDriver;
}

} // namespace

const char *cudaGetErrorName(cudaError_t code)
{
    switch (code) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(code);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaDriverGetVersion(int *version_out)
{
    *version_out = (int)setting("MPP_SHIM_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version_out)
{
    *version_out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n_out)
{
    *n_out = driver() == cudaSuccess ? (int)setting("MPP_SHIM_DEVICES", 16) : 0;
    return result(driver() != cudaSuccess ? driver() : *n_out > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int ordinal)
{
    if (ordinal < 0 || ordinal >= setting("MPP_SHIM_DEVICES", 16))
        return result(cudaErrorInvalidDevice);
    device = ordinal;
    return cudaSuccess;
}

int mpp_shim_device(void)
{
    return device;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "processor standing in for GPU %d", ordinal);
    out->totalGlobalMem = memory_bytes();
    out->major = 8;
    out->multiProcessorCount = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int ordinal)
{
    snprintf(out, (size_t)bytes, "0000:%02X:00.0", ordinal);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out)
{
    pthread_mutex_lock(&lock);
    *total_out = memory_bytes();
    *free_out = *total_out > allocated_bytes ? *total_out - allocated_bytes : 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t code = driver() == cudaSuccess ? mpp_shim_unsafe() : driver();
    *out = NULL;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST_BLOCKS && allocations[i].at != NULL)
        i++;
    if (code == cudaSuccess && bytes > 0) {
        if (i == MOST_BLOCKS || allocated_bytes + bytes > memory_bytes() || posix_memalign(out, ALIGNMENT, bytes) != 0) {
            *out = NULL;
            code = cudaErrorMemoryAllocation;
        } else {
            allocations[i] = allocation{*out, bytes};
            allocated_bytes += bytes;
        }
    }
    pthread_mutex_unlock(&lock);
    if (*out != NULL)
        memset(*out, 0xff, bytes);
    return result(code);
}

cudaError_t cudaFree(void *x)
{
    cudaError_t code = mpp_shim_unsafe();
    if (code != cudaSuccess)
        return result(code);
    if (x != NULL) {
        mpp_shim_wait_for_all("cudaFree");
        mpp_shim_device_await(device);
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; x != NULL && i < MOST_BLOCKS; i++)
        if (allocations[i].at == x) {
            allocated_bytes -= allocations[i].bytes;
            allocations[i].at = NULL;
        }
    pthread_mutex_unlock(&lock);
    free(x);
    return cudaSuccess;
}

namespace {

/* HEIGHT rows of WIDTH bytes. */
struct rows {
    char *dst;
    const char *src; /* NULL: VALUE everywhere */
    size_t dst_pitch, src_pitch, width, height;
    int value;
    std::vector<char> staged; /* copied from SRC in the call: memory of the host that is not pinned */
};

int fill(const rows *x)
{
    const char *src = x->staged.empty() ? x->src : x->staged.data();
    for (size_t i = 0; i < x->height && x->width > 0; i++)
        if (x->src != NULL)
            memcpy(x->dst + i * x->dst_pitch, src + i * x->src_pitch, x->width);
        else
            memset(x->dst + i * x->dst_pitch, x->value, x->width);
    return 0;
}

} // namespace

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > dst_pitch || width > src_pitch || (src == NULL && width > 0 && height > 0))
        return result(cudaErrorInvalidValue);
    cudaError_t code = kind != cudaMemcpyDeviceToDevice ? mpp_shim_refuse(stream) : cudaSuccess;
    if (code != cudaSuccess || width == 0)
        return result(code);
    rows x = {(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height, 0, {}};
    if (kind == cudaMemcpyHostToDevice && mpp_shim_keeps(stream) && height > 0)
        x.staged.assign(x.src, x.src + (height - 1) * src_pitch + width);
    code = mpp_shim_do(stream, x, fill);
    return result(code == cudaSuccess && kind == cudaMemcpyDeviceToHost ? cudaStreamSynchronize(stream) : code);
}

cudaError_t cudaMemsetAsync(void *x, int value, size_t bytes, cudaStream_t stream)
{
    return cudaMemset2DAsync(x, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemset2DAsync(void *x, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    if (width > pitch)
        return result(cudaErrorInvalidValue);
    return result(mpp_shim_do(stream, rows{(char *)x, NULL, pitch, 0, width, height, value, {}}, fill));
}
