/* npy.c - reading .npy files. */
#include <string.h>

#include "npy.h"

static const struct {
    const char *name;
    int bytes;
} types[] = {
    [MPP_NPY_F4] = {"<f4", 4}, [MPP_NPY_F2] = {"<f2", 2}, [MPP_NPY_F8] = {"<f8", 8}, [MPP_NPY_I4] = {"<i4", 4},
    [MPP_NPY_I8] = {"<i8", 8}, [MPP_NPY_U1] = {"|u1", 1}, [MPP_NPY_B1] = {"|b1", 1},
};
#define N_TYPES ((int)(sizeof types / sizeof types[0]))

/* The header is a Python dict; this reads the part of the language that NumPy writes. */
struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

static bool take(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

static bool take_string(struct cursor *c, char *out, size_t out_bytes)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at++;
    size_t n = 0;
    while (c->at < c->end && *c->at != quote) {
        if (n + 1 >= out_bytes || *c->at == '\\')
            return false;
        out[n++] = *c->at++;
    }
    out[n] = '\0';
    return take(c, quote);
}

enum shape { SHAPE_OK, SHAPE_SYNTAX, SHAPE_DIMS, SHAPE_OVERFLOW };

static enum shape take_shape(struct cursor *c, struct mpp_npy *npy)
{
    if (!take(c, '('))
        return SHAPE_SYNTAX;
    npy->n_dims = 0;
    npy->count = 1;
    while (!take(c, ')')) {
        int64_t n = 0;
        bool overflow = false;
        skip_space(c);
        const char *digits = c->at;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
            overflow = overflow || __builtin_mul_overflow(n, (int64_t)10, &n) ||
                       __builtin_add_overflow(n, (int64_t)(*c->at - '0'), &n);
        if (c->at == digits)
            return SHAPE_SYNTAX;
        if (npy->n_dims == MPP_NPY_MAX_DIMS)
            return SHAPE_DIMS;
        if (overflow || __builtin_mul_overflow(npy->count, n, &npy->count))
            return SHAPE_OVERFLOW;
        npy->dims[npy->n_dims++] = n;
        skip_space(c);
        if (!take(c, ',') && (c->at == c->end || *c->at != ')'))
            return SHAPE_SYNTAX;
    }
    return SHAPE_OK;
}

/* What the dict holds. */
struct header {
    char descr[64];
    bool order, fortran, has_shape, structured;
    enum shape shape;
};

/* A key and its value; false where it is not one that NumPy writes, or occurs twice. */
static bool take_entry(struct cursor *c, struct header *h, struct mpp_npy *npy)
{
    char key[32];
    if (!take_string(c, key, sizeof key) || !take(c, ':'))
        return false;
    if (strcmp(key, "descr") == 0 && h->descr[0] == '\0') {
        skip_space(c);
        h->structured = c->at < c->end && *c->at == '[';
        return take_string(c, h->descr, sizeof h->descr) && h->descr[0] != '\0';
    }
    if (strcmp(key, "fortran_order") == 0 && !h->order) {
        h->order = true;
        h->fortran = take_word(c, "True");
        return h->fortran || take_word(c, "False");
    }
    if (strcmp(key, "shape") == 0 && !h->has_shape) {
        h->has_shape = true;
        h->shape = take_shape(c, npy);
        return h->shape == SHAPE_OK;
    }
    return false;
}

static int find_type(const char *path, const char *descr, struct mpp_npy *npy, struct mpp_error *error)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(descr, types[i].name) == 0) {
            npy->type = (enum mpp_npy_type)i;
            return MPP_EXIT_OK;
        }
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: dtype %s%s is not supported; store <f4, <i4 or <i8", path, descr,
                         descr[0] == '>' ? " (big-endian)" : "");
}

static int parse_header(const char *path, struct cursor c, const char *file, struct mpp_npy *npy, struct mpp_error *error)
{
    struct header h = {0};
    bool ok = take(&c, '{');
    while (ok && !take(&c, '}')) {
        ok = take_entry(&c, &h, npy);
        skip_space(&c);
        ok = ok && (take(&c, ',') || (c.at < c.end && *c.at == '}'));
    }
    skip_space(&c);
    if (h.structured)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: structured arrays are not supported; store <f4, <i4 or <i8", path);
    if (h.shape == SHAPE_OVERFLOW)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: the shape in its header overflows", path);
    if (h.shape == SHAPE_DIMS)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: more than %d dimensions", path, MPP_NPY_MAX_DIMS);
    if (!ok || c.at != c.end)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: byte %lld: the .npy header is not valid; write it with numpy.save",
                             path, (long long)(c.at - file));
    if (h.descr[0] == '\0' || !h.order || !h.has_shape)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: the .npy header has no %s; write it with numpy.save", path,
                             h.descr[0] == '\0' ? "descr" : !h.order ? "fortran_order" : "shape");
    if (h.fortran && npy->n_dims > 1)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: in Fortran order; store it in C order", path);
    return find_type(path, h.descr, npy, error);
}

/* Where the header's text lies: *START_OUT and *LENGTH_OUT. */
static int find_header(const char *path, const unsigned char *b, int64_t n_bytes, int64_t *start_out, int64_t *length_out,
                       struct mpp_error *error)
{
    if (n_bytes < 6 || memcmp(b, "\x93NUMPY", 6) != 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a .npy file; write it with numpy.save", path);
    if (n_bytes < 12)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: cut short: a .npy file of %lld bytes", path, (long long)n_bytes);
    if (b[6] < 1 || b[6] > 3)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: .npy format of version %d; 1 to 3 are supported", path, b[6]);
    *start_out = b[6] == 1 ? 10 : 12;
    *length_out = b[6] == 1 ? mpp_read_u16(b + 8) : mpp_read_u32(b + 8);
    if (*length_out > n_bytes - *start_out)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: cut short: a header of %lld bytes, but the file holds %lld", path,
                             (long long)*length_out, (long long)n_bytes);
    return MPP_EXIT_OK;
}

int mpp_npy_open(const char *path, struct mpp_npy *npy_out, struct mpp_error *error)
{
    struct mpp_npy npy = {0};
    int code = mpp_mapped_open(path, &npy.mapped, error);
    if (code != MPP_EXIT_OK)
        return code;
    const unsigned char *b = npy.mapped.bytes;
    int64_t n_bytes = npy.mapped.n_bytes, header = 0, start = 0;
    code = find_header(path, b, n_bytes, &start, &header, error);
    if (code == MPP_EXIT_OK) {
        const char *text = (const char *)b;
        code = parse_header(path, (struct cursor){text + start, text + start + header}, text, &npy, error);
    }
    int64_t bytes = 0, has = n_bytes - start - header;
    if (code == MPP_EXIT_OK && __builtin_mul_overflow(npy.count, (int64_t)types[npy.type].bytes, &bytes))
        bytes = INT64_MAX;
    if (code == MPP_EXIT_OK && bytes != has)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: its shape takes %lld bytes%s, but the file holds %lld", path,
                             (long long)bytes, bytes == INT64_MAX ? " or more" : "", (long long)has);
    if (code != MPP_EXIT_OK) {
        mpp_mapped_close(&npy.mapped);
        return code;
    }
    npy.data = b + start + header;
    *npy_out = npy;
    return MPP_EXIT_OK;
}

void mpp_npy_close(struct mpp_npy *npy)
{
    mpp_mapped_close(&npy->mapped);
}

bool mpp_npy_is_float(const struct mpp_npy *npy)
{
    return npy->type == MPP_NPY_F4 || npy->type == MPP_NPY_F2 || npy->type == MPP_NPY_F8;
}

const char *mpp_npy_type_name(const struct mpp_npy *npy)
{
    return types[npy->type].name;
}

void mpp_npy_read_f32(const struct mpp_npy *npy, int64_t first, int64_t count, float *out)
{
    const unsigned char *at = npy->data + first * types[npy->type].bytes;
    if (npy->type == MPP_NPY_F4) {
        memcpy(out, at, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double wide = 0;
        if (npy->type == MPP_NPY_F8)
            memcpy(&wide, at + 8 * i, sizeof wide);
        out[i] = npy->type == MPP_NPY_F2 ? mpp_read_f16(at + 2 * i) : (float)wide;
    }
}

int64_t mpp_npy_integer(const struct mpp_npy *npy, int64_t at)
{
    const unsigned char *b = npy->data + at * types[npy->type].bytes;
    switch (npy->type) {
    case MPP_NPY_I4:
        return (int32_t)mpp_read_u32(b);
    case MPP_NPY_I8:
        return (int64_t)mpp_read_u64(b);
    default:
        return b[0];
    }
}
