#include "tests/reference_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *dir, const char *file, const char *what)
{
    fprintf(stderr, "%s/%s: %s\n", dir, file, what);
    exit(2);
}

/* The whole file; *OUT_SIZE bytes and a 0. */
static char *slurp(const char *dir, const char *file, size_t *out_size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "rb");
    if (!f)
        die(dir, file, "cannot be opened");
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *data = size >= 0 ? malloc((size_t)size + 1) : NULL;
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        die(dir, file, "cannot be read");
    fclose(f);
    data[size] = 0;
    *out_size = (size_t)size;
    return data;
}

json_t *mpp_reference_json(const char *dir, const char *name)
{
    size_t size;
    char *text = slurp(dir, name, &size);
    json_t *j = json_loadb(text, size, 0, NULL);
    free(text);
    if (!j)
        die(dir, name, "is not JSON");
    return j;
}

double *mpp_reference_tensor(const char *dir, const char *file, const char *tensor, int64_t *out_n)
{
    size_t size;
    uint64_t header;
    char *data = slurp(dir, file, &size);
    memcpy(&header, data, 8);
    json_t *j = json_loadb(data + 8, header, 0, NULL);
    json_int_t from, to;
    const char *dtype;
    double *x = NULL;
    if (j && json_unpack(json_object_get(j, tensor), "{s:s, s:[I, I]}", "dtype", &dtype, "data_offsets", &from, &to) == 0) {
        if (strcmp(dtype, "F32") != 0 || 8 + header + (uint64_t)to > size)
            die(dir, file, "is not as expected");
        *out_n = (to - from) / 4;
        x = malloc((size_t)(*out_n + 1) * sizeof *x);
        for (int64_t i = 0; x && i < *out_n; i++) {
            float v;
            memcpy(&v, data + 8 + header + from + 4 * i, 4);
            x[i] = (double)v;
        }
    }
    json_decref(j);
    free(data);
    return x;
}

double *mpp_reference_npy(const char *dir, const char *file, int64_t *out_n)
{
    size_t size;
    char *data = slurp(dir, file, &size);
    uint16_t header;
    memcpy(&header, data + 8, 2); /* version 1 */
    if (memcmp(data, "\x93NUMPY\x01", 7) != 0 || !strstr(data + 10, "<i4"))
        die(dir, file, "is not an .npy file of int32");
    *out_n = (int64_t)((size - 10 - header) / 4);
    double *x = malloc((size_t)(*out_n + 1) * sizeof *x);
    for (int64_t i = 0; x && i < *out_n; i++) {
        int32_t v;
        memcpy(&v, data + 10 + header + 4 * i, 4);
        x[i] = v;
    }
    free(data);
    return x;
}
