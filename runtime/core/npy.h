/* npy.h - arrays of NumPy's .npy files, versions 1 to 3, little-endian, C order, mapped.
 *
 *     struct mpp_npy a;
 *     int code = mpp_npy_open("inputs.npy", &a, &error);
 *     mpp_npy_read_i32(&a, first, count, ids, &bad);
 *     mpp_npy_close(&a); */
#ifndef MPP_NPY_H
#define MPP_NPY_H

#include <stdbool.h>
#include <stdint.h>

#include "mapped.h"

#define MPP_NPY_MAX_DIMS 8

enum mpp_npy_type { MPP_NPY_F4, MPP_NPY_F2, MPP_NPY_F8, MPP_NPY_I4, MPP_NPY_I8, MPP_NPY_U1, MPP_NPY_B1 };

struct mpp_npy {
    struct mpp_mapped mapped;
    enum mpp_npy_type type;
    int n_dims;
    int64_t dims[MPP_NPY_MAX_DIMS];
    int64_t count;
    const unsigned char *data;
};

/* The caller closes; on failure nothing is left open. */
int mpp_npy_open(const char *path, struct mpp_npy *npy_out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_npy_close(struct mpp_npy *npy);

bool mpp_npy_is_float(const struct mpp_npy *npy);
const char *mpp_npy_type_name(const struct mpp_npy *npy);
/* Elements FIRST .. FIRST + COUNT - 1 of a float array. */
void mpp_npy_read_f32(const struct mpp_npy *npy, int64_t first, int64_t count, float *out);
/* One element of an integer array. */
int64_t mpp_npy_integer(const struct mpp_npy *npy, int64_t at);

#endif
