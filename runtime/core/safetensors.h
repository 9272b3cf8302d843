/* safetensors.h - weight files: https://huggingface.co/docs/safetensors (format of 2022, version 0.3 checks).
 *
 *     struct mpp_weights *w;
 *     int code = mpp_weights_open("model.safetensors", prefixes, &w, &error);   // or model.safetensors.index.json
 *     const struct mpp_weight *x = mpp_weights_find(w, "h.0.attn.c_attn.weight");
 *     mpp_weight_read(x, first, count, floats);
 *     mpp_weights_close(w);
 *
 * Files are foreign input: everything is checked before anything is used. */
#ifndef MPP_SAFETENSORS_H
#define MPP_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

enum mpp_dtype { MPP_DTYPE_F32, MPP_DTYPE_F16, MPP_DTYPE_BF16, MPP_DTYPE_F64, MPP_DTYPE_I64, MPP_DTYPE_I32,
                 MPP_DTYPE_U8, MPP_DTYPE_BOOL, MPP_DTYPE_I8, MPP_DTYPE_I16, MPP_DTYPE_U16, MPP_DTYPE_U32, MPP_DTYPE_U64,
                 MPP_DTYPE_F8_E4M3, MPP_DTYPE_F8_E5M2 }; /* the first four are what parameters may be */

struct mpp_weight {
    char *name;       /* prefixes removed */
    enum mpp_dtype dtype;
    int n_dims;
    int64_t *dims;
    int64_t count;
    int64_t begin, end; /* bytes in the file's buffer */
    const unsigned char *data;
    const char *file;   /* its path, for messages */
    bool used;          /* for the caller */
};

struct mpp_weights;

/* Open one file or all files of an index. STRIP (NULL or NULL-terminated) is removed from the front of names.
 * The caller closes; on failure nothing is left open. */
int mpp_weights_open(const char *path, const char *const *strip, struct mpp_weights **weights_out,
                     struct mpp_error *error) MPP_RT_CHECKED;
void mpp_weights_close(struct mpp_weights *weights);

int mpp_weights_count(const struct mpp_weights *weights);
struct mpp_weight *mpp_weights_at(struct mpp_weights *weights, int i); /* in order of names */
struct mpp_weight *mpp_weights_find(struct mpp_weights *weights, const char *name); /* NULL: none */

/* Elements FIRST .. FIRST + COUNT - 1 as float. False where the dtype is not a float. */
bool mpp_weight_read(const struct mpp_weight *weight, int64_t first, int64_t count, float *out);
/* The same elements as int32; false where the dtype is not I32. */
bool mpp_weight_read_i32(const struct mpp_weight *weight, int64_t first, int64_t count, int32_t *out);
const char *mpp_dtype_name(enum mpp_dtype dtype);
/* "[2, 3]" in OUT. */
void mpp_shape_print(int n_dims, const int64_t *dims, char *out, int out_bytes);

/* ---- writing ---- */

struct mpp_st_entry {
    const char *name;
    enum mpp_type type;
    int n_dims;
    const int64_t *dims;
    int64_t file_offset; /* out: of the first byte */
};

/* Where each tensor will lie (F32 or I32, in the given order): fills file_offset. */
int mpp_st_layout(struct mpp_st_entry *entries, int n, struct mpp_error *error) MPP_RT_CHECKED;
/* The same, and create PATH with its header and room for all tensors; their bytes are written afterwards. */
int mpp_st_create(const char *path, struct mpp_st_entry *entries, int n, struct mpp_error *error) MPP_RT_CHECKED;

#endif
