/* npy.c - reading .npy files. */
#include <stdio.h>
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

static bool take_shape(struct cursor *c, struct mpp_npy *npy)
{
    if (!take(c, '('))
        return false;
    npy->n_dims = 0;
    npy->count = 1;
    while (!take(c, ')')) {
        int64_t n = 0;
        int digits = 0;
        skip_space(c);
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++, digits++)
            if (__builtin_mul_overflow(n, (int64_t)10, &n) || __builtin_add_overflow(n, (int64_t)(*c->at - '0'), &n))
                return false;
        if (digits == 0 || npy->n_dims == MPP_NPY_MAX_DIMS || __builtin_mul_overflow(npy->count, n, &npy->count))
            return false;
        npy->dims[npy->n_dims++] = n;
        skip_space(c);
        if (!take(c, ',') && (c->at == c->end || *c->at != ')'))
            return false;
    }
    return true;
}

static int parse_header(const char *path, struct cursor c, struct mpp_npy *npy, struct mpp_error *error)
{
    char key[32], descr[64] = "";
    bool order = false, fortran = false, shape = false;
    bool ok = take(&c, '{');
    while (ok && !take(&c, '}')) {
        ok = take_string(&c, key, sizeof key) && take(&c, ':');
        if (ok && strcmp(key, "descr") == 0 && descr[0] == '\0') {
            skip_space(&c);
            if (c.at < c.end && *c.at == '[')
                return mpp_error_set(error, MPP_EXIT_INPUT, "%s: structured arrays are not supported", path);
            ok = take_string(&c, descr, sizeof descr) && descr[0] != '\0';
        } else if (ok && strcmp(key, "fortran_order") == 0 && !order) {
            fortran = take_word(&c, "True");
            order = true;
            ok = fortran || take_word(&c, "False");
        } else if (ok && strcmp(key, "shape") == 0 && !shape) {
            ok = take_shape(&c, npy);
            shape = true;
        } else {
            ok = false;
        }
        skip_space(&c);
        ok = ok && (take(&c, ',') || (c.at < c.end && *c.at == '}'));
    }
    skip_space(&c);
    if (!ok || c.at != c.end || descr[0] == '\0' || !order || !shape)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: the .npy header is not valid", path);
    if (fortran && npy->n_dims > 1)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: in Fortran order; store it in C order", path);
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(descr, types[i].name) == 0) {
            npy->type = (enum mpp_npy_type)i;
            return MPP_EXIT_OK;
        }
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: dtype %s is not supported; store <f4, <i4 or <i8", path, descr);
}

int mpp_npy_open(const char *path, struct mpp_npy *npy_out, struct mpp_error *error)
{
    struct mpp_npy npy = {0};
    int code = mpp_mapped_open(path, &npy.mapped, error);
    if (code != MPP_EXIT_OK)
        return code;
    const unsigned char *b = npy.mapped.bytes;
    int64_t n_bytes = npy.mapped.n_bytes, header = 0, start = 0;
    bool ok = n_bytes >= 12 && memcmp(b, "\x93NUMPY", 6) == 0 && b[6] >= 1 && b[6] <= 3;
    if (ok) {
        start = b[6] == 1 ? 10 : 12;
        header = b[6] == 1 ? mpp_read_u16(b + 8) : mpp_read_u32(b + 8);
        ok = header <= n_bytes - start;
    }
    if (!ok)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a .npy file", path);
    else
        code = parse_header(path, (struct cursor){(const char *)b + start, (const char *)b + start + header}, &npy,
                            error);
    int64_t bytes = 0, has = n_bytes - start - header;
    if (code == MPP_EXIT_OK &&
        (__builtin_mul_overflow(npy.count, (int64_t)types[npy.type].bytes, &bytes) || bytes != has))
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: its shape takes %lld bytes, but the file holds %lld", path,
                             (long long)bytes, (long long)has);
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
