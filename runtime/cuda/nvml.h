/* nvml.h - what the driver's management library tells of a GPU, where it is there (libnvidia-ml.so.1, by dlopen).
 *
 *     char text[128];
 *     if (mpp_nvml_others(ordinal, text, sizeof text))
 *         mpp_note("GPU %d: %s", ordinal, text);          // "pid 4711 holds 10.2 GB"
 */
#ifndef MPP_NVML_H
#define MPP_NVML_H

#include <stdbool.h>
#include <stddef.h>

/* The processes that hold memory of CUDA's GPU ORDINAL, this one left out: in a container, where this one cannot tell itself from
 * others, ask before it has made anything on the GPU. False, and TEXT empty: there are none, or nobody knows. */
bool mpp_nvml_others(int ordinal, char *text, size_t n);

/* "250 W, 1410 MHz". False, and TEXT empty: nobody knows. */
bool mpp_nvml_power(int ordinal, char *text, size_t n);

#endif
