/* fuzz_file.h - what targets share whose readers take paths: one file in memory that holds the input. */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A path whose file holds DATA until the next call. */
static inline const char *fuzz_path(const uint8_t *data, size_t n)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, n, 0) != (ssize_t)n) {
        fprintf(stderr, "no file in memory\n");
        abort();
    }
    return path;
}

/* What a reader promises and breaks is a finding. */
static inline void fuzz_must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "broken promise: %s\n", what);
        abort();
    }
}

/* A refusal has a code of its own and is one line that a terminal only shows. */
static inline void fuzz_refusal(int code, const char *text)
{
    fuzz_must(code == 1 || code == 2, "the code of a refusal");
    fuzz_must(text[0] != '\0', "a refusal says why");
    for (const char *at = text; *at != '\0'; at++)
        fuzz_must((unsigned char)*at >= 0x20 && *at != 0x7f, "no control characters in a message");
}

#endif
