/* export_dot.c - the partitioned graph for Graphviz: a box per stage, in it forward and backward, in them layers. What repeats
 * is drawn once: layers that are planned alike, and stages that are alike. */
#include <string.h>

#include "codegen/report_html.h"
#include "inspect/export.h"
#include "ir/op.h"

/* What names of nodes begin with, and the number of a part, until they are known. No label holds these bytes. */
#define STAGE "\x01"
#define PART "\x02"

/* Groups of one layer and phase that stand together in the graph, or of no layer. */
struct part {
    enum mpp_phase phase;
    int repeat, index;            /* -1: of no layer */
    int first, n;                 /* groups, in order, among `member` */
    const char *text;             /* nodes and the edges between them, by their places in the part: equal for layers alike */
    int alike;                    /* the part that is drawn for it: itself, or one before */
    int times, last_index;        /* of a drawn one: how many parts it stands for, and the last one's layer */
};

struct drawing {
    struct report r;              /* at the stage that is drawn */
    struct mpp_html h;
    struct mpp_text out;
    int n_parts;
    struct part *part;
    size_t cap;
    int *part_of, *place;         /* [n_groups] the part of a group (-1: not drawn) and its place there */
    int *member, n_members;
    struct mpp_html_strings edges; /* that are drawn already */
};

/* TEXT inside quotes of dot; a newline breaks the line. */
static const char *escaped(struct mpp_arena *arena, const char *text)
{
    struct mpp_text out = {.arena = arena};
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n')
            mpp_text_add(&out, "\\n");
        else if (c == '"' || c == '\\')
            mpp_text_add(&out, "\\%c", c);
        else
            mpp_text_add(&out, "%c", c < 0x20 || c == 0x7f ? '?' : c);
    }
    return mpp_text_string(&out);
}

/* TEXT with TO for each FROM. */
static const char *replaced(struct mpp_arena *arena, const char *text, const char *from, const char *to)
{
    struct mpp_text out = {.arena = arena};
    for (const char *at; (at = strstr(text, from)) != NULL; text = at + strlen(from))
        mpp_text_add(&out, "%.*s%s", (int)(at - text), text, to);
    mpp_text_add(&out, "%s", text);
    return mpp_text_string(&out);
}

/* ---- parts ---- */

static bool drawn(const struct mpp_group *group)
{
    return group->phase == MPP_PHASE_FORWARD || group->phase == MPP_PHASE_BACKWARD;
}

static void find_parts(struct drawing *d)
{
    const struct mpp_graph *g = d->r.g;
    d->part_of = mpp_arena_array(d->r.arena, g->n_groups, int);
    d->place = mpp_arena_array(d->r.arena, g->n_groups, int);
    d->member = mpp_arena_array(d->r.arena, g->n_groups, int);
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_gop *op = &g->ops[g->groups[i].ops[0]];
        int repeat = op->index < 0 ? -1 : op->repeat, index = repeat < 0 ? -1 : op->index, k = 0;
        d->part_of[i] = -1;
        if (!drawn(&g->groups[i]))
            continue;
        for (k = d->n_parts - 1; k >= 0; k--)
            if (d->part[k].phase == g->groups[i].phase && d->part[k].repeat == repeat && d->part[k].index == index)
                break;
        if (k < 0) {
            d->part = mpp_arena_grow(d->r.arena, d->part, &d->cap, (size_t)d->n_parts + 1, sizeof *d->part);
            k = d->n_parts++;
            d->part[k] = (struct part){.phase = g->groups[i].phase, .repeat = repeat, .index = index, .times = 1, .last_index = index};
        }
        d->part_of[i] = k;
        d->place[i] = d->part[k].n++;
    }
    for (int k = 0, at = 0; k < d->n_parts; at += d->part[k++].n)
        d->part[k].first = at;
    for (int i = 0; i < g->n_groups; i++)
        if (d->part_of[i] >= 0)
            d->member[d->part[d->part_of[i]].first + d->place[i]] = i;
}

/* ---- copies ---- */

static const char *step_words(const struct drawing *d, const struct mpp_reshard_step *s)
{
    return mpp_arena_printf(d->r.arena, "%s over %s: %s, %s", mpp_step_name(s->kind), mpp_report_axes(&d->r, s->mask),
                            mpp_report_bytes(&d->r, s->bytes), mpp_report_seconds(d->r.arena, (double)s->cost_ps * 1e-12));
}

/* Does GROUP add a gradient to its sum over micro-batches, and nothing else? */
static bool only_adds(const struct drawing *d, int group_id)
{
    const struct mpp_group *group = &d->r.g->groups[group_id];
    return group->n_out == 1 && group->n_ops == 1 && d->r.g->tensors[group->out[0]].role == MPP_ROLE_ACCUM;
}

/* Does T rest between micro-batches? It has no node of its own, but a line in those that read it. */
static bool rests(const struct mpp_graph *g, mpp_id t)
{
    return g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_INPUT;
}

/* The copy through which GROUP reads operand K, -1: as it is made. */
static int copy_of(const struct drawing *d, int group_id, int k)
{
    const struct mpp_group *group = &d->r.g->groups[group_id];
    struct mpp_sharding want = mpp_split_operand(group->rule, d->r.stage->split[group_id], k);
    for (int c = 0; c < d->r.stage->n_copies; c++) {
        const struct mpp_copy *copy = &d->r.stage->copies[c];
        bool now = copy->phase == group->phase || (copy->once && copy->phase == MPP_PHASE_FORWARD);
        if (copy->tensor == group->in[k] && now && !copy->store && copy->n_steps > 0 && mpp_sharding_equal(copy->to, want))
            return c;
    }
    return -1;
}

/* A sum of gradients, or not. */
static const char *copy_text(const struct drawing *d, int c, int group_id)
{
    const struct mpp_copy *copy = &d->r.stage->copies[c];
    struct mpp_text label = {.arena = d->r.arena};
    const char *colour = only_adds(d, group_id) ? "#b3261e" : "#c2570c";
    for (int s = 0; s < copy->n_steps; s++)
        mpp_text_add(&label, "%s%s", s ? "\n" : "", step_words(d, &copy->steps[s]));
    return mpp_arena_printf(d->r.arena, "[label=\"%s\", shape=ellipse, color=\"%s\", fontcolor=\"%s\"]",
                            escaped(d->r.arena, mpp_text_string(&label)), colour, colour);
}

static const char *edge_words(const struct drawing *d, mpp_id t, struct mpp_sharding s)
{
    return escaped(d->r.arena, mpp_sharding_text(d->r.arena, &d->r.g->tensors[t], d->r.mesh, s));
}

/* The sharding in which tensor T is made. */
static struct mpp_sharding made(const struct drawing *d, int producer, mpp_id t)
{
    const struct mpp_group *p = &d->r.g->groups[producer];
    for (int o = 0; o < p->n_out; o++)
        if (p->out[o] == t)
            return mpp_split_operand(p->rule, d->r.stage->split[producer], p->n_in + o);
    return mpp_sharding_whole();
}

/* ---- nodes ---- */

/* "batch/data, heads/model"; "" where the op is whole. */
static const char *split_words(const struct drawing *d, const struct mpp_group *group, struct mpp_split split)
{
    struct mpp_text out = {.arena = d->r.arena};
    for (int a = 0; a < d->r.mesh->n_axes; a++) {
        int f = split.axis[a];
        if (f == MPP_WHOLE || d->r.mesh->size[a] == 1)
            continue;
        const char *factor = f == MPP_PARTIAL ? "partial sums" : group->rule->factor[f].size.name;
        mpp_text_add(&out, "%s%s/%s", out.n ? ", " : "", factor ? factor : mpp_arena_printf(d->r.arena, "factor %d", f), d->r.mesh->name[a]);
    }
    return mpp_text_string(&out);
}

/* Weights and inputs that a kernel reads: a line each, with how they rest, and how they come to it. */
static void add_weights(struct drawing *d, int group_id, struct mpp_text *label)
{
    const struct mpp_graph *g = d->r.g;
    const struct mpp_group *group = &g->groups[group_id];
    const char *of = g->ops[group->ops[0]].name;
    for (int k = 0; k < group->n_in && k < 8; k++) {
        mpp_id t = group->in[k];
        if (t < 0 || !rests(g, t))
            continue;
        int c = copy_of(d, group_id, k);
        mpp_text_add(label, "\n%s %s", mpp_html_seen(&d->h, g->tensors[t].name, of),
                     mpp_sharding_text(d->r.arena, &g->tensors[t], d->r.mesh, d->r.stage->resting[t]));
        for (int s = 0; c >= 0 && s < d->r.stage->copies[c].n_steps; s++)
            mpp_text_add(label, "\n  %s", step_words(d, &d->r.stage->copies[c].steps[s]));
    }
}

static const char *node_text(struct drawing *d, int group_id)
{
    const struct mpp_graph *g = d->r.g;
    const struct mpp_group *group = &g->groups[group_id];
    const struct mpp_gop *op = &g->ops[group->ops[0]];
    struct mpp_text label = {.arena = d->r.arena};
    bool message = group->n_out == 0 || strcmp(mpp_op_info(op->kind)->name, "Recv") == 0;
    const char *split = split_words(d, group, d->r.stage->split[group_id]), *info = mpp_op_info(op->kind)->name;
    mpp_text_add(&label, "%s\n%s", mpp_html_seen(&d->h, op->name, op->name), info);
    if (group->n_ops > 1)
        mpp_text_add(&label, " and %d more", group->n_ops - 1);
    if (*split)
        mpp_text_add(&label, "\n%s", split);
    add_weights(d, group_id, &label);
    bool product = mpp_op_info(op->kind)->cls == MPP_CLASS_CONTRACTION;
    return mpp_arena_printf(d->r.arena, "[label=\"%s\"%s]", escaped(d->r.arena, mpp_text_string(&label)),
                            message ? ", shape=cds, color=\"#00796b\"" : product ? ", style=\"filled,bold\", fillcolor=\"#dbe9ff\"" : "");
}

/* ---- text of a part ---- */

/* The first copy before GROUP; those of a group stand together. */
static int first_copy(const struct drawing *d, int group_id)
{
    int c = 0;
    while (c < d->r.stage->n_copies && d->r.stage->copies[c].first_group < group_id)
        c++;
    return c;
}

/* Copies of what rests are lines of those that read it. */
static bool is_node(const struct drawing *d, int c)
{
    const struct mpp_copy *copy = &d->r.stage->copies[c];
    return copy->n_steps > 0 && !copy->store && !rests(d->r.g, copy->tensor);
}

/* Has operand K of GROUP a node of its own for the copy that it is read through? *OUT_COPY: the copy. */
static bool has_copy_node(const struct drawing *d, int group_id, int k, int *out_copy)
{
    mpp_id t = d->r.g->groups[group_id].in[k];
    *out_copy = t < 0 || rests(d->r.g, t) ? -1 : copy_of(d, group_id, k);
    return *out_copy >= 0;
}

/* A sum over micro-batches that takes what is there needs no node. */
static bool has_node(const struct drawing *d, int group_id)
{
    int c;
    return !only_adds(d, group_id) || has_copy_node(d, group_id, 0, &c);
}

/* Nodes, those of copies too, each after STAGE and its number. */
static const char *part_text(struct drawing *d, const struct part *p)
{
    struct mpp_text out = {.arena = d->r.arena};
    for (int m = 0; m < p->n; m++) {
        int i = d->member[p->first + m], first = first_copy(d, i);
        if (!has_node(d, i))
            continue;
        mpp_text_add(&out, "      " STAGE "p" PART "_%d %s;\n", m, node_text(d, i));
        for (int c = first; c < d->r.stage->n_copies && d->r.stage->copies[c].first_group == i; c++)
            if (is_node(d, c))
                mpp_text_add(&out, "      " STAGE "p" PART "_%d_c%d %s;\n", m, c - first, copy_text(d, c, i));
    }
    return mpp_text_string(&out);
}

static void fold_parts(struct drawing *d)
{
    for (int k = 0; k < d->n_parts; k++) {
        struct part *p = &d->part[k];
        p->text = part_text(d, p);
        p->alike = k;
        for (int j = 0; j < k && p->repeat >= 0 && p->alike == k; j++) {
            const struct part *q = &d->part[j];
            if (q->alike == j && q->phase == p->phase && q->repeat == p->repeat && strcmp(q->text, p->text) == 0)
                p->alike = j;
        }
        if (p->alike != k) {
            d->part[p->alike].times++;
            d->part[p->alike].last_index = p->index;
        }
    }
}

/* ---- a stage ---- */

static const char *node_name(const struct drawing *d, int group_id)
{
    return mpp_arena_printf(d->r.arena, STAGE "p%d_%d", d->part[d->part_of[group_id]].alike, d->place[group_id]);
}

static void draw_part(struct drawing *d, int k)
{
    const struct part *p = &d->part[k];
    if (p->repeat >= 0) {
        int first = p->index - d->h.first[p->repeat], last = p->last_index - d->h.first[p->repeat];
        const char *which = p->times == 1 ? mpp_arena_printf(d->r.arena, "layer %d of %s", first, d->h.repeat[p->repeat])
                            : mpp_arena_printf(d->r.arena, "%s: %d layers alike, %d to %d", d->h.repeat[p->repeat], p->times,
                                               first < last ? first : last, first < last ? last : first);
        mpp_text_add(&d->out, "      subgraph \"cluster_" STAGE "p%d\" { label=\"%s\"; style=\"rounded,dashed\";\n", k, escaped(d->r.arena, which));
    }
    mpp_text_add(&d->out, "%s", replaced(d->r.arena, p->text, PART, mpp_arena_printf(d->r.arena, "%d", k)));
    if (p->repeat >= 0)
        mpp_text_add(&d->out, "      }\n");
}

static void draw_phase(struct drawing *d, enum mpp_phase phase, const char *label)
{
    bool any = false;
    for (int k = 0; k < d->n_parts; k++)
        any = any || d->part[k].phase == phase;
    if (!any)
        return;
    mpp_text_add(&d->out, "    subgraph \"cluster_" STAGE "%s\" { label=\"%s\"; style=filled; color=\"#f4f4f4\";\n", label, label);
    for (int k = 0; k < d->n_parts; k++)
        if (d->part[k].phase == phase && d->part[k].alike == k)
            draw_part(d, k);
    mpp_text_add(&d->out, "    }\n");
}

/* LINE, unless it is drawn already. */
static void draw_edge(struct drawing *d, const char *line)
{
    int n = d->edges.n;
    mpp_html_intern(&d->edges, line);
    if (d->edges.n > n)
        mpp_text_add(&d->out, "    %s\n", line);
}

/* What GROUP reads as operand K: an edge from where it is made, through the copy's node if there is one. Inputs, weights and the
 * activations that forward leaves for backward have none. */
static void draw_operand(struct drawing *d, const int *producer, int group_id, int k)
{
    const struct mpp_group *group = &d->r.g->groups[group_id];
    mpp_id t = group->in[k];
    int p = t < 0 || rests(d->r.g, t) ? -1 : producer[t], c;
    const char *to = node_name(d, group_id);
    if (p < 0 || d->part_of[p] < 0 || d->r.g->groups[p].phase != group->phase || !has_node(d, group_id) || !has_node(d, p))
        return;
    if (has_copy_node(d, group_id, k, &c)) {
        int first = d->r.stage->copies[c].first_group;
        const char *copy = mpp_arena_printf(d->r.arena, "%s_c%d", node_name(d, first), c - first_copy(d, first));
        draw_edge(d, mpp_arena_printf(d->r.arena, "%s -> %s [label=\"%s\"];", copy, to, edge_words(d, t, d->r.stage->copies[c].to)));
        to = copy;
    }
    const struct part *a = &d->part[d->part_of[p]], *b = &d->part[d->part_of[group_id]];
    bool next = a != b && a->alike == b->alike;
    draw_edge(d, mpp_arena_printf(d->r.arena, "%s -> %s [label=\"%s%s\"%s];", node_name(d, p), to, edge_words(d, t, made(d, p, t)),
                                  next ? "\\nto the next layer" : "", next ? ", style=dashed, constraint=false" : ""));
}

/* All of a stage but its place, as text, with STAGE before each name. */
static const char *stage_text(struct drawing *d)
{
    const struct mpp_graph *g = d->r.g;
    int *producer = mpp_arena_array(d->r.arena, g->n_tensors, int);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        producer[t] = -1;
    for (int i = 0; i < g->n_groups; i++)
        for (int o = 0; o < g->groups[i].n_out; o++)
            producer[g->groups[i].out[o]] = i;
    mpp_html_note_layers(&d->h);
    find_parts(d);
    fold_parts(d);
    draw_phase(d, MPP_PHASE_FORWARD, "forward");
    draw_phase(d, MPP_PHASE_BACKWARD, "backward");
    for (int i = 0; i < g->n_groups; i++)
        for (int k = 0; k < g->groups[i].n_in && d->part_of[i] >= 0; k++)
            draw_operand(d, producer, i, k);
    return mpp_text_string(&d->out);
}

/* ---- all stages ---- */

struct picture {
    struct report r;
    FILE *out;
    struct drawing *stage;        /* [n_stages] */
    int *program;                 /* [n_stages] the first stage that is alike */
};

static const char *mesh_words(const struct report *r)
{
    const char *text = "";
    for (int a = 0; a < r->mesh->n_axes; a++)
        text = mpp_arena_printf(r->arena, "%s%s%s %d", text, a ? " x " : "", r->mesh->name[a], r->mesh->size[a]);
    return r->mesh->n_axes ? text : "one device";
}

static void put_stage(const struct picture *p, int i, const char *text)
{
    const struct report r = p->stage[i].r;
    int alike = 0;
    const char *which = "";
    for (int k = i; k < r.plan->n_stages; k++)
        if (p->program[k] == i) {
            which = alike < 8 ? mpp_arena_printf(r.arena, "%s%s%d", which, *which ? ", " : "", k) : alike == 8
                    ? mpp_arena_printf(r.arena, "%s, ...", which) : which;
            alike++;
        }
    fprintf(p->out, "  subgraph \"cluster_s%d\" { label=\"stage%s %s%s: %s, recomputation %s\"; penwidth=2; color=\"#888888\";\n", i,
            alike > 1 ? "s" : "", which, alike > 1 ? mpp_arena_printf(r.arena, " (%d alike)", alike) : "", escaped(r.arena, mesh_words(&r)),
            mpp_plan_recompute_word(r.stage->recompute));
    fputs(replaced(r.arena, text, STAGE, mpp_arena_printf(r.arena, "s%d_", i)), p->out);
    fprintf(p->out, "  }\n");
}

/* The group of stage S that sends, or receives, tensor T; -1: none that is drawn. */
static int messenger(const struct drawing *d, mpp_id t, bool sends)
{
    for (int i = 0; i < d->r.g->n_groups; i++) {
        const struct mpp_group *group = &d->r.g->groups[i];
        if (d->part_of[i] >= 0 && (sends ? group->n_out == 0 && group->n_in > 0 && group->in[0] == t
                                         : group->n_out > 0 && group->out[0] == t && group->n_in == 0))
            return i;
    }
    return -1;
}

static void put_transfers(const struct picture *p, const struct mpp_transfers *transfers)
{
    struct mpp_html_strings seen = {.arena = p->r.arena};
    for (int i = 0; i < transfers->n; i++) {
        const struct mpp_transfer_line *l = &transfers->line[i];
        int a = messenger(&p->stage[l->from], l->from_tensor, true), b = messenger(&p->stage[l->to], l->to_tensor, false), n = seen.n;
        if (a < 0 || b < 0)
            continue;
        const struct drawing *from = &p->stage[l->from], *to = &p->stage[l->to];
        const char *line = mpp_arena_printf(p->r.arena, "  s%d_p%d_%d -> s%d_p%d_%d [color=\"#00796b\", penwidth=2];\n", p->program[l->from],
                                            from->part[from->part_of[a]].alike, from->place[a], p->program[l->to],
                                            to->part[to->part_of[b]].alike, to->place[b]);
        mpp_html_intern(&seen, line);
        if (seen.n > n)
            fputs(line, p->out);
    }
}

static void put_all(struct picture *p, const struct mpp_transfers *transfers)
{
    const struct mpp_model *m = p->r.whole->model;
    int n = p->r.plan->n_stages;
    const char **text = mpp_arena_array(p->r.arena, n, const char *);
    fprintf(p->out, "digraph \"%s\" {\n  label=\"%s%s%s%s on %d x %s: forward and backward of one micro-batch\"; labelloc=t; fontname=sans; "
                    "rankdir=TB;\n  node [shape=box, style=filled, fillcolor=white, fontname=sans, fontsize=10];\n"
                    "  edge [fontname=sans, fontsize=8, color=\"#555555\"];\n", escaped(p->r.arena, m->name), escaped(p->r.arena, m->name),
            m->preset ? " (" : "", m->preset ? escaped(p->r.arena, m->preset) : "", m->preset ? ")" : "", p->r.cluster->n_devices,
            escaped(p->r.arena, p->r.cluster->device.name));
    for (int i = 0; i < n; i++) {
        struct drawing *d = &p->stage[i];
        d->r = mpp_report_at(&p->r, i);
        d->h = (struct mpp_html){.r = &d->r, .out = {.arena = p->r.arena}};
        d->out.arena = d->edges.arena = p->r.arena;
        text[i] = stage_text(d);
        p->program[i] = i;
        for (int k = 0; k < i && p->program[i] == i; k++)
            if (p->program[k] == k && d->r.stage->n_devices == p->stage[k].r.stage->n_devices && strcmp(text[i], text[k]) == 0
                && strcmp(mesh_words(&d->r), mesh_words(&p->stage[k].r)) == 0)
                p->program[i] = k;
    }
    for (int i = 0; i < n; i++)
        if (p->program[i] == i)
            put_stage(p, i, text[i]);
    put_transfers(p, transfers);
    fprintf(p->out, "}\n");
}

void mpp_export_dot(const struct mpp_plandir *d, FILE *out)
{
    struct mpp_arena *arena = mpp_arena_scratch(d->graph->arena);
    int n = d->fitted.plan->n_stages;
    struct picture p = {.r = {.arena = arena, .whole = d->graph, .cluster = d->cluster, .plan = d->fitted.plan, .out = out}, .out = out,
                        .stage = mpp_arena_array(arena, n, struct drawing), .program = mpp_arena_array(arena, n, int)};
    put_all(&p, d->fitted.transfers);
    mpp_arena_free(arena);
}
