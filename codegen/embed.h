/* embed.h - files as text inside the library, written by embed.py: the runtime's sources, of which plans carry a copy, the
 * parts of report.html, and schemas. */
#ifndef MPP_CODEGEN_EMBED_H
#define MPP_CODEGEN_EMBED_H

#include <stddef.h>

struct mpp_embedded_source {
    const char *path;             /* below runtime/: "mpp_rt.h", "core/mesh.c", "calibrate/measure.c"; below codegen/report/:
                                   * "report.css"; NULL ends the array */
    const char *text;
    size_t size;
};

extern const struct mpp_embedded_source mpp_embedded_runtime[], mpp_embedded_report[], mpp_embedded_schemas[];

#endif
