/* report_internal.h - what the parts of the report share.
 *
 *     mpp_report_paragraph(r, 2, words, true);
 *     fprintf(r->out, "%s", mpp_report_seconds(r->arena, s));
 */
#ifndef MPP_REPORT_INTERNAL_H
#define MPP_REPORT_INTERNAL_H

#include <stdio.h>

#include "codegen/emit_internal.h"

enum { MPP_REPORT_WIDTH = 98 };

struct report {
    struct mpp_arena *arena;      /* scratch */
    const struct mpp_graph *whole; /* the training step */
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    const struct mpp_lprog *prog; /* NULL: several stages */
    FILE *out;
    /* of the stage that is looked at */
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    const struct mpp_mesh *mesh;
};

/* ---- report_text.c: numbers as people write them, in ARENA ---- */
const char *mpp_report_thousands(struct mpp_arena *arena, int64_t n);  /* 124,439,808 */
const char *mpp_report_three(struct mpp_arena *arena, double v);       /* three digits: 3.41, 27.9, 153 */
const char *mpp_report_percent(struct mpp_arena *arena, double v);     /* a bound in percent, rounded up */
const char *mpp_report_seconds(struct mpp_arena *arena, double s);     /* 3.41 s, 27.9 ms */
const char *mpp_report_millions(struct mpp_arena *arena, double n);    /* 1.56 B, 124 M, 916 K */
const char *mpp_report_bytes(const struct report *r, int64_t n);
const char *mpp_report_axes(const struct report *r, unsigned mask);    /* "model (4)", "data+model (8)" */
/* ", pinned to dp=2 and by the model file to shard:wte.weight=vocab/model"; "" where nothing is. */
const char *mpp_report_pinned(const struct report *r);
/* Words at INDENT (the first line's is printed already unless FIRST), broken at the report's width. */
void mpp_report_paragraph(const struct report *r, int indent, const char *words, bool first);

/* ---- report_stages.c ---- */
/* R seen at stage STAGE. */
struct report mpp_report_at(const struct report *r, int stage);
/* The stage whose devices are busy longest. */
int mpp_report_slowest(const struct mpp_plan *plan);
/* The table of several stages. */
void mpp_report_stages(const struct report *r);
/* What else was close. */
void mpp_report_others(const struct report *r);
/* How each axis of the stage's mesh is used: "batch over 8"; in R's arena. */
const char *mpp_report_axis(const struct report *r, int axis);

/* ---- report_overlap.c: what of the collectives of R's stage goes on beside its kernels ---- */
void mpp_report_overlap(const struct report *r);
/* Is the plan's time the one with collectives beside kernels (--overlap)? */
bool mpp_report_counts_overlap(const struct report *r);

/* ---- report_comm.c: of R's stage ---- */
void mpp_report_collectives(const struct report *r);
void mpp_report_unsplit(const struct report *r);

#endif
