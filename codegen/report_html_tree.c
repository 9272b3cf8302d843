/* report_html_tree.c - of report.html: a stage's tensors and kernels, those of layers that are alike once. */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/report_html.h"
#include "ir/op.h"
#include "planner/timeline.h"

enum { MAX_OPERANDS = 16 };       /* of a kernel that are listed one by one */

bool mpp_html_layer(const struct mpp_html *h, const char *name, int *out_repeat, int *out_index, const char **out_rest)
{
    for (int r = 0; r < h->n_repeats; r++) {
        size_t n = h->repeat[r] ? strlen(h->repeat[r]) : 0;
        if (n == 0 || strncmp(name, h->repeat[r], n) != 0 || name[n] != '.' || !isdigit((unsigned char)name[n + 1]))
            continue;
        char *end;
        long index = strtol(name + n + 1, &end, 10);
        if ((*end != '.' && *end != '\0') || index > INT_MAX)
            continue;
        *out_repeat = r;
        *out_index = (int)index;
        *out_rest = end;
        return true;
    }
    return false;
}

const char *mpp_html_template(const struct mpp_html *h, const char *name, int *out_layer)
{
    int r, index;
    const char *rest;
    *out_layer = -1;
    if (!mpp_html_layer(h, name, &r, &index, &rest))
        return name;
    int away = index < h->first[r] ? index - h->first[r] : index > h->last[r] ? index - h->last[r] : 0;
    *out_layer = index - away - h->first[r];
    return away ? mpp_arena_printf(h->r->arena, "%s.*%+d%s", h->repeat[r], away, rest)
                : mpp_arena_printf(h->r->arena, "%s.*%s", h->repeat[r], rest);
}

const char *mpp_html_seen(const struct mpp_html *h, const char *name, const char *from)
{
    int r, index, from_r, from_index;
    const char *rest, *from_rest;
    if (!mpp_html_layer(h, name, &r, &index, &rest))
        return name;
    if (!mpp_html_layer(h, from, &from_r, &from_index, &from_rest))
        from_index = h->first[r];
    else if (r != from_r)
        return name;
    return index == from_index ? mpp_arena_printf(h->r->arena, "%s.*%s", h->repeat[r], rest)
                               : mpp_arena_printf(h->r->arena, "%s.*%+d%s", h->repeat[r], index - from_index, rest);
}

/* Of all tensors that the plan splits: "batch", or its place where a dimension has no name. */
static const char *dim_name(struct mpp_arena *arena, const struct mpp_gtensor *t, int d)
{
    return t->dims[d].name ? t->dims[d].name : mpp_arena_printf(arena, "dimension %d", d);
}

const char *mpp_html_words(const struct report *r, const struct mpp_gtensor *t, struct mpp_sharding s)
{
    struct mpp_text out = {.arena = r->arena};
    unsigned partial = 0;
    for (int d = 0; d < t->n_dims; d++) {
        unsigned mask = mpp_sharding_mask(s, d);
        if (mask)
            mpp_text_add(&out, "%s%s over %s", out.n ? ", " : "", dim_name(r->arena, t, d), mpp_report_axes(r, mask));
    }
    for (int a = 0; a < r->mesh->n_axes; a++)
        partial |= s.axis[a] == MPP_PARTIAL ? 1u << a : 0;
    if (partial)
        mpp_text_add(&out, "%spartial sums over %s", out.n ? ", " : "", mpp_report_axes(r, partial));
    if (!out.n)
        mpp_text_add(&out, r->stage->n_devices > 1 ? "whole on every device" : "whole");
    return mpp_text_string(&out);
}

/* "batch 8 × seq 1024" of the whole tensor; "4 × 1024" of its largest shard. */
static const char *shape_words(const struct report *r, const struct mpp_gtensor *t)
{
    struct mpp_text out = {.arena = r->arena};
    for (int d = 0; d < t->n_dims; d++) {
        const char *number = mpp_arena_printf(r->arena, "%lld", (long long)t->dims[d].size), *name = t->dims[d].name;
        bool named = name && strcmp(name, number) != 0;
        mpp_text_add(&out, "%s%s%s%s", d ? " \xc3\x97 " : "", named ? name : "", named ? " " : "", number);
    }
    return out.n ? mpp_text_string(&out) : "scalar";
}

static const char *local_words(const struct report *r, const struct mpp_gtensor *t, struct mpp_sharding s)
{
    struct mpp_text out = {.arena = r->arena};
    for (int d = 0; d < t->n_dims; d++)
        mpp_text_add(&out, "%s%lld", d ? " \xc3\x97 " : "",
                     (long long)mpp_block_padded(r->mesh, t->dims[d].size, mpp_sharding_mask(s, d)));
    return out.n ? mpp_text_string(&out) : "scalar";
}

/* A parameter's state is called after it: "h.0.ln_1.weight.m" for m.h.0.ln_1.weight. */
static const char *tensor_name(const struct report *r, const struct mpp_gtensor *x)
{
    if (x->role != MPP_ROLE_STATE || x->param < 0)
        return x->name;
    const char *param = r->g->tensors[x->param].name;
    size_t n = strlen(param), all = strlen(x->name);
    if (all <= n + 1 || strcmp(x->name + all - n, param) != 0 || x->name[all - n - 1] != '.')
        return x->name;
    return mpp_arena_printf(r->arena, "%s.%.*s", param, (int)(all - n - 1), x->name);
}

/* ---- tensors ---- */

/* How each tensor lies where it is made or rests, [n_tensors]; *OUT_KNOWN: it does (what stays inside a kernel lies nowhere). */
static struct mpp_sharding *shardings(const struct report *r, bool **out_known)
{
    const struct mpp_graph *g = r->g;
    struct mpp_sharding *lies = mpp_arena_array(r->arena, g->n_tensors, struct mpp_sharding);
    bool *known = *out_known = mpp_arena_array(r->arena, g->n_tensors, bool);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_INPUT) {
            lies[t] = r->stage->resting[t];
            known[t] = true;
        }
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        for (int o = 0; o < group->n_out; o++) {
            mpp_id t = group->out[o], of = g->tensors[t].updates;
            lies[t] = mpp_split_operand(group->rule, r->stage->split[i], group->n_in + o);
            known[t] = true;
            if (of >= 0 && g->tensors[of].role == MPP_ROLE_STATE) {
                lies[of] = lies[t];
                known[of] = true;
            }
        }
    }
    return lies;
}

/* Fields: name, role, phase (-1: it rests), type, shape, sharding, shape on a device, bytes there, elements in all, kept. */
static void write_tensors(struct mpp_html *h)
{
    const struct report *r = h->r;
    struct mpp_html_records rs;
    bool *known;
    const struct mpp_sharding *lies = shardings(r, &known);
    mpp_html_records_begin(h, &rs);
    for (mpp_id t = 0; t < r->g->n_tensors; t++) {
        const struct mpp_gtensor *x = &r->g->tensors[t];
        int layer, phase = x->op >= 0 ? (int)r->g->ops[x->op].phase : -1;
        if (!known[t] || x->updates >= 0)
            continue;
        const char *name = mpp_html_template(h, tensor_name(r, x), &layer);
        struct mpp_html_strings *s = h->strings;
        int of = mpp_html_intern(s, name), dtype = mpp_html_intern(s, mpp_dtype_name(x->dtype)); /* in this order */
        int shape = mpp_html_intern(s, shape_words(r, x)), split = mpp_html_intern(s, mpp_html_words(r, x, lies[t]));
        int local = mpp_html_intern(s, local_words(r, x, lies[t]));
        mpp_html_records_add(&rs, mpp_arena_printf(r->arena, "%d,%d,%d,%d,%d,%d,%d,%lld,%lld,%d", of, (int)x->role, phase, dtype, shape, split, local,
            (long long)mpp_sharding_bytes(x, r->mesh, lies[t]), (long long)mpp_tensor_count(x),
            x->role == MPP_ROLE_PARAM && r->stage->kept[t]), layer);
    }
    mpp_html_records_write(&rs, "tensors");
}

/* ---- kernels ---- */

/* What each axis splits of the group's loops: "batch over data (8), ffn over model (4)". */
static const char *split_words(const struct report *r, const struct mpp_group *group, struct mpp_split split)
{
    struct mpp_text out = {.arena = r->arena};
    unsigned done = 0;
    for (int a = 0; a < r->mesh->n_axes; a++) {
        int f = split.axis[a];
        unsigned mask = 0;
        if (f == MPP_WHOLE || r->mesh->size[a] == 1 || (done >> a & 1))
            continue;
        for (int b = a; b < r->mesh->n_axes; b++)
            mask |= split.axis[b] == f && r->mesh->size[b] > 1 ? 1u << b : 0;
        done |= mask;
        const char *what = f == MPP_PARTIAL ? "partial sums" : group->rule->factor[f].size.name;
        mpp_text_add(&out, "%s%s over %s", out.n ? ", " : "", what ? what : "rows", mpp_report_axes(r, mask));
    }
    if (!out.n)
        mpp_text_add(&out, r->stage->n_devices > 1 ? "whole on every device" : "whole");
    return mpp_text_string(&out);
}

/* Other members' names, and of the model file's element where there is one its type and line: "h.*.mlp.gelu". */
static const char *fused_words(const struct mpp_html *h, const struct mpp_group *group)
{
    struct mpp_text out = {.arena = h->r->arena};
    const char *first = h->r->g->ops[group->ops[0]].name;
    for (int k = 1; k < group->n_ops; k++)
        mpp_text_add(&out, "%s%s", k > 1 ? ", " : "", mpp_html_seen(h, h->r->g->ops[group->ops[k]].name, first));
    return mpp_text_string(&out);
}

/* [[name, sharding, shape on a device, whole shape], ...] of the operands FROM .. TO - 1; where there are very many, which are alike (terms of
 * the gradients' norm), the first. */
static const char *operands(const struct mpp_html *h, const struct mpp_group *group, struct mpp_split split, int from, int to)
{
    const struct report *r = h->r;
    const char *reader = r->g->ops[group->ops[0]].name;
    struct mpp_text out = {.arena = r->arena};
    bool many = to - from > MAX_OPERANDS;
    mpp_text_add(&out, "[");
    for (int o = from; o < (many ? from + 1 : to); o++) {
        mpp_id t = o < group->n_in ? group->in[o] : group->out[o - group->n_in];
        int layer;
        if (t < 0)
            continue;
        const struct mpp_gtensor *x = &r->g->tensors[t];
        struct mpp_sharding s = mpp_split_operand(group->rule, split, o);
        const char *name = many ? mpp_arena_printf(r->arena, "%s and %d more", mpp_html_template(h, tensor_name(r, x), &layer), to - from - 1)
                                : mpp_html_seen(h, tensor_name(r, x), reader);
        int of = mpp_html_intern(h->strings, name), words = mpp_html_intern(h->strings, mpp_html_words(r, x, s)); /* in this order */
        int local = mpp_html_intern(h->strings, local_words(r, x, s)), shape = mpp_html_intern(h->strings, shape_words(r, x));
        mpp_text_add(&out, "%s[%d,%d,%d,%d]", out.n > 1 ? "," : "", of, words, local, shape);
    }
    mpp_text_add(&out, "]");
    return mpp_text_string(&out);
}

/* What kernels take; collectives, those inside of kernels and what is received are listed as such.
 * Fields: name, phase, op, element of the model file, its place in the file, other ops of the kernel, split, time and time of
 * collectives inside of one execution, executions per step, what it reads, what it makes. */
static void write_kernels(struct mpp_html *h)
{
    const struct report *r = h->r;
    struct mpp_html_records rs;
    mpp_html_records_begin(h, &rs);
    int64_t *compute_ps = mpp_arena_array(r->arena, r->g->n_groups, int64_t), *internal_ps = mpp_arena_array(r->arena, r->g->n_groups, int64_t);
    for (int i = 0; i < h->n_pieces; i++)
        if (h->piece[i].kind == MPP_PIECE_COMPUTE || h->piece[i].kind == MPP_PIECE_INTERNAL)
            (h->piece[i].kind == MPP_PIECE_INTERNAL ? internal_ps : compute_ps)[h->piece[i].group] += h->piece[i].cost_ps;
    for (int i = 0; i < r->g->n_groups; i++) {
        const struct mpp_group *group = &r->g->groups[i];
        const struct mpp_gop *op = &r->g->ops[group->ops[0]];
        struct mpp_split split = r->stage->split[i];
        struct mpp_html_strings *s = h->strings;
        int layer;
        int64_t count = group->phase == MPP_PHASE_UPDATE ? 1 : r->plan->micro_batches;
        const char *name = mpp_html_template(h, op->name, &layer);
        const char *at = op->loc.file ? mpp_arena_printf(r->arena, "%s:%d", mpp_html_basename(op->loc.file), op->loc.line) : "";
        int of = mpp_html_intern(s, name), kind = mpp_html_intern(s, mpp_op_info(op->kind)->name); /* in this order */
        int type = mpp_html_intern(s, op->item_type ? op->item_type : ""), where = mpp_html_intern(s, at);
        int fused = mpp_html_intern(s, fused_words(h, group)), words = mpp_html_intern(s, split_words(r, group, split));
        const char *in = operands(h, group, split, 0, group->n_in), *out = operands(h, group, split, group->n_in, group->n_in + group->n_out);
        mpp_html_records_add(&rs, mpp_arena_printf(r->arena, "%d,%d,%d,%d,%d,%d,%d,%lld,%lld,%lld,%s,%s", of, (int)group->phase, kind, type, where,
            fused, words, (long long)compute_ps[i], (long long)internal_ps[i], (long long)count, in, out), layer);
    }
    mpp_html_records_write(&rs, "kernels");
}

void mpp_html_tree(struct mpp_html *h)
{
    write_tensors(h);
    write_kernels(h);
}
