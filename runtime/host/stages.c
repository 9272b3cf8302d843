/* stages.c - what goes from stage to stage, and sums over stages. */
#include <string.h>

#include "core/trace.h"
#include "core/transfers.h"
#include "core/transport.h"
#include "mpp_rt.h"

void mpp_send(struct mpp_rank *r, int transfer, const void *x)
{
    double begun_s = mpp_trace_begin(r);
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    r->transport->ops->transfer_send(r, transfer, x);
    if (r->trace != NULL)
        mpp_trace_end(r, begun_s, MPP_TRACE_SEND, transfer, 0, mpp_transfer_local_bytes(r, t, t->from_split));
}

void mpp_receive(struct mpp_rank *r, int transfer, void *x)
{
    double begun_s = mpp_trace_begin(r);
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    r->transport->ops->transfer_receive(r, transfer, x);
    if (r->trace != NULL)
        mpp_trace_end(r, begun_s, MPP_TRACE_RECEIVE, transfer, 0, mpp_transfer_local_bytes(r, t, t->to_split));
}

enum { STAGES_AT_ONCE = 64 };

/* The first rank of each stage tells its term, the others zeros: however the terms are brought together, that changes no bit
 * of them. Every rank then adds them in the same order. */
void mpp_sum_over_stages(struct mpp_rank *r, float *x)
{
    float terms[STAGES_AT_ONCE], sum = 0;
    double begun_s = mpp_trace_begin(r);
    int n = r->program->n_stages;
    for (int first = 0; n > 1 && first < n; first += STAGES_AT_ONCE) {
        int count = n - first < STAGES_AT_ONCE ? n - first : STAGES_AT_ONCE, own = r->stage_index - first;
        memset(terms, 0, sizeof terms);
        if (own >= 0 && own < count && r->rank == r->stage->first_rank)
            terms[own] = x != NULL ? *x : 0;
        r->transport->ops->all_reduce(r, MPP_WORLD, terms, count, false);
        for (int i = 0; i < count; i++)
            sum = first + i == 0 ? terms[i] : sum + terms[i];
    }
    if (n == 1)
        return;
    if (x != NULL)
        *x = sum;
    mpp_trace_end(r, begun_s, MPP_TRACE_STAGES, 0, 0, 4);
}
