/* embed.h - the runtime's sources as text inside the library, written by embed.py: plans carry a copy. */
#ifndef MPP_CODEGEN_EMBED_H
#define MPP_CODEGEN_EMBED_H

#include <stddef.h>

struct mpp_embedded_source {
    const char *path;             /* below runtime/: "mpp_rt.h", "host/mesh.c", "calibrate/measure.c"; NULL ends the array */
    const char *text;
    size_t size;
};

extern const struct mpp_embedded_source mpp_embedded_runtime[];

#endif
