/* rereport.h - the reports of a plan directory, written again.
 *
 *     MPP_TRY(mpp_rereport(arena, diag, &plandir, profile));   // NULL: no profile
 */
#ifndef MPP_REREPORT_H
#define MPP_REREPORT_H

#include "inspect/profile.h"

/* Write report.txt and report.html into D's directory, each whole or not at all, with what PROFILE measured beside what was planned. */
enum mpp_status mpp_rereport(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plandir *d,
                             const struct mpp_profile *profile) MPP_CHECKED;

#endif
