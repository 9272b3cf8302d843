/* Counter-based random numbers. */
#include "mpp_math.h"
#include "mpp_rt.h"

float mpp_uniform(const struct mpp_rank *r, uint32_t op, uint64_t element)
{
    return mpp_uniform_at(r->seed, r->step, op, (uint32_t)element, (uint32_t)(element >> 32));
}

int64_t mpp_first_sample(const struct mpp_rank *r)
{
    return r->micro_batch * (r->program->batch / r->program->micro_batches);
}
