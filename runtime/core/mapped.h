/* mapped.h - a file in memory, read-only.
 *
 *     struct mpp_mapped m;
 *     int code = mpp_mapped_open(path, &m, &error);
 *     ... m.bytes[0 .. m.n_bytes - 1] ...
 *     mpp_mapped_close(&m); */
#ifndef MPP_MAPPED_H
#define MPP_MAPPED_H

#include <stdint.h>

#include "fail.h"

struct mpp_mapped {
    const unsigned char *bytes; /* NULL where the file is empty or none is open */
    int64_t n_bytes;
};

int mpp_mapped_open(const char *path, struct mpp_mapped *mapped_out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_mapped_close(struct mpp_mapped *mapped);

/* Little-endian numbers at any address. */
uint16_t mpp_read_u16(const unsigned char *at);
uint32_t mpp_read_u32(const unsigned char *at);
uint64_t mpp_read_u64(const unsigned char *at);
float mpp_read_f16(const unsigned char *at);

#endif
