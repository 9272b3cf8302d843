/* price.c - what one execution of a group costs on its largest shard: kernels and internal collectives.
 *
 * Compiled without contraction to fused multiply-add (as costmodel/ is), so that prices are the same bits everywhere. */
#include <assert.h>
#include <string.h>

#include "ir/op.h"
#include "planner/stage.h"

int64_t mpp_phase_count(const struct mpp_graph *g, enum mpp_phase phase)
{
    return phase == MPP_PHASE_UPDATE ? 1 : mpp_micro_batches(g);
}

static unsigned axes_on(struct mpp_split split, int factor)
{
    unsigned mask = 0;
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (split.axis[a] == factor)
            mask |= 1u << a;
    return mask;
}

unsigned mpp_price_internal_mask(const struct mpp_group *group, struct mpp_split split)
{
    unsigned mask = 0;
    for (int f = 0; f < group->rule->n_factors; f++)
        if (group->rule->factor[f].kind == MPP_FACTOR_INTERNAL)
            mask |= axes_on(split, f);
    return mask;
}

static bool operand_has(const struct mpp_rule *rule, int operand, int factor)
{
    const struct mpp_rule_operand *o = &rule->operand[operand];
    for (int d = 0; d < o->n_dims; d++)
        for (int k = 0; k < o->dim[d].n; k++)
            if (o->dim[d].factor[k] == factor)
                return true;
    return false;
}

static double operand_bytes(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                            struct mpp_split split, int operand)
{
    mpp_id t = operand < group->n_in ? group->in[operand] : group->out[operand - group->n_in];
    if (t < 0)
        return 0;
    return (double)mpp_sharding_bytes(&g->tensors[t], env->mesh, mpp_split_operand(group->rule, split, operand));
}

/* What products of operands of type T are computed in; their sums may be wider. */
static enum mpp_precision precision_of(enum mpp_dtype t)
{
    return t == MPP_F16 ? MPP_PRECISION_F16 : t == MPP_BF16 ? MPP_PRECISION_BF16 : MPP_PRECISION_F32;
}

/* A contraction as a batch of matrix products: by which of a, b and the output have a factor. */
static double contraction_s(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                            struct mpp_split split)
{
    const struct mpp_rule *rule = group->rule;
    int64_t batch = 1, m = 1, n = 1, k = 1;
    int a = 0, b = rule->n_in > 1 ? 1 : 0, out = rule->n_in;
    for (int f = 0; f < rule->n_factors; f++) {
        int64_t size = mpp_block_padded(env->mesh, rule->factor[f].size.size, axes_on(split, f));
        bool in_a = operand_has(rule, a, f), in_b = operand_has(rule, b, f), in_out = operand_has(rule, out, f);
        if (!in_out)
            k *= size;
        else if (in_a && in_b)
            batch *= size;
        else if (in_a)
            m *= size;
        else
            n *= size;
    }
    enum mpp_dtype dtype = g->tensors[group->in[a]].dtype;
    double s = mpp_cost_product_s(&env->cluster->device, precision_of(dtype), batch, m, n, k), bytes = 0;
    if (g->tensors[group->out[0]].dtype == dtype)
        return s;
    for (int o = 0; o < group->n_in + group->n_out; o++) /* the result is wider */
        bytes += operand_bytes(g, env, group, split, o);
    double memory_s = mpp_cost_memory_s(&env->cluster->device, bytes);
    return s > memory_s ? s : memory_s;
}

/* A sum over micro-batches is written by the kernel that makes its term: only what it must read again counts. */
static double accumulate_s(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                           struct mpp_split split)
{
    int passes = group->n_in - (mpp_micro_batches(g) > 1 ? 0 : 1);
    double bytes = operand_bytes(g, env, group, split, group->n_in) * passes;
    return mpp_cost_memory_s(&env->cluster->device, bytes) - mpp_cost_memory_s(&env->cluster->device, 0);
}

static double kernel_s(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                       struct mpp_split split)
{
    double flops = 0, bytes = 0;
    for (int i = 0; i < group->n_ops; i++)
        flops += mpp_op_flops(g, &g->ops[group->ops[i]]);
    for (int f = 0; f < group->rule->n_factors; f++) {
        int64_t size = group->rule->factor[f].size.size;
        if (size > 0)
            flops *= (double)mpp_block_padded(env->mesh, size, axes_on(split, f)) / (double)size;
    }
    for (int o = 0; o < group->n_in + group->n_out; o++)
        bytes += operand_bytes(g, env, group, split, o);
    /* Attention in 16 bits multiplies on the units for it. */
    const struct mpp_device *dev = &env->cluster->device;
    bool multiplies = group->n_ops == 1 && mpp_op_info(g->ops[group->ops[0]].kind)->compute == MPP_COMPUTE_LOW;
    enum mpp_precision p = multiplies ? precision_of(g->tensors[group->in[0]].dtype) : MPP_PRECISION_F32;
    if (p == MPP_PRECISION_F32 || !(dev->peak_flops_per_s[p] > 0))
        return mpp_cost_kernel_s(dev, flops, bytes);
    double s = dev->launch_s + flops / (dev->peak_flops_per_s[p] * dev->gemm.efficiency), memory_s = mpp_cost_memory_s(dev, bytes);
    return s > memory_s ? s : memory_s;
}

static int64_t internal_ps(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                           struct mpp_split split)
{
    unsigned mask = mpp_price_internal_mask(group, split);
    struct mpp_internal list[8];
    int64_t sum = 0;
    if (!mask)
        return 0;
    for (int i = 0; i < group->n_ops; i++) {
        int n = mpp_op_internal(g, &g->ops[group->ops[i]], env->mesh, split, list, 8);
        for (int j = 0; j < n; j++)
            sum += mpp_cost_collective(env->cluster, &env->groups[mask], MPP_COLLECTIVE_ALL_REDUCE,
                                       4.0 * (double)list[j].elements);
    }
    return sum;
}

bool mpp_price_is_receive(const struct mpp_graph *g, const struct mpp_group *group)
{
    return g->ops[group->ops[0]].kind == MPP_OP_RECV;
}

int64_t mpp_price_receive_bytes(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group)
{
    int64_t n = 1;
    for (int a = 0; a < env->mesh->n_axes; a++)
        n *= env->mesh->size[a];
    return (mpp_tensor_bytes(&g->tensors[group->out[0]]) + n - 1) / n;
}

/* Each of the N devices gets its Nth part from its peer of the neighbouring stage, all at once; what the split leaves
 * whole is then gathered (scatter-gather of Narayanan et al., SC21, section 4.1). */
static double receive_s(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                        struct mpp_split split)
{
    const struct mpp_cluster *c = env->cluster;
    int n = 1;
    unsigned whole = 0;
    for (int a = 0; a < env->mesh->n_axes; a++) {
        n *= env->mesh->size[a];
        if (split.axis[a] < 0 && env->mesh->size[a] > 1)
            whole |= 1u << a;
    }
    bool forward = group->phase != MPP_PHASE_BACKWARD;
    int to = forward ? env->first : env->first + n - 1, from = forward ? to - 1 : to + 1;
    double s = 0;
    if (from >= 0 && from < c->n_devices)
        s = mpp_cost_send_s(c, from, to, n < c->devices_per_node ? n : c->devices_per_node,
                            (double)mpp_price_receive_bytes(g, env, group));
    if (whole)
        s += mpp_cost_collective_s(c, &env->groups[whole], MPP_COLLECTIVE_ALL_GATHER, operand_bytes(g, env, group, split, group->n_in));
    return env->receives * s;
}

int64_t mpp_price_group_in(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                           struct mpp_split split, int64_t *out_internal_ps)
{
    const struct mpp_op_info *info = mpp_op_info(g->ops[group->ops[0]].kind);
    double s;
    *out_internal_ps = 0;
    if (mpp_price_is_receive(g, group))
        return mpp_cost_ps(receive_s(g, env, group, split));
    if (group->n_out == 0)        /* a Send: the receiver pays */
        return 0;
    if (g->tensors[group->out[0]].role == MPP_ROLE_ACCUM)
        s = accumulate_s(g, env, group, split);
    else if (group->n_ops == 1 && info->cls == MPP_CLASS_CONTRACTION)
        s = contraction_s(g, env, group, split);
    else
        s = kernel_s(g, env, group, split);
    /* Frameworks that fuse nothing else still update all parameters in one call (apex's multi_tensor_apply). */
    if (g->unfused && group->phase == MPP_PHASE_UPDATE)
        s -= env->cluster->device.launch_s;
    *out_internal_ps = internal_ps(g, env, group, split);
    return mpp_cost_ps(s);
}

int64_t mpp_price_group(const struct mpp_graph *graph, const struct mpp_cluster *cluster, const struct mpp_mesh *mesh,
                        const struct mpp_group *group, struct mpp_split split, int64_t *out_internal_ps)
{
    struct mpp_reshard_env env;
    mpp_reshard_env_init(cluster, mesh, 0, &env);
    return mpp_price_group_in(graph, &env, group, split, out_internal_ps);
}
