/* Embedding tables, of which a rank may have a shard: rows by their ids, and the gradient, the sums of the rows of each id.
 *
 * For the gradient rows are sorted by id, those of one id in their order: a stable radix sort, DIGIT_BITS at a time from the lowest.
 * What it counts are integers, each by one thread, so nothing depends on who comes first. The sorted rows are then cut into chunks
 * of one length; sums of ids that lie within one go to the table, and of ids that go on in the next one as parts, which a second
 * kernel adds in order. An id that has half of all rows is shared by half of the blocks so. All of it takes time linear in the rows. */
#include "cuda/rows.cuh"

enum {
    DIGIT_BITS = 4,
    DIGITS = 1 << DIGIT_BITS,
    SORT_THREADS = 128,
    SORT_EACH = 8,                          /* rows of a thread, side by side */
    SORT_TILE = SORT_THREADS * SORT_EACH,   /* rows of a block */
    SORT_WARPS = SORT_THREADS / MPP_WARP,
    CHUNK_LEAST = 16,                       /* rows */
    CHUNK_PARTS = 2 * 512 * 32 * 8,         /* chunks times columns, but for a last chunk: two doubles of each (codegen/beside.c) */
    AHEAD = 4,                              /* rows that a thread reads before it adds them */
};

#define SORT_SHARED (DIGITS * SORT_THREADS * sizeof(int32_t))

/* The valid rows of a table's operand. */
struct id_rows {
    struct mpp_valid_rows rows;
    struct mpp_extent vocab;
    const int32_t *ids;
};

/* Where ID stands in the shard; vocab.valid: in another one. */
static __device__ __forceinline__ int64_t key_of(int32_t id, const struct mpp_extent &vocab)
{
    int64_t key = id - vocab.offset;
    return key >= 0 && key < vocab.valid ? key : vocab.valid;
}

static __device__ __forceinline__ int64_t key_at(const struct id_rows &t, int64_t k)
{
    return key_of(mpp_read(t.ids, mpp_row_at(t.rows, k)), t.vocab);
}

/* ---- forward ---------------------------------------------------------------------------------------- */

/* Threads take packs of W columns. */
template <class T, int W>
__global__ void embedding_kernel(struct id_rows t, int64_t width, const T *table, T *y)
{
    const int64_t packs = width / W;
    MPP_EACH(i, t.rows.n * packs) {
        int64_t row = mpp_row_at(t.rows, i / packs), j = i % packs * W, key = key_of(mpp_read(t.ids, row), t.vocab);
        mpp_pack<T, W> value = {};
        if (key < t.vocab.valid)
            value = mpp_read_pack<W>(table, key * width + j);
        mpp_write_pack<W>(y, row * width + j, value);
    }
}

static struct id_rows id_rows_of(const struct mpp_space *space, struct mpp_extent vocab, const int32_t *ids)
{
    struct id_rows t;
    t.rows = mpp_valid_rows_of(space);
    t.vocab = vocab;
    t.ids = ids;
    return t;
}

template <class T>
static void embedding_forward(struct mpp_rank *r, const struct id_rows &t, int64_t width, const T *table, T *y)
{
    if (mpp_packs(width) && mpp_aligned(table, y))
        MPP_LAUNCH(r, (embedding_kernel<T, 4>), mpp_grid(t.rows.n * width / 4, MPP_BLOCK), MPP_BLOCK, 0, t, width, table, y);
    else
        MPP_LAUNCH(r, (embedding_kernel<T, 1>), mpp_grid(t.rows.n * width, MPP_BLOCK), MPP_BLOCK, 0, t, width, table, y);
}

/* ---- rows in the order of their ids ------------------------------------------------------------------- */

/* The row in place I of ORDER; NULL: they are in their own. */
static __device__ __forceinline__ int32_t row_in(const int32_t *order, int64_t i)
{
    return order != NULL ? mpp_read(order, i) : (int32_t)i;
}

/* What a thread has of TILE: its rows and their digits, -1 after the last one. MINE [DIGITS, threads]: how many of each. */
struct sorted {
    int32_t row[SORT_EACH];
    int digit[SORT_EACH];
};

static __device__ __forceinline__ struct sorted take_rows(const struct id_rows &t, const int32_t *order, int shift, int64_t tile,
                                                          int32_t *mine)
{
    struct sorted s;
    const int64_t first = tile * SORT_TILE + (int64_t)threadIdx.x * SORT_EACH;
    for (int d = 0; d < DIGITS; d++)
        mine[d * SORT_THREADS + (int)threadIdx.x] = 0;
    for (int e = 0; e < SORT_EACH; e++) {
        bool some = first + e < t.rows.n;
        s.row[e] = some ? row_in(order, first + e) : 0;
        s.digit[e] = some ? (int)(key_at(t, s.row[e]) >> shift & (DIGITS - 1)) : -1;
    }
    for (int e = 0; e < SORT_EACH; e++)
        if (s.digit[e] >= 0)
            mine[s.digit[e] * SORT_THREADS + (int)threadIdx.x]++;
    return s;
}

/* The sum of X over the lanes up to this one. */
static __device__ __forceinline__ int32_t warp_prefix(int32_t x)
{
    const int lane = (int)threadIdx.x % MPP_WARP;
    for (int step = 1; step < MPP_WARP; step *= 2) {
        int32_t before = __shfl_sync(0xffffffffu, x, (lane - step) & (MPP_WARP - 1));
        x += lane >= step ? before : 0;
    }
    return x;
}

/* counts [DIGITS, tiles]: rows with each digit. */
__global__ void digit_count_kernel(struct id_rows t, const int32_t *order, int shift, int64_t tiles, int32_t *counts)
{
    MPP_SHARED(int32_t, mine);
    const int lane = (int)threadIdx.x % MPP_WARP;
    MPP_EACH_ROW(tile, tiles) {
        (void)take_rows(t, order, shift, tile, mine);
        __syncthreads();
        for (int d = (int)threadIdx.x / MPP_WARP; d < DIGITS; d += SORT_WARPS) {
            int32_t n = 0;
            for (int i = lane; i < SORT_THREADS; i += MPP_WARP)
                n += mine[d * SORT_THREADS + i];
            n = mpp_warp_fold(n, mpp_plus());
            if (lane == 0)
                mpp_write(counts, d * tiles + tile, n);
        }
        __syncthreads();
    }
}

/* Each of N counts becomes the sum of those before it. One block of MPP_BLOCK. */
__global__ void prefix_kernel(int64_t n, int32_t *counts)
{
    MPP_SHARED(int32_t, sums);
    const int64_t each = (n + blockDim.x - 1) / blockDim.x, first = each * threadIdx.x, end = first + each < n ? first + each : n;
    int32_t own = 0, before = 0;
    for (int64_t i = first; i < end; i++)
        own += mpp_read(counts, i);
    const int32_t up_to = warp_prefix(own);
    if (threadIdx.x % MPP_WARP == MPP_WARP - 1)
        sums[threadIdx.x / MPP_WARP] = up_to;
    __syncthreads();
    for (unsigned w = 0; w < threadIdx.x / MPP_WARP; w++)
        before += sums[w];
    before += up_to - own;
    for (int64_t i = first; i < end; i++) {
        int32_t count = mpp_read(counts, i);
        mpp_write(counts, i, before);
        before += count;
    }
}

/* Rows go to their places by this digit. BEFORE [DIGITS, tiles]: where those of each begin. */
__global__ void digit_scatter_kernel(struct id_rows t, const int32_t *order, int shift, int64_t tiles, const int32_t *before, int32_t *out)
{
    MPP_SHARED(int32_t, mine);
    const int lane = (int)threadIdx.x % MPP_WARP;
    MPP_EACH_ROW(tile, tiles) {
        const struct sorted s = take_rows(t, order, shift, tile, mine);
        __syncthreads();
        for (int d = (int)threadIdx.x / MPP_WARP; d < DIGITS; d += SORT_WARPS) {
            int32_t *of_threads = mine + d * SORT_THREADS + lane * SORT_WARPS, own = 0; /* each lane takes as many as there are warps */
            for (int i = 0; i < SORT_WARPS; i++)
                own += of_threads[i];
            int32_t at = mpp_read(before, d * tiles + tile) + warp_prefix(own) - own;
            for (int i = 0; i < SORT_WARPS; i++) {
                int32_t count = of_threads[i];
                of_threads[i] = at;
                at += count;
            }
        }
        __syncthreads();
        for (int e = 0; e < SORT_EACH; e++)
            if (s.digit[e] >= 0)
                mpp_write(out, (int64_t)mine[s.digit[e] * SORT_THREADS + (int)threadIdx.x]++, s.row[e]);
        __syncthreads();
    }
}

/* The numbers of T's valid rows by id, those of other shards last. TWO [2 rows]: room for them, in which they are; COUNTS [DIGITS, tiles]. */
static const int32_t *sort_rows(struct mpp_rank *r, const struct id_rows &t, int64_t tiles, int32_t *two, int32_t *counts)
{
    const int32_t *order = NULL;
    int32_t *to = two;
    for (int shift = 0; t.vocab.valid >> shift > 0; shift += DIGIT_BITS) {
        MPP_LAUNCH(r, digit_count_kernel, mpp_row_grid(tiles), SORT_THREADS, SORT_SHARED, t, order, shift, tiles, counts);
        MPP_LAUNCH(r, prefix_kernel, 1, MPP_BLOCK, MPP_ROW_SHARED, DIGITS * tiles, counts);
        MPP_LAUNCH(r, digit_scatter_kernel, mpp_row_grid(tiles), SORT_THREADS, SORT_SHARED, t, order, shift, tiles, counts, to);
        order = to;
        to = to == two ? two + t.rows.n : two;
    }
    return order;
}

/* ---- sums of the rows of each id ------------------------------------------------------------------------- */

/* Sorted rows, ROWS of them in each of N chunks. */
struct chunks {
    int64_t n, rows;
    const int32_t *order;
};

static struct chunks chunks_of(int64_t rows, int64_t width)
{
    struct chunks c = {};
    int64_t most = CHUNK_PARTS / width + 1, wanted = (rows + CHUNK_LEAST - 1) / CHUNK_LEAST;
    c.n = wanted < most ? wanted : most;
    c.rows = (rows + c.n - 1) / c.n;
    c.n = (rows + c.rows - 1) / c.rows;
    return c;
}

static __device__ __forceinline__ int64_t key_in(const struct id_rows &t, const struct chunks &c, int64_t place)
{
    return key_at(t, mpp_read(c.order, place));
}

/* Do places AT - 1 and AT have one id? */
static __device__ __forceinline__ bool goes_on(const struct id_rows &t, const struct chunks &c, int64_t at)
{
    return at > 0 && at < t.rows.n && key_in(t, c, at - 1) == key_in(t, c, at);
}

template <int TYPE> static __device__ __forceinline__ float wide(uint16_t x)
{
    return mpp_half<TYPE>::wide(x);
}

template <int TYPE> static __device__ __forceinline__ float wide(float x)
{
    return x;
}

/* Columns J .. J + W - 1 of the sum of a run of rows: to TO, added to what is there or, where PART, not. */
template <int W> static __device__ __forceinline__ void end_run(double *sum, float *table, double *part)
{
    for (int w = 0; w < W; w++) {
        if (part != NULL)
            mpp_write(part, w, sum[w]);
        else
            mpp_write(table, w, (float)((double)mpp_read(table, w) + sum[w]));
        sum[w] = 0;
    }
}

/* PARTS [chunks, 2, width]: of a run that began in a chunk before; of one that begins here and goes on in the next. */
template <int TYPE, int W>
__global__ void table_gradient_kernel(struct id_rows t, struct chunks c, int64_t width, const typename mpp_element<TYPE>::stored *dy,
                                      float *dtable, double *parts)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const int64_t tiles = (width / W + blockDim.x - 1) / blockDim.x, none = t.vocab.valid;
    MPP_EACH_ROW(b, c.n * tiles) {
        const int64_t chunk = b / tiles, j = (b % tiles * blockDim.x + threadIdx.x) * W, first = chunk * c.rows;
        const int64_t end = first + c.rows < t.rows.n ? first + c.rows : t.rows.n;
        if (j >= width)
            continue;
        double sum[W] = {}, *head = parts + 2 * chunk * width + j;
        int64_t key = key_in(t, c, first);
        bool began_before = goes_on(t, c, first);
        for (int64_t p = first; p < end && key < none; p += AHEAD) {
            int64_t keys[AHEAD];
            mpp_pack<stored, W> values[AHEAD];
            for (int u = 0; u < AHEAD; u++) {
                int64_t row = mpp_row_at(t.rows, p + u < end ? mpp_read(c.order, p + u) : 0);
                keys[u] = p + u < end ? key_of(mpp_read(t.ids, row), t.vocab) : none;
                values[u] = {};
                if (keys[u] < none)
                    values[u] = mpp_read_pack<W>(dy, row * width + j);
            }
            for (int u = 0; u < AHEAD && p + u < end && key < none; u++) {
                if (keys[u] != key) {
                    end_run<W>(sum, dtable + key * width + j, began_before ? head : NULL);
                    began_before = false;
                    key = keys[u];
                }
                for (int w = 0; w < W; w++)
                    sum[w] += (double)wide<TYPE>(values[u].at[w]);
            }
        }
        if (key < none)
            end_run<W>(sum, dtable + key * width + j, began_before ? head : goes_on(t, c, end) ? head + width : NULL);
    }
}

/* For each chunk in which a run begins that goes on in the next: its parts, in order. */
__global__ void table_parts_kernel(struct id_rows t, struct chunks c, int64_t width, const double *parts, float *dtable)
{
    const int64_t tiles = (width + blockDim.x - 1) / blockDim.x;
    MPP_EACH_ROW(b, (c.n - 1) * tiles) {
        int64_t chunk = b / tiles, end = (chunk + 1) * c.rows;
        const int64_t j = b % tiles * blockDim.x + threadIdx.x, key = key_in(t, c, end);
        if (j >= width || key == t.vocab.valid || !goes_on(t, c, end))
            continue;
        if (goes_on(t, c, chunk * c.rows) && key_in(t, c, chunk * c.rows) == key)
            continue; /* it began before */
        double sum = (double)mpp_read(dtable, key * width + j) + mpp_read(parts, (2 * chunk + 1) * width + j);
        for (bool more = true; more; end += c.rows) {
            sum += mpp_read(parts, 2 * ++chunk * width + j);
            more = end + c.rows < t.rows.n && key_in(t, c, end + c.rows) == key;
        }
        mpp_write(dtable, key * width + j, (float)sum);
    }
}

template <int TYPE>
static void embedding_backward(struct mpp_rank *r, const struct id_rows &t, int64_t width, const void *dy, float beta, float *dtable)
{
    typedef typename mpp_element<TYPE>::stored stored;
    if (beta == 0.0f)
        mpp_zero(r, dtable, (size_t)(t.vocab.padded * width) * sizeof *dtable);
    if (t.rows.n == 0 || width == 0 || t.vocab.valid <= 0)
        return;
    const int64_t tiles = (t.rows.n + SORT_TILE - 1) / SORT_TILE;
    struct chunks c = chunks_of(t.rows.n, width);
    const size_t counts_bytes = (size_t)(DIGITS * tiles) * sizeof(int32_t), parts_bytes = (size_t)(2 * c.n * width) * sizeof(double);
    int32_t *two = (int32_t *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(2 * t.rows.n) * sizeof *two);
    void *sums = mpp_cuda_scratch(r, MPP_SCRATCH_SUMS, counts_bytes > parts_bytes ? counts_bytes : parts_bytes);
    c.order = sort_rows(r, t, tiles, two, (int32_t *)sums);
    const bool packs = mpp_packs(width) && mpp_aligned((const stored *)dy);
    const unsigned block = mpp_row_block(width), grid = mpp_row_grid(c.n * ((packs ? width / 4 : width) + block - 1) / block);
    if (packs)
        MPP_LAUNCH(r, (table_gradient_kernel<TYPE, 4>), grid, block, 0, t, c, width, (const stored *)dy, dtable, (double *)sums);
    else
        MPP_LAUNCH(r, (table_gradient_kernel<TYPE, 1>), grid, block, 0, t, c, width, (const stored *)dy, dtable, (double *)sums);
    MPP_LAUNCH(r, table_parts_kernel, mpp_row_grid((c.n - 1) * ((width + block - 1) / block)), block, 0, t, c, width,
               (const double *)sums, dtable);
}

/* ---- entry points ----------------------------------------------------------------------------------- */

void mpp_embedding_forward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width, const int32_t *ids,
                           const float *table, float *y)
{
    embedding_forward(r, id_rows_of(rows, vocab, ids), width, table, y);
}

void mpp_embedding_forward_half(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                                const int32_t *ids, const void *table, void *y)
{
    embedding_forward(r, id_rows_of(rows, vocab, ids), width, (const uint16_t *)table, (uint16_t *)y);
}

void mpp_embedding_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                            const int32_t *ids, const float *dy, float beta, float *dtable)
{
    embedding_backward<MPP_TYPE_F32>(r, id_rows_of(rows, vocab, ids), width, dy, beta, dtable);
}

void mpp_embedding_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows, struct mpp_extent vocab,
                                 int64_t width, const int32_t *ids, const void *dy, float beta, float *dtable)
{
    MPP_BY_HALF(type, embedding_backward, r, id_rows_of(rows, vocab, ids), width, dy, beta, dtable);
}
