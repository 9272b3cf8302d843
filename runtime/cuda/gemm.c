/* Contractions by cuBLASLt, on the operands where they lie (core/contraction.h). Row-major C = A B is column-major C' = B' A'.
 * The algorithm for a product of given sizes is asked for once. Products are computed in f32; MPP_TF32=1 in the environment lets
 * those of f32 matrices round their operands to TF32. A bias that follows a product is its epilogue, where cuBLASLt has an algorithm
 * for that, else a kernel's; a residual is its C, apart from D.
 *
 * GELU is the epilogue's only where that is known to gain: in 16 bits or TF32 (its tanh is not a float's), on GPUs from compute
 * capability 9 on (before, it takes longer than a kernel: github.com/karpathy/llm.c, pull requests 338 and 653).
 * MPP_GELU_EPILOGUE=1 or 0 in the environment: always, never. */
#include <stdlib.h>
#include <string.h>

#include "core/contraction.h"
#include "core/fail.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/kernels_copy.h"
#include "cuda/kernels_epilogue.h"
#include "mpp_rt.h"

enum {
    MOST_PRODUCTS = 4096, /* of different sizes; more are asked for again and again */
    AUX_MULTIPLE = 8,     /* what cuBLASLt wants of the auxiliary matrix: its leading dimension, */
    AUX_BYTES = 16,       /* and its address */
    GELU_CAPABILITY = 9,
};

/* D [m, n] = op(A) op(B) + beta C in row-major terms, N_BATCH times at the strides; C and D are alike. */
struct product {
    enum mpp_type type, c_type;
    int32_t trans_a, trans_b, batch;
    uint32_t align_a, align_b, align_c, align_d; /* bytes that divide the addresses, up to 16 */
    uint32_t epilogue, align_bias, align_aux;    /* cublasLtEpilogue_t; 0: there is none */
    int64_t m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c;
};

/* What an epilogue works on. */
struct after {
    const void *bias;
    void *aux;            /* takes what GELU is of; laid out like D */
};

struct known {
    struct product key;
    bool used, refused;   /* refused: cuBLASLt has none for it */
    cublasLtMatmulAlgo_t algorithm;
};

struct mpp_products {
    bool tf32, gelu, gelu_of_f32; /* GELU is an epilogue, also in f32 */
    int n;
    struct known table[2 * MOST_PRODUCTS];
};

struct mpp_products *mpp_products_new(int ordinal)
{
    struct mpp_products *p = calloc(1, sizeof *p);
    struct cudaDeviceProp about;
    const char *tf32 = getenv("MPP_TF32"), *gelu = getenv("MPP_GELU_EPILOGUE");
    if (p == NULL)
        return NULL;
    p->tf32 = tf32 != NULL && strcmp(tf32, "1") == 0;
    if (gelu != NULL && *gelu != 0)
        p->gelu = p->gelu_of_f32 = strcmp(gelu, "1") == 0;
    else if (cudaGetDeviceProperties(&about, ordinal) == cudaSuccess) {
        p->gelu = about.major >= GELU_CAPABILITY;
        p->gelu_of_f32 = p->gelu && p->tf32;
    }
    return p;
}

bool mpp_products_tf32(const struct mpp_products *p)
{
    return p->tf32;
}

/* ---- cuBLASLt's descriptions ----------------------------------------------------------------------------- */

struct description {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
};

static cudaDataType data_type(enum mpp_type type)
{
    return type == MPP_TYPE_BF16 ? CUDA_R_16BF : type == MPP_TYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* A row-major matrix [rows, cols] as the column-major one of its transpose. */
static cublasLtMatrixLayout_t layout_of(const struct mpp_rank *r, enum mpp_type type, int64_t rows, int64_t cols, int64_t ld,
                                        int32_t batch, int64_t stride)
{
    cublasLtMatrixLayout_t l;
    MPP_BLAS_CHECK(r, cublasLtMatrixLayoutCreate(&l, data_type(type), (uint64_t)cols, (uint64_t)rows, ld));
    if (batch > 1) {
        MPP_BLAS_CHECK(r, cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
        MPP_BLAS_CHECK(r, cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    }
    return l;
}

/* Its A is our B, and the other way round. */
static struct description describe(const struct mpp_rank *r, const struct product *p, const struct after *after)
{
    struct description d;
    bool tf32 = r->device->products->tf32 && p->type == MPP_TYPE_F32;
    int32_t ta = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    MPP_BLAS_CHECK(r, cublasLtMatmulDescCreate(&d.desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    d.a = layout_of(r, p->type, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, p->ldb, p->batch, p->stride_b);
    d.b = layout_of(r, p->type, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, p->lda, p->batch, p->stride_a);
    d.c = layout_of(r, p->c_type, p->m, p->n, p->ldc, p->batch, p->stride_c);
    if (p->epilogue == 0)
        return d;
    MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
    if (after->bias != NULL)
        MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &after->bias, sizeof after->bias));
    if (after->aux != NULL) {
        MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &after->aux, sizeof after->aux));
        MPP_BLAS_CHECK(r, cublasLtMatmulDescSetAttribute(d.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->ldc, sizeof p->ldc));
    }
    return d;
}

static void forget(struct description *d)
{
    cublasLtMatrixLayoutDestroy(d->a);
    cublasLtMatrixLayoutDestroy(d->b);
    cublasLtMatrixLayoutDestroy(d->c);
    cublasLtMatmulDescDestroy(d->desc);
}

/* ---- chosen algorithms ------------------------------------------------------------------------------------- */

/* False: cuBLASLt has none, which only an epilogue may meet. */
static bool ask(const struct mpp_rank *r, const struct product *p, const struct description *d, cublasLtMatmulAlgo_t *out)
{
    static const uint64_t workspace_bytes = MPP_BLAS_WORKSPACE_BYTES;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found = {0};
    int n = 0;
    MPP_BLAS_CHECK(r, cublasLtMatmulPreferenceCreate(&wish));
    MPP_BLAS_CHECK(r, cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                           sizeof workspace_bytes));
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        const uint32_t *bytes;
    } alignment[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->align_b}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->align_a},
                     {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->align_c}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->align_d}};
    for (int i = 0; i < 4; i++)
        MPP_BLAS_CHECK(r, cublasLtMatmulPreferenceSetAttribute(wish, alignment[i].which, alignment[i].bytes, sizeof(uint32_t)));
    cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(r->device->blas, d->desc, d->a, d->b, d->c, d->c, wish, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    *out = found.algo;
    bool none = code != CUBLAS_STATUS_SUCCESS || n == 0;
    if (none && p->epilogue == 0)
        mpp_blas_check(r, code == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : code, "cublasLtMatmulAlgoGetHeuristic");
    return !none;
}

static uint64_t hash_of(const struct product *p)
{
    const unsigned char *bytes = (const unsigned char *)p;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *p; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

/* P was made of zeros, so that its bytes compare. */
static struct known *find(struct mpp_products *known, const struct product *p)
{
    uint64_t at = hash_of(p) % (2 * MOST_PRODUCTS);
    while (known->table[at].used && memcmp(&known->table[at].key, p, sizeof *p) != 0)
        at = (at + 1) % (2 * MOST_PRODUCTS);
    return &known->table[at];
}

static void keep(struct mpp_products *known, const struct product *p, const cublasLtMatmulAlgo_t *algorithm, bool refused)
{
    struct known *at = find(known, p);
    if (!at->used && known->n >= MOST_PRODUCTS)
        return;
    known->n += !at->used;
    at->used = true;
    at->refused = refused;
    at->key = *p;
    at->algorithm = *algorithm;
}

/* False: there is none for its epilogue. */
static bool algorithm_of(const struct mpp_rank *r, const struct product *p, const struct description *d, cublasLtMatmulAlgo_t *out)
{
    const struct known *at = find(r->device->products, p);
    *out = at->algorithm;
    if (at->used)
        return !at->refused;
    bool found = ask(r, p, d, out);
    keep(r->device->products, p, out, !found);
    return found;
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static uint32_t alignment_of(const void *x)
{
    uint32_t bytes = 16;
    while ((uintptr_t)x % bytes != 0)
        bytes /= 2;
    return bytes;
}

/* D = A B + beta C and what follows. False: cuBLASLt can't do that epilogue, and D is as it was. */
static bool multiply(struct mpp_rank *r, struct product *p, const struct after *after, const void *a, const void *b, float beta,
                     const void *c, void *d)
{
    const float one = 1.0f;
    struct mpp_device *device = r->device;
    p->align_a = alignment_of(a);
    p->align_b = alignment_of(b);
    p->align_c = alignment_of(c);
    p->align_d = alignment_of(d);
    p->align_bias = alignment_of(after->bias);
    p->align_aux = alignment_of(after->aux);
    struct description desc = describe(r, p, after);
    cublasLtMatmulAlgo_t algorithm;
    bool found = algorithm_of(r, p, &desc, &algorithm);
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    if (found)
        code = cublasLtMatmul(device->blas, desc.desc, &one, b, desc.a, a, desc.b, &beta, c, desc.c, d, desc.c, &algorithm,
                              device->blas_workspace, MPP_BLAS_WORKSPACE_BYTES, device->compute);
    forget(&desc);
    if (p->epilogue != 0 && (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE)) {
        keep(device->products, p, &algorithm, true);
        return false;
    }
    mpp_blas_check(r, code, "cublasLtMatmul");
    return found;
}

static void multiply_only(struct mpp_rank *r, struct product *p, const void *a, const void *b, float beta, void *c)
{
    (void)multiply(r, p, &(const struct after){0}, a, b, beta, c, c);
}

static int64_t type_bytes(enum mpp_type type)
{
    return type == MPP_TYPE_BF16 || type == MPP_TYPE_F16 ? 2 : 4;
}

static struct product one_product(enum mpp_type type, enum mpp_type c_type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                                  int64_t lda, int64_t ldb, int64_t ldc)
{
    struct product p;
    memset(&p, 0, sizeof p);
    p.type = type;
    p.c_type = c_type;
    p.trans_a = trans_a;
    p.trans_b = trans_b;
    p.batch = 1;
    p.m = m, p.n = n, p.k = k;
    p.lda = lda, p.ldb = ldb, p.ldc = ldc;
    return p;
}

static void gemm(struct mpp_rank *r, struct product p, const void *a, const void *b, float beta, void *c)
{
    mpp_cuda_moves(r);
    if (p.m <= 0 || p.n <= 0)
        return;
    size_t bytes = (size_t)type_bytes(p.c_type);
    if (p.k > 0)
        multiply_only(r, &p, a, b, beta, c);
    else if (beta == 0.0f)
        MPP_CUDA_CHECK(r, cudaMemset2DAsync(c, (size_t)p.ldc * bytes, 0, (size_t)p.n * bytes, (size_t)p.m, mpp_stream(r)));
}

void mpp_gemm(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
              const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    gemm(r, one_product(MPP_TYPE_F32, MPP_TYPE_F32, trans_a, trans_b, m, n, k, lda, ldb, ldc), a, b, beta, c);
}

void mpp_gemm_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, bool trans_a, bool trans_b, int64_t m, int64_t n,
                   int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, float beta, void *c, int64_t ldc)
{
    gemm(r, one_product(type, c_type, trans_a, trans_b, m, n, k, lda, ldb, ldc), a, b, beta, c);
}

/* ---- products with an epilogue ------------------------------------------------------------------------------------ */

/* D = A B + RESIDUAL + BIAS (each may be NULL), in the place of the residual or elsewhere. Returns BIAS where that is still to be added. */
static const void *begin(struct mpp_rank *r, struct product p, const void *a, const void *b, const void *bias, const void *residual, void *d)
{
    size_t bytes = (size_t)type_bytes(p.c_type), pitch = (size_t)p.ldc * bytes, width = (size_t)p.n * bytes;
    const struct after none = {0}, after = {.bias = bias};
    const void *c = residual != NULL ? residual : d;
    float beta = residual != NULL ? 1.0f : 0.0f;
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (bias != NULL && p.k > 0 && multiply(r, &p, &after, a, b, beta, c, d))
        return NULL;
    p.epilogue = 0;
    if (p.k > 0)
        (void)multiply(r, &p, &none, a, b, beta, c, d);
    else if (residual == NULL)
        MPP_CUDA_CHECK(r, cudaMemset2DAsync(d, pitch, 0, width, (size_t)p.m, mpp_stream(r)));
    else if (residual != d)
        MPP_CUDA_CHECK(r, cudaMemcpy2DAsync(d, pitch, residual, pitch, width, (size_t)p.m, cudaMemcpyDeviceToDevice, mpp_stream(r)));
    return bias;
}

static void gemm_add(struct mpp_rank *r, struct product p, const void *a, const void *b, const void *bias, const void *residual, void *y)
{
    mpp_cuda_moves(r);
    if (p.m <= 0 || p.n <= 0)
        return;
    const void *rest = begin(r, p, a, b, bias, residual, y);
    if (rest != NULL)
        mpp_cuda_epilogue(r, p.c_type, p.m, p.n, p.ldc, y, rest, false, NULL, y);
}

/* PRE (NULL: none) and Y by one call of cuBLASLt; false: nothing is done. */
static bool gelu_by_epilogue(struct mpp_rank *r, struct product p, const void *a, const void *b, const void *bias, void *pre, void *y)
{
    const struct mpp_products *products = r->device->products;
    const struct after after = {.bias = bias, .aux = pre};
    bool wanted = p.c_type == MPP_TYPE_F32 ? products->gelu_of_f32 : products->gelu;
    bool fits = pre == NULL || (p.ldc % AUX_MULTIPLE == 0 && (uintptr_t)pre % AUX_BYTES == 0);
    p.epilogue = bias == NULL ? pre == NULL ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_AUX
                 : pre == NULL ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    return wanted && fits && p.k > 0 && multiply(r, &p, &after, a, b, 0.0f, y, y);
}

static void gemm_gelu(struct mpp_rank *r, struct product p, const void *a, const void *b, const void *bias, void *pre, void *y)
{
    mpp_cuda_moves(r);
    if (p.m <= 0 || p.n <= 0 || gelu_by_epilogue(r, p, a, b, bias, pre, y))
        return;
    void *x = pre != NULL ? pre : y;
    const void *rest = begin(r, p, a, b, bias, NULL, x);
    mpp_cuda_epilogue(r, p.c_type, p.m, p.n, p.ldc, x, rest, true, rest != NULL ? pre : NULL, y);
}

void mpp_gemm_add(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, const float *bias, const float *residual, float *y, int64_t ldy)
{
    gemm_add(r, one_product(MPP_TYPE_F32, MPP_TYPE_F32, trans_a, trans_b, m, n, k, lda, ldb, ldy), a, b, bias, residual, y);
}

void mpp_gemm_gelu(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                   const float *b, int64_t ldb, const float *bias, float *pre, float *y, int64_t ldy)
{
    gemm_gelu(r, one_product(MPP_TYPE_F32, MPP_TYPE_F32, trans_a, trans_b, m, n, k, lda, ldb, ldy), a, b, bias, pre, y);
}

void mpp_gemm_add_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                       const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, const void *residual, void *y,
                       int64_t ldy)
{
    gemm_add(r, one_product(type, type, trans_a, trans_b, m, n, k, lda, ldb, ldy), a, b, bias, residual, y);
}

void mpp_gemm_gelu_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                        const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, void *pre, void *y, int64_t ldy)
{
    gemm_gelu(r, one_product(type, type, trans_a, trans_b, m, n, k, lda, ldb, ldy), a, b, bias, pre, y);
}

/* ---- contractions ------------------------------------------------------------------------------------------------ */

/* Of the letters that the product leaves out, the longest one that C has: its indices are one batch. NULL: none. */
static const struct mpp_factor *batch_letter(const struct mpp_contraction *e, const struct mpp_choice *x)
{
    const struct mpp_factor *best = NULL;
    for (int i = 0; i < e->n_factors; i++) {
        const struct mpp_factor *f = &e->factor[i];
        if (i == x->m || i == x->n || i == x->k || f->tensors == MPP_CLASS_K || f->extent > INT32_MAX)
            continue;
        if (best == NULL || f->extent > best->extent)
            best = f;
    }
    return best;
}

static struct product product_of(const struct mpp_contraction *e, const struct mpp_choice *x, const struct mpp_factor *batch,
                                 enum mpp_type type, enum mpp_type c_type)
{
    int a = x->swap ? MPP_OPERAND_B : MPP_OPERAND_A, b = x->swap ? MPP_OPERAND_A : MPP_OPERAND_B;
    struct product p;
    memset(&p, 0, sizeof p);
    p.type = type;
    p.c_type = c_type;
    p.trans_a = x->a.trans;
    p.trans_b = x->b.trans;
    p.batch = batch != NULL ? (int32_t)batch->extent : 1;
    p.m = mpp_contraction_extent(e, x->m);
    p.n = mpp_contraction_extent(e, x->n);
    p.k = mpp_contraction_extent(e, x->k);
    p.lda = x->a.ld;
    p.ldb = x->b.ld;
    p.ldc = x->c.ld;
    if (batch != NULL) {
        p.stride_a = batch->stride[a];
        p.stride_b = batch->stride[b];
        p.stride_c = batch->stride[MPP_RESULT];
    }
    return p;
}

static void contract(struct mpp_rank *r, const struct mpp_contraction *e, const struct mpp_choice *x, enum mpp_type type,
                     enum mpp_type c_type, const char *a, const char *b, float beta, char *c)
{
    const struct mpp_factor *batch = batch_letter(e, x);
    struct product p = product_of(e, x, batch, type, c_type);
    struct mpp_loops outer = {0}, inner = {0};
    int64_t bytes = type_bytes(type);
    for (int i = 0; i < e->n_factors; i++)
        if (i != x->m && i != x->n && i != x->k && &e->factor[i] != batch)
            mpp_loops_add(e->factor[i].tensors == MPP_CLASS_K ? &inner : &outer, &e->factor[i]);
    if (p.batch == 0 || p.m == 0 || p.n == 0 || mpp_loops_count(&outer) == 0)
        return;
    do {
        float sum = beta;
        do {
            const char *u = a + bytes * (outer.offset[MPP_OPERAND_A] + inner.offset[MPP_OPERAND_A]);
            const char *v = b + bytes * (outer.offset[MPP_OPERAND_B] + inner.offset[MPP_OPERAND_B]);
            multiply_only(r, &p, x->swap ? v : u, x->swap ? u : v, sum, c + type_bytes(c_type) * outer.offset[MPP_RESULT]);
            sum = 1.0f;
        } while (mpp_loops_step(&inner));
    } while (mpp_loops_step(&outer));
}

/* Where several products add to one element of a 16-bit C, it would be rounded each time: the sums are formed without. */
static bool rounds_often(const struct mpp_contraction *e, const struct mpp_choice *x, enum mpp_type c_type)
{
    bool often = false;
    for (int i = 0; i < e->n_factors; i++)
        often = often || (e->factor[i].tensors == MPP_CLASS_K && i != x->k);
    return often && c_type != MPP_TYPE_F32;
}

static void einsum(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, const char *equation, const void *a,
                   const int64_t *a_dims, const void *b, const int64_t *b_dims, float beta, void *c, const int64_t *c_dims,
                   const int64_t *valid)
{
    struct mpp_contraction e = mpp_contraction_read(equation, a_dims, b_dims, c_dims, valid);
    struct mpp_choice x;
    mpp_cuda_moves(r);
    if (mpp_contraction_choose(&e, &x) && !rounds_often(&e, &x, c_type))
        contract(r, &e, &x, type, c_type, a, b, beta, c);
    else
        mpp_cuda_plain_contraction(r, &e, type, c_type, a, b, beta, c);
}

void mpp_einsum(struct mpp_rank *r, const char *equation, const float *a, const int64_t *a_dims, const float *b,
                const int64_t *b_dims, float beta, float *c, const int64_t *c_dims, const int64_t *valid)
{
    einsum(r, MPP_TYPE_F32, MPP_TYPE_F32, equation, a, a_dims, b, b_dims, beta, c, c_dims, valid);
}

void mpp_einsum_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, const char *equation, const void *a,
                     const int64_t *a_dims, const void *b, const int64_t *b_dims, float beta, void *c, const int64_t *c_dims,
                     const int64_t *valid)
{
    einsum(r, type, c_type, equation, a, a_dims, b, b_dims, beta, c, c_dims, valid);
}
