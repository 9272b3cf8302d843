/* cuda_runtime_api.h - the calls of the CUDA runtime that runtime/cuda makes, as tests/cuda/runtime.cpp carries them out on a
 * processor: device memory is malloc's, streams do their work at once. See tests/cuda/README.md. */
#ifndef MPP_SHIM_CUDA_RUNTIME_API_H
#define MPP_SHIM_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};

enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };

typedef struct mpp_shim_stream *cudaStream_t;
typedef struct mpp_shim_event *cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

#define cudaStreamNonBlocking 1u
#define cudaEventDisableTiming 2u

const char *cudaGetErrorName(cudaError_t code);
const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError(void);
cudaError_t cudaDriverGetVersion(int *version_out);
cudaError_t cudaRuntimeGetVersion(int *version_out);
cudaError_t cudaGetDeviceCount(int *n_out);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal);
cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int ordinal);
cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *x);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset2DAsync(void *x, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *x, int value, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
