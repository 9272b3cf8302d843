/* conformance.h - included before the runtime's tests (gcc -include), so that those that were written for the host's kernels run
 * on CUDA's: a rank without a device gets its thread's own when it first calls. */
#ifndef MPP_CONFORMANCE_H
#define MPP_CONFORMANCE_H

#include "mpp_rt.h"

/* Returns R, with a device. */
struct mpp_rank *mpp_test_device(struct mpp_rank *r);
/* The same, waited for: r->skipped is what the device has. */
void mpp_test_settle(struct mpp_rank *r);

/* Tests of rows bring an all-reduce of their own (kernels_testing.h). */
#ifdef MPP_CONFORMANCE_COLLECTIVES
#define mpp_all_reduce(r, ...) (mpp_all_reduce)(mpp_test_device(r), __VA_ARGS__)
#endif
#define mpp_send(r, ...) (mpp_send)(mpp_test_device(r), __VA_ARGS__)
#define mpp_receive(r, ...) (mpp_receive)(mpp_test_device(r), __VA_ARGS__)
#define mpp_sum_over_stages(r, ...) (mpp_sum_over_stages)(mpp_test_device(r), __VA_ARGS__)
#define mpp_copy(r, ...) (mpp_copy)(mpp_test_device(r), __VA_ARGS__)
#define mpp_zero(r, ...) (mpp_zero)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_gather(r, ...) (mpp_all_gather)(mpp_test_device(r), __VA_ARGS__)
#define mpp_reduce_scatter(r, ...) (mpp_reduce_scatter)(mpp_test_device(r), __VA_ARGS__)
#define mpp_slice(r, ...) (mpp_slice)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_reduce_begin(r, ...) (mpp_all_reduce_begin)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_gather_begin(r, ...) (mpp_all_gather_begin)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_gather_begin_half(r, ...) (mpp_all_gather_begin_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_gather_wait(r, ...) (mpp_gather_wait)(mpp_test_device(r), __VA_ARGS__)
#define mpp_reduce_scatter_begin(r, ...) (mpp_reduce_scatter_begin)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_to_all(r, ...) (mpp_all_to_all)(mpp_test_device(r), __VA_ARGS__)
#define mpp_to_partial(r, ...) (mpp_to_partial)(mpp_test_device(r), __VA_ARGS__)
#define mpp_gemm(r, ...) (mpp_gemm)(mpp_test_device(r), __VA_ARGS__)
#define mpp_einsum(r, ...) (mpp_einsum)(mpp_test_device(r), __VA_ARGS__)
#define mpp_layernorm_forward(r, ...) (mpp_layernorm_forward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_layernorm_backward(r, ...) (mpp_layernorm_backward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_softmax_forward(r, ...) (mpp_softmax_forward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_softmax_backward(r, ...) (mpp_softmax_backward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_cross_entropy_forward(r, ...) (mpp_cross_entropy_forward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_cross_entropy_backward(r, ...) (mpp_cross_entropy_backward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_count_labels(r, ...) (mpp_count_labels)(mpp_test_device(r), __VA_ARGS__)
#define mpp_embedding_forward(r, ...) (mpp_embedding_forward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_embedding_backward(r, ...) (mpp_embedding_backward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_attention_forward(r, ...) (mpp_attention_forward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_attention_backward(r, ...) (mpp_attention_backward)(mpp_test_device(r), __VA_ARGS__)
#define mpp_square_sum(r, ...) (mpp_square_sum)(mpp_test_device(r), __VA_ARGS__)
#define mpp_clip_scale(r, ...) (mpp_clip_scale)(mpp_test_device(r), __VA_ARGS__)
#define mpp_loss_scale(r, ...) ((mpp_loss_scale)(mpp_test_device(r), __VA_ARGS__), mpp_test_settle(r))
#define mpp_adamw(r, ...) (mpp_adamw)(mpp_test_device(r), __VA_ARGS__)
#define mpp_sgd(r, ...) (mpp_sgd)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_reduce_half(r, ...) (mpp_all_reduce_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_gather_half(r, ...) (mpp_all_gather_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_reduce_scatter_half(r, ...) (mpp_reduce_scatter_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_slice_half(r, ...) (mpp_slice_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_all_to_all_half(r, ...) (mpp_all_to_all_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_to_partial_half(r, ...) (mpp_to_partial_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_gemm_half(r, ...) (mpp_gemm_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_einsum_half(r, ...) (mpp_einsum_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_layernorm_forward_half(r, ...) (mpp_layernorm_forward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_layernorm_backward_half(r, ...) (mpp_layernorm_backward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_softmax_forward_half(r, ...) (mpp_softmax_forward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_softmax_backward_half(r, ...) (mpp_softmax_backward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_cross_entropy_forward_half(r, ...) (mpp_cross_entropy_forward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_cross_entropy_backward_half(r, ...) (mpp_cross_entropy_backward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_embedding_forward_half(r, ...) (mpp_embedding_forward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_embedding_backward_half(r, ...) (mpp_embedding_backward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_attention_forward_half(r, ...) (mpp_attention_forward_half)(mpp_test_device(r), __VA_ARGS__)
#define mpp_attention_backward_half(r, ...) (mpp_attention_backward_half)(mpp_test_device(r), __VA_ARGS__)

#endif
