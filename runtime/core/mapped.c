/* mapped.c - files in memory and the numbers in them. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mapped.h"

int mpp_mapped_open(const char *path, struct mpp_mapped *mapped_out, struct mpp_error *error)
{
    *mapped_out = (struct mpp_mapped){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not wait */
    if (fd < 0)
        return mpp_error_system(error, path, errno);
    struct stat st;
    int code = MPP_EXIT_OK;
    if (fstat(fd, &st) != 0) {
        code = mpp_error_system(error, path, errno);
    } else if (!S_ISREG(st.st_mode)) {
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path,
                             S_ISDIR(st.st_mode) ? "a folder, not a file" : "not a file (a pipe, socket or device)");
    } else if (st.st_size > 0) {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (at == MAP_FAILED)
            code = mpp_error_system(error, path, errno);
        else
            *mapped_out = (struct mpp_mapped){at, st.st_size};
    }
    close(fd);
    return code;
}

void mpp_mapped_close(struct mpp_mapped *mapped)
{
    if (mapped->bytes != NULL)
        munmap((void *)(uintptr_t)mapped->bytes, (size_t)mapped->n_bytes);
    *mapped = (struct mpp_mapped){0};
}

uint16_t mpp_read_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

uint32_t mpp_read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t mpp_read_u64(const unsigned char *at)
{
    return mpp_read_u32(at) | (uint64_t)mpp_read_u32(at + 4) << 32;
}

float mpp_read_f16(const unsigned char *at)
{
    uint16_t h = mpp_read_u16(at);
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float x;
    if (exponent == 0)
        x = ldexpf((float)fraction, -24);
    else if (exponent == 31)
        x = fraction == 0 ? INFINITY : NAN;
    else
        x = ldexpf((float)(1024 + fraction), exponent - 25);
    return h >> 15 ? -x : x;
}
