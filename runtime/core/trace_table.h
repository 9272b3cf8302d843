/* trace_table.h - where a step goes, as a table: what each stage did, beside what its plan expects.
 *
 *     mpp_trace_summarise(r, part, own);                      // each rank; OWN has mpp_trace_summary_bytes
 *     struct mpp_trace_table *t = mpp_trace_table_new(program);   // rank 0; NULL: out of memory
 *     mpp_trace_table_add(t, stage, summary);                 // of each rank
 *     mpp_trace_table_print(t);
 *     mpp_trace_table_free(t); */
#ifndef MPP_TRACE_TABLE_H
#define MPP_TRACE_TABLE_H

#include <stdio.h>

#include "trace_internal.h"

/* Seconds of a step by what a rank did, each without what is nested inside. */
enum mpp_trace_share { MPP_SHARE_STEP, MPP_SHARE_FORWARD, MPP_SHARE_BACKWARD, MPP_SHARE_UPDATE, MPP_SHARE_COLLECTIVES, MPP_SHARE_MESSAGES,
                       MPP_SHARE_WAITS, MPP_SHARE_REST, MPP_SHARES };

/* Of some events: how many, and how long without waits. */
struct mpp_trace_sum {
    int64_t count;
    double seconds;
};

/* What a rank tells of its events. */
struct mpp_trace_summary {
    int64_t step[2], n[2], left_out;      /* the older step first; step 0: none */
    double share[MPP_SHARES];             /* of the later one */
    struct mpp_trace_sum forward, backward, update;
    struct mpp_trace_sum forecast[];      /* [stage->n_forecasts] */
};

int64_t mpp_trace_summary_bytes(const struct mpp_stage *stage);
/* PART: the older step, NULL where there is none, and the later. */
void mpp_trace_summarise(const struct mpp_rank *r, struct mpp_trace_part *const part[2], struct mpp_trace_summary *out);

enum mpp_trace_share mpp_trace_share_of(int kind);
/* "all-reduce" */
const char *mpp_trace_name(int kind);
/* "data 2 x model 4" */
void mpp_trace_print_axes(FILE *out, const struct mpp_stage *stage, unsigned mask);

struct mpp_trace_table;

struct mpp_trace_table *mpp_trace_table_new(const struct mpp_program *program);
void mpp_trace_table_free(struct mpp_trace_table *table);
void mpp_trace_table_add(struct mpp_trace_table *table, int stage, const struct mpp_trace_summary *summary);
/* The step it is of, 0: none; events that were left out. */
int64_t mpp_trace_table_step(const struct mpp_trace_table *table);
int64_t mpp_trace_table_left_out(const struct mpp_trace_table *table);
void mpp_trace_table_print(const struct mpp_trace_table *table);

#endif
