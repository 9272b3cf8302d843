/* cublaslt.cpp - cublasLtMatmul by sgemm. 16-bit matrices are widened first, and the product rounded once, after its epilogue.
 * MPP_SHIM_EPILOGUES=0: there is no algorithm for any epilogue. */
#include <cblas.h>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <new>
#include <shim_capture.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" {
#include "mpp_math.h"
}

struct mpp_shim_blas {
    int unused;
};

struct mpp_shim_matmul {
    int transpose_a, transpose_b;
    bool tf32;
    uint32_t epilogue; /* 0: none was set */
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

struct mpp_shim_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};

struct mpp_shim_preference {
    uint64_t workspace_bytes;
};

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : status == CUBLAS_STATUS_INVALID_VALUE
               ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_ALLOC_FAILED";
}

template <class T> static cublasStatus_t create(T **out)
{
    *out = (T *)calloc(1, sizeof **out);
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t destroy(void *x)
{
    free(x);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    return create(out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t type, cudaDataType)
{
    cublasStatus_t code = create(out);
    if (code == CUBLAS_STATUS_SUCCESS)
        (*out)->tf32 = type == CUBLAS_COMPUTE_32F_FAST_TF32;
    return code;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

template <class T> static cublasStatus_t take(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return take(&desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return take(&desc->aux_ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasStatus_t code = create(out);
    if (code == CUBLAS_STATUS_SUCCESS)
        **out = mpp_shim_layout{type, rows, cols, ld, 1, 0};
    return rows > 0 && cols > 0 && ld >= (int64_t)rows ? code : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    bool batch = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (bytes != (batch ? sizeof layout->batch : sizeof layout->stride))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(batch ? (void *)&layout->batch : (void *)&layout->stride, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return create(out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
    bool workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (workspace ? sizeof(uint64_t) : sizeof(uint32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace)
        memcpy(&preference->workspace_bytes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

enum { BIAS = CUBLASLT_EPILOGUE_BIAS, GELU = CUBLASLT_EPILOGUE_GELU, AUX = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU };

/* What an epilogue asks for (cublasLt.h): the auxiliary matrix has a leading dimension that is a multiple of 8 and no less than the rows
 * of D, and lies at a multiple of 16 bytes. Batches have none here. */
static bool supported(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t d)
{
    const uint32_t e = desc->epilogue;
    if (e == 0 || e == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    const char *wanted = getenv("MPP_SHIM_EPILOGUES");
    bool known = (e & ~(uint32_t)(BIAS | GELU | AUX)) == 0 && (!(e & AUX) || (e & GELU));
    bool bias = !(e & BIAS) || desc->bias != NULL;
    bool aux = !(e & AUX) || (desc->aux != NULL && (uintptr_t)desc->aux % 16 == 0 && desc->aux_ld % 8 == 0 && desc->aux_ld >= (int64_t)d->rows);
    return known && bias && aux && d->batch == 1 && !(wanted != NULL && strcmp(wanted, "0") == 0);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *n_out)
{
    memset(results, 0, sizeof *results);
    *n_out = 0;
    if (!supported(desc, d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    results->algo.data[0] = 1;
    results->algo.data[1] = desc->epilogue;
    *n_out = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product -------------------------------------------------------------------------------------------- */

static float wide(cudaDataType type, const void *x, int64_t i)
{
    return type == CUDA_R_32F ? ((const float *)x)[i] : type == CUDA_R_16BF ? mpp_from_bf16(((const uint16_t *)x)[i])
                                                                           : mpp_from_f16(((const uint16_t *)x)[i]);
}

static void narrow(cudaDataType type, void *y, int64_t i, float v)
{
    if (type == CUDA_R_32F)
        ((float *)y)[i] = v;
    else
        ((uint16_t *)y)[i] = type == CUDA_R_16BF ? mpp_to_bf16(v) : mpp_to_f16(v);
}

/* Matrix number I of X, column-major, as floats with the same leading dimension. */
static const float *widened(const void *x, const mpp_shim_layout *l, int64_t i, std::vector<float> &buffer)
{
    int64_t at = i * l->stride, n = l->ld * ((int64_t)l->cols - 1) + (int64_t)l->rows;
    if (l->type == CUDA_R_32F)
        return (const float *)x + at;
    buffer.resize((size_t)n);
    const uint16_t *bits = (const uint16_t *)x + at;
    for (uint64_t c = 0; c < l->cols; c++)
        for (uint64_t r = 0; r < l->rows; r++) {
            int64_t k = (int64_t)c * l->ld + (int64_t)r;
            buffer[(size_t)k] = l->type == CUDA_R_16BF ? mpp_from_bf16(bits[k]) : mpp_from_f16(bits[k]);
        }
    return buffer.data();
}

static void rounded(const std::vector<float> &x, const mpp_shim_layout *l, void *y, int64_t i)
{
    uint16_t *bits = (uint16_t *)y + i * l->stride;
    for (uint64_t c = 0; c < l->cols; c++)
        for (uint64_t r = 0; r < l->rows; r++) {
            int64_t k = (int64_t)c * l->ld + (int64_t)r;
            bits[k] = l->type == CUDA_R_16BF ? mpp_to_bf16(x[(size_t)k]) : mpp_to_f16(x[(size_t)k]);
        }
}

/* The extent that is summed over: op(A)'s columns, op(B)'s rows. */
static uint64_t inner(const mpp_shim_layout *l, bool transpose, bool second)
{
    return transpose == second ? l->cols : l->rows;
}

/* A product with all that its descriptions said when it was asked for. */
struct product {
    mpp_shim_matmul desc;
    mpp_shim_layout a_layout, b_layout, d_layout;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
};

/* Z [m, n] holds the sums: the epilogue of one matrix. */
static void follow(const product *p, float *z)
{
    const mpp_shim_layout *l = &p->d_layout;
    const mpp_shim_matmul *desc = &p->desc;
    for (int64_t c = 0; c < (int64_t)l->cols; c++)
        for (int64_t r = 0; r < (int64_t)l->rows; r++) {
            float x = z[c * l->ld + r];
            if (desc->epilogue & BIAS)
                x += wide(l->type, desc->bias, r);
            if (desc->epilogue & AUX)
                narrow(l->type, desc->aux, c * desc->aux_ld + r, x);
            z[c * l->ld + r] = desc->epilogue & GELU ? mpp_gelu_tanh(x) : x;
        }
}

static void note(const mpp_shim_matmul *desc)
{
    const uint32_t e = desc->epilogue;
    if (e & GELU)
        mpp_shim_note(desc->tf32 ? "cublasLtMatmul_tf32_gelu" : "cublasLtMatmul_f32_gelu");
    else if (e & BIAS)
        mpp_shim_note(desc->tf32 ? "cublasLtMatmul_tf32_bias" : "cublasLtMatmul_f32_bias");
    else
        mpp_shim_note(desc->tf32 ? "cublasLtMatmul_tf32" : "cublasLtMatmul_f32");
}

/* Where floats are added to C, apart from D: D becomes C. */
static void begin(const product *p, float *z, int64_t i)
{
    const mpp_shim_layout *l = &p->d_layout;
    const float *from = (const float *)p->c + i * l->stride;
    for (int64_t c = 0; c < (int64_t)l->cols && p->beta != 0.0f && from != z; c++)
        memcpy(z + c * l->ld, from + c * l->ld, l->rows * sizeof *z);
}

static int multiply(const product *p)
{
    const mpp_shim_layout *la = &p->a_layout, *lb = &p->b_layout, *ld = &p->d_layout;
    bool ta = p->desc.transpose_a, tb = p->desc.transpose_b;
    uint64_t k = inner(la, ta, false), m = ld->rows, n = ld->cols;
    std::vector<float> wide_a, wide_b, wide_d;
    note(&p->desc);
    for (int64_t i = 0; i < ld->batch; i++) {
        const float *x = widened(p->a, la, i, wide_a), *y = widened(p->b, lb, i, wide_b);
        float *z = (float *)p->d + i * ld->stride;
        if (ld->type != CUDA_R_32F)
            z = const_cast<float *>(widened(p->c, ld, i, wide_d));
        else
            begin(p, z, i);
        cblas_sgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, p->alpha, x,
                    (int)la->ld, y, (int)lb->ld, p->beta, z, (int)ld->ld);
        if (p->desc.epilogue > CUBLASLT_EPILOGUE_DEFAULT)
            follow(p, z);
        if (ld->type != CUDA_R_32F)
            rounded(wide_d, ld, p->d, i);
    }
    return 0;
}

static bool alike(const mpp_shim_layout *x, const mpp_shim_layout *y)
{
    return x->type == y->type && x->rows == y->rows && x->cols == y->cols && x->ld == y->ld && x->batch == y->batch && x->stride == y->stride;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,
                              void *, size_t, cudaStream_t stream)
{
    bool ta = desc->transpose_a, tb = desc->transpose_b;
    uint64_t k = inner(la, ta, false), m = ld->rows, n = ld->cols;
    if (algo == NULL || algo->data[0] != 1 || algo->data[1] != desc->epilogue || !alike(lc, ld) || (ta ? la->cols : la->rows) != m ||
        (tb ? lb->rows : lb->cols) != n || inner(lb, tb, true) != k || la->batch != ld->batch || lb->batch != ld->batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(desc, ld))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const product p = {*desc, *la, *lb, *ld, *(const float *)alpha, *(const float *)beta, a, b, c, d};
    return mpp_shim_do(stream, p, multiply) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
