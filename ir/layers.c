#include "ir/layers.h"

#include "ir/build.h"

enum { MANY = MPP_BUILD_MAX_IO };

#define WEIGHTS "weight:string, weight_name:string, "

/* Ops that stand in the model file under the name, and with the attributes, of their row in ops.def come
 * first; then those whose attributes differ or that expand into several ops. */
static const struct mpp_layer layers[] = {
    {"Identity", "", 1, 1, mpp_layer_direct},
    {"Add", "", 2, 2, mpp_layer_direct},
    {"Sub", "", 2, 2, mpp_layer_direct},
    {"Mul", "", 2, 2, mpp_layer_direct},
    {"Div", "", 2, 2, mpp_layer_direct},
    {"Sum", "", 1, MANY, mpp_layer_direct},
    {"Min", "", 2, 2, mpp_layer_direct},
    {"Max", "", 2, 2, mpp_layer_direct},
    {"Scale", "value:float*", 1, 1, mpp_layer_direct},
    {"Neg", "", 1, 1, mpp_layer_direct},
    {"Exp", "", 1, 1, mpp_layer_direct},
    {"Log", "", 1, 1, mpp_layer_direct},
    {"Sqrt", "", 1, 1, mpp_layer_direct},
    {"Reciprocal", "", 1, 1, mpp_layer_direct},
    {"Erf", "", 1, 1, mpp_layer_direct},
    {"Tanh", "", 1, 1, mpp_layer_direct},
    {"Sigmoid", "", 1, 1, mpp_layer_direct},
    {"Relu", "", 1, 1, mpp_layer_direct},
    {"Gelu", "approximate:{none|tanh}=none", 1, 1, mpp_layer_direct},
    {"Einsum", "equation:string*", 2, 2, mpp_layer_direct},
    {"Swish", "alpha:float=1", 1, 1, mpp_layer_swish},
    {"SwiGLU", "alpha:float=1", 2, 2, mpp_layer_swiglu},
    {"Pow", "exponent:float*", 1, 1, mpp_layer_pow},
    {"Clip", "min:float, max:float", 1, 1, mpp_layer_clip},
    {"Dropout", "ratio:float=0.5", 1, 1, mpp_layer_dropout},
    {"Softmax", "axis:int=-1", 1, 1, mpp_layer_softmax},
    {"MatMul", "trans_a:bool=false, trans_b:bool=false", 2, 2, mpp_layer_matmul},
    {"ReduceSum", "axes:ints, keepdims:bool=true", 1, 1, mpp_layer_reduce},
    {"ReduceMean", "axes:ints, keepdims:bool=true", 1, 1, mpp_layer_reduce_mean},
    {"ReduceMax", "axes:ints, keepdims:bool=true", 1, 1, mpp_layer_reduce},
    {"Transpose", "perm:ints*", 1, 1, mpp_layer_transpose},
    {"Reshape", "shape:dims*", 1, 1, mpp_layer_reshape},
    {"Flatten", "axis:int=1", 1, 1, mpp_layer_flatten},
    {"Squeeze", "axes:ints*", 1, 1, mpp_layer_squeeze},
    {"Unsqueeze", "axes:ints*", 1, 1, mpp_layer_unsqueeze},
    {"Expand", "shape:dims*", 1, 1, mpp_layer_expand},
    {"Split", "axis:int=0, num_outputs:int, sizes:ints", 1, 1, mpp_layer_split},
    {"Concat", "axis:int*, stack:bool=false", 1, MANY, mpp_layer_concat},
    {"Constant", "shape:dims, value:float*", 0, 0, mpp_layer_constant},
    {"Parameter", "shape:dims*, init:init=zeros, published:string", 0, 0, mpp_layer_parameter},
    {"Linear",
     "units:dims*, contract:int=1, bias:bool=true, " WEIGHTS
     "bias_name:string, weight_layout:{out_in|in_out}=out_in, init:init=kaiming_uniform, bias_init:init=zeros, "
     "activation:{relu|gelu|gelu_tanh|tanh|sigmoid}",
     1, 1, mpp_layer_linear},
    {"Embedding", "num_embeddings:dims*, embedding_dim:dims*, " WEIGHTS "init:init=normal(0,1)", 1, 1,
     mpp_layer_embedding},
    {"PositionEmbedding", "max_positions:dims*, embedding_dim:dims*, " WEIGHTS "init:init=normal(0,1)", 1, 1,
     mpp_layer_position_embedding},
    {"LayerNormalization", "epsilon:float=1e-5, affine:bool=true, bias:bool=true, weight_name:string, bias_name:string",
     1, 1, mpp_layer_layer_normalization},
    {"RMSNormalization", "epsilon:float=1e-6, affine:bool=true, weight_name:string", 1, 1,
     mpp_layer_rms_normalization},
    {"Attention", "causal:bool=false, scale:float, dropout:float=0", 3, 4, mpp_layer_attention},
    {"SoftmaxCrossEntropyLoss", "reduction:{mean|sum}=mean, ignore_index:int", 2, 2, mpp_layer_cross_entropy},
    {"MeanSquaredErrorLoss", "reduction:{mean|sum}=mean", 2, 2, mpp_layer_mean_squared_error},
};

const struct mpp_layer *mpp_layers(int *out_n)
{
    *out_n = (int)(sizeof layers / sizeof layers[0]);
    return layers;
}
