/* Runs a fuzz target over the files of the folders that are named, without libFuzzer: seeds and what was found once. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The file at PATH as one input, and every beginning of it in steps of STEP bytes (0: none). */
static int replay(const char *path, size_t step)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    uint8_t *data = NULL;
    size_t n = 0, cap = 0, got = 1;
    while (got > 0) {
        if (n + 4096 > cap)
            data = realloc(data, cap = 2 * cap + 8192);
        got = data ? fread(data + n, 1, 4096, f) : 0;
        n += got;
    }
    fclose(f);
    for (size_t cut = step; data && step > 0 && cut < n; cut += step) {
        uint8_t *part = malloc(cut);   /* of its own, so that a sanitizer sees what is read beyond */
        if (part)
            LLVMFuzzerTestOneInput(memcpy(part, data, cut), cut);
        free(part);
    }
    if (data)
        LLVMFuzzerTestOneInput(data, n);
    free(data);
    return data != NULL;
}

int main(int argc, char **argv)
{
    int done = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            fprintf(stderr, "no folder %s\n", argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(d));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (e->d_name[0] != '.')
                done += replay(path, 97);
        }
        closedir(d);
    }
    printf("%d passed, %d failed\n", done, done == 0);
    return done == 0;
}
