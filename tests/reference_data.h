/* reference_data.h - reads the small reference cases under tests/data/reference: safetensors, .npy, JSON.
 *
 *     const char *dir = "tests/data/reference/bert-tiny";
 *     double *w = mpp_reference_tensor(dir, "model.safetensors", "wte.weight", &n);   // free()
 *
 * The files are the project's own: a fault in one ends the program with a message. */
#ifndef MPP_REFERENCE_DATA_H
#define MPP_REFERENCE_DATA_H

#include <jansson.h>
#include <stdint.h>

/* The JSON file NAME of folder DIR; json_decref it. */
json_t *mpp_reference_json(const char *dir, const char *name);

/* Tensor TENSOR (F32) of DIR/FILE, widened; *OUT_N elements. The caller frees it. NULL: no such tensor. */
double *mpp_reference_tensor(const char *dir, const char *file, const char *tensor, int64_t *out_n);

/* All elements of an int32 .npy file. The caller frees it. */
double *mpp_reference_npy(const char *dir, const char *file, int64_t *out_n);

#endif
