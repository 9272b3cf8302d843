/* embed.h - the XML files of devices/, clusters/ and tunings/, as text inside the library (written by embed.py). */
#ifndef MPP_EMBED_H
#define MPP_EMBED_H

#include <stddef.h>

struct mpp_embedded {
    const char *name;                  /* the file's name without folder and ".xml"; NULL ends the array */
    const char *text;
    size_t size;
};

extern const struct mpp_embedded mpp_embedded_devices[];
extern const struct mpp_embedded mpp_embedded_clusters[];
extern const struct mpp_embedded mpp_embedded_tunings[];

#endif
