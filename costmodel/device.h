/* device.h - a <device> element or a built-in device's name, as a struct mpp_device. */
#ifndef MPP_DEVICE_H
#define MPP_DEVICE_H

#include "costmodel/costmodel.h"
#include "ir/xml.h"

/* Read the <device> NODE. Faults are reported; *OUT points into ARENA. */
void mpp_device_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *node,
                     struct mpp_device *out);

/* Read the built-in device NAME; LOC is where it was asked for. */
void mpp_device_find(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, struct mpp_loc loc,
                     struct mpp_device *out);

/* "a, b, c" of N NAMES, for messages. */
const char *mpp_device_list(struct mpp_arena *arena, const char *const *names, int n);

#endif
