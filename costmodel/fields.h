/* fields.h - checked attributes and elements of device and cluster files.
 *
 *     static const char *const names[] = {"bytes", "usable", "source"};
 *     mpp_fields_known(diag, node, names, 3);
 *     double usable = mpp_fields_number(diag, node, "usable", MPP_NUMBER_FRACTION, 0.95);
 *
 * Each fault is reported at its line and a harmless value is returned, so that one run reports many;
 * callers compare mpp_diag_errors before and after. */
#ifndef MPP_FIELDS_H
#define MPP_FIELDS_H

#include <stdint.h>

#include "ir/diag.h"
#include "ir/xml.h"

enum mpp_number {
    MPP_NUMBER_POSITIVE,
    MPP_NUMBER_NOT_NEGATIVE,
    MPP_NUMBER_FRACTION                /* above 0, at most 1 */
};

/* The default of an attribute that must be there. */
#define MPP_FIELDS_REQUIRED (-1.0)

/* Report the attributes of NODE that are not among the N NAMES. */
void mpp_fields_known(struct mpp_diag *diag, const struct mpp_xml *node, const char *const *names, int n);

/* Report the children of NODE that are not among the N NAMES. */
void mpp_fields_children(struct mpp_diag *diag, const struct mpp_xml *node, const char *const *names, int n);

/* The only child of NODE called NAME, or NULL; a second one is reported, and where REQUIRED its absence. */
const struct mpp_xml *mpp_fields_child(struct mpp_diag *diag, const struct mpp_xml *node, const char *name,
                                      int required);

/* The number in attribute NAME, or FALLBACK where it is absent. Sizes ("_bytes" or "bytes") may end in KiB,
 * MiB, GiB or TiB. */
double mpp_fields_number(struct mpp_diag *diag, const struct mpp_xml *node, const char *name, enum mpp_number kind,
                        double fallback);

/* A whole number from LEAST to MOST, or FALLBACK (negative: required) where it is absent. */
int64_t mpp_fields_whole(struct mpp_diag *diag, const struct mpp_xml *node, const char *name, int64_t least,
                        int64_t most, int64_t fallback);

/* A string that is not empty, or NULL after a report. */
const char *mpp_fields_string(struct mpp_diag *diag, const struct mpp_xml *node, const char *name);

#endif
