/* data.c - the sources of samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data.h"
#include "npy.h"
#include "random.h"
#include "safetensors.h"
#include "tensors.h"
#include "tokens.h"

enum source { SOURCE_TOKENS, SOURCE_NPY, SOURCE_SYNTHETIC };

struct array {
    struct mpp_npy npy;
    char *path;
    int64_t n;       /* batches or samples it holds */
    bool by_batch;
    int64_t per_sample;
};

/* An input of the model: several stages may read it. */
struct column {
    const struct mpp_input *in;
    const struct mpp_tensor *tensor; /* of the first stage that reads it: its name, type and global shape */
    uint32_t stream;                 /* of its random numbers: by name, as plans list inputs in different orders */
};

struct mpp_data {
    enum source source;
    const struct mpp_program *program;
    uint64_t seed;
    int n_columns;
    struct column *columns;
    struct mpp_tokens *tokens;
    struct array *arrays; /* per column */
    int64_t vocabulary;   /* synthetic token ids lie below */
    int64_t ahead;        /* global sample of a step's first, less step * batch: not 0 once the batch has changed */
};

/* A stretch of one sample of one input. */
struct stretch {
    int column;
    uint64_t sample;        /* global, of the whole training */
    int64_t step, in_step;  /* the step's index and the sample's place in it */
    int64_t position, count;
};

/* The column of a tensor; n_columns where there is none yet. */
static int find_column(const struct mpp_data *d, const char *name)
{
    int i = 0;
    while (i < d->n_columns && strcmp(d->columns[i].tensor->name, name) != 0)
        i++;
    return i;
}

static uint32_t stream_of(const char *name)
{
    uint32_t hash = 0x811c9dc5u; /* FNV-1a */
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x01000193u;
    return MPP_STREAM_SYNTHETIC ^ (hash | 1); /* never that of the tokens */
}

/* The inputs of all stages. */
static bool list_columns(struct mpp_data *d)
{
    int total = 0;
    for (int s = 0; s < d->program->n_stages; s++)
        total += d->program->stages[s]->n_inputs;
    d->columns = calloc((size_t)total + 1, sizeof *d->columns);
    for (int s = 0; d->columns != NULL && s < d->program->n_stages; s++) {
        const struct mpp_stage *stage = d->program->stages[s];
        for (int i = 0; i < stage->n_inputs; i++) {
            const struct mpp_tensor *t = &stage->tensors[stage->inputs[i].tensor];
            int at = find_column(d, t->name);
            if (at < d->n_columns)
                continue;
            d->columns[at] = (struct column){&stage->inputs[i], t, stream_of(t->name)};
            d->n_columns++;
        }
    }
    return d->columns != NULL;
}

static bool is_token_role(enum mpp_role role)
{
    return role == MPP_ROLE_TOKENS || role == MPP_ROLE_NEXT_TOKENS || role == MPP_ROLE_MASKED_TOKENS ||
           role == MPP_ROLE_MASKED_LABELS;
}

/* Elements of a sample (of the whole input where it has no batch dimension). */
static int64_t sample_size(const struct column *c)
{
    const struct mpp_tensor *t = c->tensor;
    int64_t n = 1;
    for (int i = c->in->batched ? 1 : 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

/* ---- filling: each writes COUNT elements at OUT ------------------------------------------------------ */

static int refuse_id(const struct column *c, const char *path, int64_t at, int64_t value, const char *hint,
                     struct mpp_error *error)
{
    const struct mpp_input *in = c->in;
    char also[48] = "";
    if (in->limit > 0 && (in->also_valid < 0 || in->also_valid >= in->limit))
        snprintf(also, sizeof also, " and %lld", (long long)in->also_valid);
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: element %lld is %lld, but input \"%s\" takes 0 to %lld%s%s", path,
                         (long long)at, (long long)value, c->tensor->name,
                         in->limit > 0 ? (long long)in->limit - 1 : (long long)INT32_MAX, also, hint);
}

/* COUNT tokens of a sample from POSITION on, below LIMIT. */
static int read_tokens(const struct mpp_data *d, const struct column *c, const struct stretch *s, int64_t position,
                       uint32_t *out, struct mpp_error *error)
{
    const struct mpp_input *in = c->in;
    if (d->source == SOURCE_SYNTHETIC) {
        uint32_t block[4];
        for (int64_t i = 0; i < s->count; i++) {
            int64_t at = position + i;
            if (i == 0 || at % 4 == 0)
                mpp_random_block(d->seed, MPP_STREAM_SYNTHETIC, (uint64_t)at / 4, s->sample, block);
            out[i] = (uint32_t)((uint64_t)block[at % 4] * (uint64_t)d->vocabulary >> 32);
        }
        return MPP_EXIT_OK;
    }
    struct mpp_window window = mpp_tokens_window(d->tokens, d->seed, s->sample);
    mpp_tokens_read(d->tokens, window, position, s->count, out);
    for (int64_t i = 0; i < s->count; i++)
        if ((in->limit > 0 && out[i] >= in->limit) || out[i] > INT32_MAX)
            return refuse_id(c, mpp_tokens_path(d->tokens, window.shard), window.start + position + i, out[i],
                             mpp_tokens_raw(d->tokens, window.shard) ? "; without a header a file is read as raw u16 tokens"
                                                                     : "", error);
    return MPP_EXIT_OK;
}

/* BERT's masking (Devlin et al. 2019): which tokens, and what stands for them, by (position, sample). */
static void mask_tokens(const struct mpp_data *d, const struct mpp_input *in, const struct stretch *s,
                        uint32_t *tokens, int32_t *out)
{
    const struct mpp_program *p = d->program;
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t random[4];
        mpp_random_block(d->seed, MPP_STREAM_MASK, (uint64_t)(s->position + i), s->sample, random);
        bool chosen = mpp_random_unit(random[0]) < p->mask_share;
        out[i] = (int32_t)tokens[i];
        if (in->role == MPP_ROLE_MASKED_LABELS) {
            if (!chosen)
                out[i] = (int32_t)p->ignore_index;
        } else if (chosen) {
            float kind = mpp_random_unit(random[1]);
            if (kind < 0.8f)
                out[i] = (int32_t)p->mask_id;
            else if (kind < 0.9f && in->limit > 0)
                out[i] = (int32_t)((uint64_t)random[2] * (uint64_t)in->limit >> 32);
        }
    }
}

#define TOKENS_AT_ONCE 512

static int fill_tokens(const struct mpp_data *d, struct stretch s, int32_t *out, struct mpp_error *error)
{
    const struct column *c = &d->columns[s.column];
    const struct mpp_input *in = c->in;
    uint32_t tokens[TOKENS_AT_ONCE];
    int64_t total = s.count;
    for (int64_t done = 0; done < total; done += s.count) {
        s.count = total - done < TOKENS_AT_ONCE ? total - done : TOKENS_AT_ONCE;
        int code = read_tokens(d, c, &s, s.position + (in->role == MPP_ROLE_NEXT_TOKENS), tokens, error);
        if (code != MPP_EXIT_OK)
            return code;
        if (in->role == MPP_ROLE_MASKED_TOKENS || in->role == MPP_ROLE_MASKED_LABELS)
            mask_tokens(d, in, &s, tokens, out + done);
        else
            for (int64_t i = 0; i < s.count; i++)
                out[done + i] = (int32_t)tokens[i];
        s.position += s.count;
    }
    return MPP_EXIT_OK;
}

static int fill_array(const struct mpp_data *d, const struct stretch *s, void *out, struct mpp_error *error)
{
    const struct column *c = &d->columns[s->column];
    const struct mpp_input *in = c->in;
    const struct array *a = &d->arrays[s->column];
    int64_t which = (int64_t)(s->sample % (uint64_t)a->n);
    if (a->by_batch)
        which = s->step % a->n * (in->batched ? d->program->batch : 1) + s->in_step;
    int64_t first = which * a->per_sample + s->position;
    if (c->tensor->type == MPP_TYPE_F32) {
        const float *x = out;
        mpp_npy_read_f32(&a->npy, first, s->count, out);
        for (int64_t i = 0; i < s->count; i++)
            if (!isfinite(x[i]))
                return mpp_error_set(error, MPP_EXIT_INPUT, "%s: element %lld is %s; input \"%s\" takes finite numbers of "
                                     "32 bits", a->path, (long long)(first + i),
                                     isnan(x[i]) ? "NaN" : x[i] > 0 ? "infinite" : "-infinite", c->tensor->name);
        return MPP_EXIT_OK;
    }
    int32_t *ids = out;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t x = mpp_npy_integer(&a->npy, first + i);
        bool valid = x >= INT32_MIN && x <= INT32_MAX;
        if (in->limit > 0)
            valid = (x >= 0 && x < in->limit) || x == in->also_valid;
        if (!valid)
            return refuse_id(c, a->path, first + i, x, "", error);
        ids[i] = (int32_t)x;
    }
    return MPP_EXIT_OK;
}

static void fill_random(const struct mpp_data *d, const struct stretch *s, void *out)
{
    const struct column *c = &d->columns[s->column];
    uint64_t limit = c->in->limit > 0 ? (uint64_t)c->in->limit : 2;
    uint32_t block[4];
    for (int64_t i = 0; i < s->count; i++) {
        int64_t at = s->position + i;
        if (i == 0 || at % 4 == 0)
            mpp_random_block(d->seed, c->stream, (uint64_t)at / 4, s->sample, block);
        if (c->tensor->type == MPP_TYPE_F32) {
            float pair[2];
            mpp_random_normal(block[at % 4 / 2 * 2], block[at % 4 / 2 * 2 + 1], &pair[0], &pair[1]);
            ((float *)out)[i] = pair[at % 2];
        } else {
            ((int32_t *)out)[i] = (int32_t)((uint64_t)block[at % 4] * limit >> 32);
        }
    }
}

static void fill_constant(const struct mpp_data *d, const struct stretch *s, int value, void *out)
{
    for (int64_t i = 0; i < s->count; i++) {
        if (d->columns[s->column].tensor->type == MPP_TYPE_F32)
            ((float *)out)[i] = (float)value;
        else
            ((int32_t *)out)[i] = value;
    }
}

static int fill_stretch(const struct mpp_data *d, const struct stretch *s, void *out, struct mpp_error *error)
{
    enum mpp_role role = d->columns[s->column].in->role;
    if (d->source == SOURCE_NPY && d->arrays[s->column].npy.data != NULL)
        return fill_array(d, s, out, error);
    if (role == MPP_ROLE_ZEROS || role == MPP_ROLE_ONES)
        fill_constant(d, s, role == MPP_ROLE_ONES, out);
    else if (is_token_role(role))
        return fill_tokens(d, *s, out, error);
    else
        fill_random(d, s, out);
    return MPP_EXIT_OK;
}

void mpp_data_continue(struct mpp_data *data, int64_t step, int64_t sample)
{
    data->ahead = sample - step * data->program->batch;
}

int mpp_data_fill(const struct mpp_data *data, const struct mpp_rank *r, int64_t step, int micro_batch, int input,
                  void *local, struct mpp_error *error)
{
    const struct mpp_program *p = data->program;
    const struct mpp_input *in = &r->stage->inputs[input];
    const struct mpp_tensor *t = &r->stage->tensors[in->tensor];
    struct mpp_block block = mpp_block_of(r, t);
    int64_t first = 0, n_samples = 1;
    int column = find_column(data, t->name);
    if (in->batched) { /* walk sample by sample; the block is then one sample's */
        first = micro_batch * (p->batch / p->micro_batches) + block.dim[0].offset;
        n_samples = block.dim[0].valid;
        if (block.dim[0].padded > 0)
            block.padded_count /= block.dim[0].padded;
        block.n_dims--;
        memmove(block.dim, block.dim + 1, (size_t)block.n_dims * sizeof block.dim[0]);
    }
    for (int64_t i = 0; i < n_samples; i++) {
        struct stretch s = {.column = column, .step = step, .in_step = first + i};
        if (in->batched)
            s.sample = (uint64_t)(data->ahead + step * p->batch + first + i);
        struct mpp_run run = {0};
        while (mpp_block_next(&block, &run)) {
            s.position = run.global;
            s.count = run.count;
            int code = fill_stretch(data, &s, (char *)local + 4 * (i * block.padded_count + run.local), error);
            if (code != MPP_EXIT_OK)
                return code;
        }
    }
    return MPP_EXIT_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

void mpp_data_choices(const struct mpp_program *program, char *out, int out_bytes)
{
    bool stream = false, only = true; /* token streams fill some input, and all of them */
    for (int s = 0; s < program->n_stages; s++)
        for (int i = 0; i < program->stages[s]->n_inputs; i++) {
            const struct mpp_input *in = &program->stages[s]->inputs[i];
            bool is_i32 = program->stages[s]->tensors[in->tensor].type == MPP_TYPE_I32;
            stream = stream || is_token_role(in->role);
            only = only && in->role != MPP_ROLE_NONE && (is_i32 || !is_token_role(in->role));
        }
    (void)snprintf(out, (size_t)out_bytes, "%snpy:DIR or synthetic", stream && only ? "text:FILE, tokens:GLOB, " : "");
}

/* Token streams fill the inputs that have a role; the windows cover the longest. */
static int check_roles(struct mpp_data *d, bool text, const char *path, struct mpp_error *error)
{
    int64_t length = 0;
    for (int i = 0; i < d->n_columns; i++) {
        const struct mpp_input *in = d->columns[i].in;
        const char *name = d->columns[i].tensor->name;
        if (in->role == MPP_ROLE_NONE)
            return mpp_error_set(error, MPP_EXIT_INPUT, "a token stream cannot fill input \"%s\"; use npy:DIR or synthetic",
                                 name);
        if (!is_token_role(in->role))
            continue;
        if (d->columns[i].tensor->type != MPP_TYPE_I32)
            return mpp_error_set(error, MPP_EXIT_INPUT, "a token stream cannot fill input \"%s\", which holds floats", name);
        if (text && in->limit > 0 && in->limit < 256)
            return mpp_error_set(error, MPP_EXIT_INPUT,
                                 "%s: text takes a vocabulary of at least 256, but input \"%s\" has %lld", path, name,
                                 (long long)in->limit);
        int64_t needs = sample_size(&d->columns[i]) + (in->role == MPP_ROLE_NEXT_TOKENS);
        length = needs > length ? needs : length;
    }
    if (length == 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the model has no input of tokens; use npy:DIR or synthetic");
    return mpp_tokens_set_window(d->tokens, length, error);
}

/* "[any, 64, 32]": the first FREE dimensions may have any extent. */
static void print_wanted(int free, int n_dims, const int64_t *dims, char *out, size_t out_bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < free + n_dims && at < out_bytes; i++) {
        const char *before = i == 0 ? "[" : ", ";
        if (i < free)
            at += (size_t)snprintf(out + at, out_bytes - at, "%sany", before);
        else
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%lld", before, (long long)dims[i - free]);
    }
    if (at < out_bytes)
        (void)snprintf(out + at, out_bytes - at, "%s]", free + n_dims == 0 ? "[" : "");
}

/* The shape of A is none that input T takes: DIMS, those of a whole batch, samples alone, or batches. */
static int refuse_shape(const struct array *a, const struct mpp_tensor *t, const int64_t *dims, bool batched,
                        struct mpp_error *error)
{
    char samples[160], batches[160], has[160];
    int extra = a->npy.n_dims - t->n_dims;
    mpp_shape_print(a->npy.n_dims, a->npy.dims, has, sizeof has);
    print_wanted(batched, t->n_dims - batched, dims + batched, samples, sizeof samples);
    print_wanted(1, t->n_dims, dims, batches, sizeof batches);
    if (extra != 0 && extra != 1)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its shape is %s, but input \"%s\" takes %s%s, or %s, which are batches",
                             a->path, has, t->name, samples, batched ? ", any number of samples" : "", batches);
    for (int i = extra == 1 || batched; i < a->npy.n_dims; i++)
        if (a->npy.dims[i] != dims[i - extra])
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its shape is %s, but input \"%s\" takes %s: %lld is not %lld, in "
                                 "dimension %d of %d", a->path, has, t->name, extra == 1 ? batches : samples,
                                 (long long)a->npy.dims[i], (long long)dims[i - extra], i + 1, a->npy.n_dims);
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its shape is %s: it holds no samples", a->path, has);
}

/* Shape of the array against the input's: the same, or with leading counts. */
static int check_array(const struct mpp_data *d, int column, struct array *a, struct mpp_error *error)
{
    const struct mpp_tensor *t = d->columns[column].tensor;
    bool batched = d->columns[column].in->batched;
    int64_t dims[MPP_MAX_DIMS];
    memcpy(dims, t->dims, sizeof dims);
    if (batched)
        dims[0] = d->program->batch;
    int extra = a->npy.n_dims - t->n_dims;
    a->by_batch = extra == 1 || !batched;
    a->n = extra == 1 || batched ? a->npy.dims[0] : 1;
    a->per_sample = sample_size(&d->columns[column]);
    bool fits = (extra == 0 || extra == 1) && a->n > 0;
    for (int i = 0; fits && i < t->n_dims; i++)
        if (i > 0 || extra == 1 || !batched) /* the first dimension of an array of samples is free */
            fits = a->npy.dims[i + extra] == dims[i];
    if (!fits)
        return refuse_shape(a, t, dims, batched, error);
    if (mpp_npy_is_float(&a->npy) != (t->type == MPP_TYPE_F32))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its dtype is %s, but input \"%s\" takes %s", a->path,
                             mpp_npy_type_name(&a->npy), t->name,
                             t->type == MPP_TYPE_F32 ? "<f4, <f2 or <f8" : "<i4 or <i8");
    return MPP_EXIT_OK;
}

/* Samples of all arrays go together: each holds as many. */
static int check_pairs(const struct mpp_data *d, struct mpp_error *error)
{
    const struct array *first = NULL;
    int64_t first_samples = 0;
    for (int i = 0; i < d->n_columns; i++) {
        const struct array *a = &d->arrays[i];
        if (a->npy.data == NULL || !d->columns[i].in->batched)
            continue;
        int64_t samples = a->by_batch ? a->n * d->program->batch : a->n;
        if (first == NULL) {
            first = a;
            first_samples = samples;
        } else if (samples != first_samples) {
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s holds %lld samples, but %s holds %lld", a->path,
                                 (long long)samples, first->path, (long long)first_samples);
        }
    }
    return MPP_EXIT_OK;
}

static int open_arrays(struct mpp_data *d, const char *dir, struct mpp_error *error)
{
    struct stat st;
    d->arrays = calloc((size_t)d->n_columns + 1, sizeof *d->arrays);
    if (d->arrays == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no such folder; npy: takes a folder of NAME.npy files", dir);
    for (int i = 0; i < d->n_columns; i++) {
        struct array *a = &d->arrays[i];
        enum mpp_role role = d->columns[i].in->role;
        if (asprintf(&a->path, "%s/%s.npy", dir, d->columns[i].tensor->name) < 0) {
            a->path = NULL;
            return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
        }
        if ((role == MPP_ROLE_ZEROS || role == MPP_ROLE_ONES) && stat(a->path, &st) != 0)
            continue;
        int code = mpp_npy_open(a->path, &a->npy, error);
        if (code == MPP_EXIT_OK)
            code = check_array(d, i, a, error);
        if (code != MPP_EXIT_OK)
            return code;
    }
    return check_pairs(d, error);
}

static const char *after(const char *text, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 ? text + n : NULL;
}

static int open_source(struct mpp_data *d, const char *spec, struct mpp_error *error)
{
    const char *path;
    int code;
    if (spec[strcspn(spec, ":")] == ':' && spec[strcspn(spec, ":") + 1] == '\0')
        return mpp_error_set(error, MPP_EXIT_INPUT, "--data %s names no file", spec);
    if ((path = after(spec, "text:")) != NULL) {
        code = mpp_tokens_open_text(path, &d->tokens, error);
        return code != MPP_EXIT_OK ? code : check_roles(d, true, path, error);
    }
    if ((path = after(spec, "tokens:")) != NULL) {
        code = mpp_tokens_open_glob(path, &d->tokens, error);
        return code != MPP_EXIT_OK ? code : check_roles(d, false, path, error);
    }
    if ((path = after(spec, "npy:")) != NULL) {
        d->source = SOURCE_NPY;
        return open_arrays(d, path, error);
    }
    if (strcmp(spec, "synthetic") == 0) {
        d->source = SOURCE_SYNTHETIC;
        return MPP_EXIT_OK;
    }
    static const char *const kinds[] = {"text", "tokens", "npy", "synthetic"};
    char kind[32], hint[64];
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(spec, ":"), spec);
    mpp_error_hint(kind, kinds, 4, hint, sizeof hint);
    return mpp_error_set(error, MPP_EXIT_INPUT,
                         "--data \"%s\" is none of text:FILE, tokens:GLOB, npy:DIR, synthetic%s", spec, hint);
}

int mpp_data_open(const char *spec, const struct mpp_program *program, uint64_t seed, struct mpp_data **data_out,
                  struct mpp_error *error)
{
    struct mpp_data *d = calloc(1, sizeof *d);
    if (d == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    d->program = program;
    d->seed = seed;
    if (!list_columns(d)) {
        free(d);
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    }
    for (int i = 0; i < d->n_columns; i++) {
        int64_t limit = d->columns[i].in->limit;
        if (is_token_role(d->columns[i].in->role) && limit > 0 && (d->vocabulary == 0 || limit < d->vocabulary))
            d->vocabulary = limit;
    }
    if (d->vocabulary == 0)
        d->vocabulary = 256;
    int code = open_source(d, spec, error);
    if (code != MPP_EXIT_OK)
        mpp_data_close(d);
    else
        *data_out = d;
    return code;
}

int64_t mpp_data_size(const struct mpp_data *data)
{
    int64_t n = data->tokens != NULL ? mpp_tokens_count(data->tokens) : 0;
    for (int i = 0; data->arrays != NULL && i < data->n_columns; i++)
        n += data->arrays[i].n;
    return n;
}

void mpp_data_close(struct mpp_data *data)
{
    if (data == NULL)
        return;
    mpp_tokens_close(data->tokens);
    for (int i = 0; data->arrays != NULL && i < data->n_columns; i++) {
        mpp_npy_close(&data->arrays[i].npy);
        free(data->arrays[i].path);
    }
    free(data->arrays);
    free(data->columns);
    free(data);
}
