/* conformance.h - included before the runtime's tests (gcc -include), so that those that were written for the host's kernels run
 * on CUDA's: a rank without a device gets its thread's own when it first calls. */
#ifndef MPP_CONFORMANCE_H
#define MPP_CONFORMANCE_H

#include "mpp_rt.h"

/* Returns R, with a device. */
struct mpp_rank *mpp_test_device(struct mpp_rank *r);
/* The same, waited for: r->skipped is what the device has. */
void mpp_test_settle(struct mpp_rank *r);

#ifdef MPP_CONFORMANCE_GPU /* tests/gpu/conformance_gpu.c: memory that a GPU reaches, and waits for what it does */
#include <pthread.h>
#include <stdlib.h>

void *mpp_test_malloc(size_t bytes);
void *mpp_test_calloc(size_t n, size_t bytes);
void *mpp_test_aligned_alloc(size_t alignment, size_t bytes);
void mpp_test_free(void *x);
int mpp_test_thread(pthread_t *out, void *(*run)(void *), void *arg);
int mpp_test_join(pthread_t thread);
void mpp_test_wait(void);
int mpp_test_main(void);
#define malloc mpp_test_malloc
#define calloc mpp_test_calloc
#define aligned_alloc mpp_test_aligned_alloc
#define free mpp_test_free
#define pthread_create(out, attributes, run, arg) mpp_test_thread(out, run, arg)
#define pthread_join(thread, result) mpp_test_join(thread)
#define main mpp_test_main
#define MPP_TEST_CALL(f, r, ...) ((f)(mpp_test_device(r), __VA_ARGS__), mpp_test_wait())
#else
/* Where streams work late, waits for the compute stream, and for nothing else: then tests may look at what it has. */
void mpp_test_compute(struct mpp_rank *r);
#define MPP_TEST_CALL(f, r, ...) ((f)(mpp_test_device(r), __VA_ARGS__), mpp_test_compute(r))
#define mpp_wait(r) ((mpp_wait)(mpp_test_device(r)), mpp_test_compute(r))
#endif

/* Tests of rows bring an all-reduce of their own (kernels_testing.h). */
#ifdef MPP_CONFORMANCE_COLLECTIVES
#define mpp_all_reduce(r, ...) MPP_TEST_CALL(mpp_all_reduce, r, __VA_ARGS__)
#endif
#define mpp_send(r, ...) MPP_TEST_CALL(mpp_send, r, __VA_ARGS__)
#define mpp_receive(r, ...) MPP_TEST_CALL(mpp_receive, r, __VA_ARGS__)
#define mpp_sum_over_stages(r, ...) MPP_TEST_CALL(mpp_sum_over_stages, r, __VA_ARGS__)
#define mpp_copy(r, ...) MPP_TEST_CALL(mpp_copy, r, __VA_ARGS__)
#define mpp_zero(r, ...) MPP_TEST_CALL(mpp_zero, r, __VA_ARGS__)
#define mpp_all_gather(r, ...) MPP_TEST_CALL(mpp_all_gather, r, __VA_ARGS__)
#define mpp_reduce_scatter(r, ...) MPP_TEST_CALL(mpp_reduce_scatter, r, __VA_ARGS__)
#define mpp_slice(r, ...) MPP_TEST_CALL(mpp_slice, r, __VA_ARGS__)
#define mpp_all_reduce_begin(r, ...) MPP_TEST_CALL(mpp_all_reduce_begin, r, __VA_ARGS__)
#define mpp_all_gather_begin(r, ...) MPP_TEST_CALL(mpp_all_gather_begin, r, __VA_ARGS__)
#define mpp_all_gather_begin_half(r, ...) MPP_TEST_CALL(mpp_all_gather_begin_half, r, __VA_ARGS__)
#define mpp_gather_wait(r, ...) MPP_TEST_CALL(mpp_gather_wait, r, __VA_ARGS__)
#define mpp_reduce_scatter_begin(r, ...) MPP_TEST_CALL(mpp_reduce_scatter_begin, r, __VA_ARGS__)
#define mpp_all_to_all(r, ...) MPP_TEST_CALL(mpp_all_to_all, r, __VA_ARGS__)
#define mpp_to_partial(r, ...) MPP_TEST_CALL(mpp_to_partial, r, __VA_ARGS__)
#define mpp_gemm(r, ...) MPP_TEST_CALL(mpp_gemm, r, __VA_ARGS__)
#define mpp_einsum(r, ...) MPP_TEST_CALL(mpp_einsum, r, __VA_ARGS__)
#define mpp_gemm_add(r, ...) MPP_TEST_CALL(mpp_gemm_add, r, __VA_ARGS__)
#define mpp_gemm_gelu(r, ...) MPP_TEST_CALL(mpp_gemm_gelu, r, __VA_ARGS__)
#define mpp_layernorm_forward(r, ...) MPP_TEST_CALL(mpp_layernorm_forward, r, __VA_ARGS__)
#define mpp_layernorm_backward(r, ...) MPP_TEST_CALL(mpp_layernorm_backward, r, __VA_ARGS__)
#define mpp_softmax_forward(r, ...) MPP_TEST_CALL(mpp_softmax_forward, r, __VA_ARGS__)
#define mpp_softmax_backward(r, ...) MPP_TEST_CALL(mpp_softmax_backward, r, __VA_ARGS__)
#define mpp_cross_entropy_forward(r, ...) MPP_TEST_CALL(mpp_cross_entropy_forward, r, __VA_ARGS__)
#define mpp_cross_entropy_backward(r, ...) MPP_TEST_CALL(mpp_cross_entropy_backward, r, __VA_ARGS__)
#define mpp_count_labels(r, ...) MPP_TEST_CALL(mpp_count_labels, r, __VA_ARGS__)
#define mpp_embedding_forward(r, ...) MPP_TEST_CALL(mpp_embedding_forward, r, __VA_ARGS__)
#define mpp_embedding_backward(r, ...) MPP_TEST_CALL(mpp_embedding_backward, r, __VA_ARGS__)
#define mpp_attention_forward(r, ...) MPP_TEST_CALL(mpp_attention_forward, r, __VA_ARGS__)
#define mpp_attention_backward(r, ...) MPP_TEST_CALL(mpp_attention_backward, r, __VA_ARGS__)
#define mpp_square_sum(r, ...) MPP_TEST_CALL(mpp_square_sum, r, __VA_ARGS__)
#define mpp_clip_scale(r, ...) MPP_TEST_CALL(mpp_clip_scale, r, __VA_ARGS__)
#define mpp_loss_scale(r, ...) ((mpp_loss_scale)(mpp_test_device(r), __VA_ARGS__), mpp_test_settle(r))
#define mpp_adamw(r, ...) MPP_TEST_CALL(mpp_adamw, r, __VA_ARGS__)
#define mpp_sgd(r, ...) MPP_TEST_CALL(mpp_sgd, r, __VA_ARGS__)
#define mpp_all_reduce_half(r, ...) MPP_TEST_CALL(mpp_all_reduce_half, r, __VA_ARGS__)
#define mpp_all_gather_half(r, ...) MPP_TEST_CALL(mpp_all_gather_half, r, __VA_ARGS__)
#define mpp_reduce_scatter_half(r, ...) MPP_TEST_CALL(mpp_reduce_scatter_half, r, __VA_ARGS__)
#define mpp_slice_half(r, ...) MPP_TEST_CALL(mpp_slice_half, r, __VA_ARGS__)
#define mpp_all_to_all_half(r, ...) MPP_TEST_CALL(mpp_all_to_all_half, r, __VA_ARGS__)
#define mpp_to_partial_half(r, ...) MPP_TEST_CALL(mpp_to_partial_half, r, __VA_ARGS__)
#define mpp_gemm_half(r, ...) MPP_TEST_CALL(mpp_gemm_half, r, __VA_ARGS__)
#define mpp_einsum_half(r, ...) MPP_TEST_CALL(mpp_einsum_half, r, __VA_ARGS__)
#define mpp_gemm_add_half(r, ...) MPP_TEST_CALL(mpp_gemm_add_half, r, __VA_ARGS__)
#define mpp_gemm_gelu_half(r, ...) MPP_TEST_CALL(mpp_gemm_gelu_half, r, __VA_ARGS__)
#define mpp_layernorm_forward_half(r, ...) MPP_TEST_CALL(mpp_layernorm_forward_half, r, __VA_ARGS__)
#define mpp_layernorm_backward_half(r, ...) MPP_TEST_CALL(mpp_layernorm_backward_half, r, __VA_ARGS__)
#define mpp_softmax_forward_half(r, ...) MPP_TEST_CALL(mpp_softmax_forward_half, r, __VA_ARGS__)
#define mpp_softmax_backward_half(r, ...) MPP_TEST_CALL(mpp_softmax_backward_half, r, __VA_ARGS__)
#define mpp_cross_entropy_forward_half(r, ...) MPP_TEST_CALL(mpp_cross_entropy_forward_half, r, __VA_ARGS__)
#define mpp_cross_entropy_backward_half(r, ...) MPP_TEST_CALL(mpp_cross_entropy_backward_half, r, __VA_ARGS__)
#define mpp_embedding_forward_half(r, ...) MPP_TEST_CALL(mpp_embedding_forward_half, r, __VA_ARGS__)
#define mpp_embedding_backward_half(r, ...) MPP_TEST_CALL(mpp_embedding_backward_half, r, __VA_ARGS__)
#define mpp_attention_forward_half(r, ...) MPP_TEST_CALL(mpp_attention_forward_half, r, __VA_ARGS__)
#define mpp_attention_backward_half(r, ...) MPP_TEST_CALL(mpp_attention_backward_half, r, __VA_ARGS__)

#endif
