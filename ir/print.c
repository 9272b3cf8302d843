/* The printed form of a graph; docs/ir.md describes it, parse.c reads it. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op.h"

static const char *const phase_names[] = {"prologue", "forward", "backward", "update"};
static const char *const role_names[] = {"value", "input", "param", "state", "accum"};

static void print_quoted(FILE *out, const char *s)
{
    putc('"', out);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            putc('\\', out);
        if (*s == '\n')
            fputs("\\n", out);
        else
            putc(*s, out);
    }
    putc('"', out);
}

/* A name: bare where it holds only what names usually do. */
static void print_name(FILE *out, const char *s)
{
    bool bare = *s != '\0' && strcmp(s, "-") != 0;
    for (const char *p = s; *p; p++)
        bare = bare && (isalnum((unsigned char)*p) || strchr("_.:/*+-%", *p));
    if (bare)
        fputs(s, out);
    else
        print_quoted(out, s);
}

static void print_tensor_name(const struct mpp_graph *g, mpp_id id, FILE *out)
{
    if (id < 0)
        putc('-', out);
    else
        print_name(out, g->tensors[id].name);
}

/* "hidden 768", "batch 512(1)", or just "3" where that is its name too. */
static void print_dims(FILE *out, char open, int n, const struct mpp_size *dims, char close)
{
    putc(open, out);
    for (int d = 0; d < n; d++) {
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)dims[d].size);
        if (d)
            fputs(", ", out);
        if (dims[d].per_batch || !dims[d].name || strcmp(dims[d].name, number) != 0) {
            if (dims[d].name)
                print_name(out, dims[d].name);
            else
                putc('?', out);
            putc(' ', out);
        }
        fputs(number, out);
        if (dims[d].per_batch)
            fprintf(out, "(%lld)", (long long)dims[d].per_batch);
    }
    putc(close, out);
}

/* As few digits as read back exactly, and never without a point, so that a float stays one. */
static void print_float(FILE *out, double f)
{
    char text[40];
    int digits = 15;
    do
        snprintf(text, sizeof text, "%.*g", digits, f);
    while (digits++ < 17 && strtod(text, NULL) != f);
    if (isfinite(f) && !strpbrk(text, ".e"))
        strcat(text, ".0");
    fputs(text, out);
}

static void print_attr(FILE *out, const struct mpp_attr *a)
{
    fprintf(out, "%s=", a->name);
    switch (a->type) {
    case MPP_ATTR_INT:
        fprintf(out, "%lld", (long long)a->i);
        break;
    case MPP_ATTR_BOOL:
        fputs(a->i ? "true" : "false", out);
        break;
    case MPP_ATTR_FLOAT:
        print_float(out, a->f);
        break;
    case MPP_ATTR_STRING:
        print_quoted(out, a->s);
        break;
    case MPP_ATTR_INTS:
        putc('(', out);
        for (int i = 0; i < a->n; i++)
            fprintf(out, "%s%lld", i ? ", " : "", (long long)a->ints[i]);
        putc(')', out);
        break;
    case MPP_ATTR_DIMS:
        print_dims(out, '[', a->n, a->dims, ']');
        break;
    }
}

static void print_param(const struct mpp_graph *g, const struct mpp_param *p, FILE *out)
{
    fputs(" published=", out);
    print_name(out, p->published);
    putc('(', out);
    for (int d = 0; d < p->n_published; d++)
        fprintf(out, "%s%lld", d ? ", " : "", (long long)p->published_dims[d]);
    fprintf(out, ") init=%s(", p->init);
    print_float(out, p->init_a);
    fputs(", ", out);
    print_float(out, p->init_b);
    fputs(") decay=", out);
    print_float(out, p->weight_decay);
    if (p->gradient >= 0) {
        fputs(" gradient=", out);
        print_tensor_name(g, p->gradient, out);
    }
    if (p->master >= 0) {
        fputs(" master=", out);
        print_tensor_name(g, p->master, out);
    }
}

static void print_tensor(const struct mpp_graph *g, const struct mpp_gtensor *t, FILE *out)
{
    fprintf(out, "%s ", role_names[t->role]);
    print_name(out, t->name);
    fprintf(out, " %s ", mpp_dtype_name(t->dtype));
    print_dims(out, '[', t->n_dims, t->dims, ']');
    if (t->repeat >= 0 || t->index >= 0)
        fprintf(out, " layer=%d:%d", t->repeat, t->index);
    if (t->param >= 0 && t->role != MPP_ROLE_PARAM) {
        fputs(" param=", out);
        print_tensor_name(g, t->param, out);
    }
    if (t->updates >= 0) {
        fputs(" updates=", out);
        print_tensor_name(g, t->updates, out);
    }
    if (t->info)
        print_param(g, t->info, out);
    if (t->input && t->input->role)
        fprintf(out, " role=%s", t->input->role);
    if (t->input && t->input->limit)
        fprintf(out, " limit=%lld", (long long)t->input->limit);
    putc('\n', out);
}

/* ---- rules, as comments ---- */

static void print_rule(const struct mpp_graph *g, const struct mpp_rule *rule, FILE *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    fprintf(out, "# %s%s\n", mpp_rule_to_text(scratch, rule), rule->linear ? " (linear)" : "");
    mpp_arena_free(scratch);
}

/* ---- ops ---- */

static void print_list(const struct mpp_graph *g, int n, const mpp_id *ids, FILE *out)
{
    putc('(', out);
    for (int k = 0; k < n; k++) {
        if (k)
            fputs(", ", out);
        print_tensor_name(g, ids[k], out);
    }
    putc(')', out);
}

static void print_op(const struct mpp_graph *g, const struct mpp_gop *op, const char *indent, FILE *out)
{
    fprintf(out, "%sop ", indent);
    print_name(out, op->name);
    fputs(" = ", out);
    fputs(mpp_op_info(op->kind)->name, out);
    print_list(g, op->n_in, op->in, out);
    fputs(" -> ", out);
    print_list(g, op->n_out, op->out, out);
    fputs(" {", out);
    for (int i = 0; i < op->attrs.n; i++) {
        if (i)
            fputs(", ", out);
        print_attr(out, &op->attrs.attr[i]);
    }
    fprintf(out, "} %s", phase_names[op->phase]);
    if (op->chunk > 0)
        fprintf(out, " chunk=%d", op->chunk);
    if (op->repeat >= 0 || op->index >= 0) {
        fprintf(out, " layer=%d:%d", op->repeat, op->index);
        if (op->repeat_name) {
            putc(':', out);
            print_name(out, op->repeat_name);
        }
    }
    if (op->scope && *op->scope) {
        fputs(" scope=", out);
        print_name(out, op->scope);
    }
    if (op->forward >= 0) {
        fputs(" forward=", out);
        print_name(out, g->ops[op->forward].name);
    }
    if (op->item_type)
        fprintf(out, " type=%s", op->item_type);
    if (op->loc.file) {
        fputs(" at=", out);
        print_quoted(out, op->loc.file);
        fprintf(out, ":%d", op->loc.line);
    }
    if (op->path) {
        fputs(" path=", out);
        print_quoted(out, op->path);
    }
    putc('\n', out);
    fputs(indent, out);
    fputs("   ", out);
    print_rule(g, op->rule, out);
}

static void print_reference(const struct mpp_graph *g, const char *what, mpp_id id, FILE *out)
{
    if (id < 0)
        return;
    fprintf(out, " %s=", what);
    print_tensor_name(g, id, out);
}

void mpp_graph_print(const struct mpp_graph *g, FILE *out)
{
    fprintf(out, "graph batch=%lld of=%lld tokens=%lld", (long long)g->batch, (long long)g->global_batch,
            (long long)g->tokens_per_sample);
    print_reference(g, "loss", g->loss, out);
    print_reference(g, "loss_total", g->loss_total, out);
    print_reference(g, "grad_norm", g->grad_norm, out);
    print_reference(g, "loss_scale", g->loss_scale, out);
    putc('\n', out);
    for (mpp_id i = 0; i < g->n_tensors; i++)
        print_tensor(g, &g->tensors[i], out);
    if (!g->groups) {
        for (mpp_id i = 0; i < g->n_ops; i++)
            print_op(g, &g->ops[i], "", out);
    }
    for (int i = 0; g->groups && i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        fputs("group ", out);
        print_list(g, group->n_in, group->in, out);
        fputs(" -> ", out);
        print_list(g, group->n_out, group->out, out);
        putc(' ', out);
        print_rule(g, group->rule, out);
        for (int m = 0; m < group->n_ops; m++)
            print_op(g, &g->ops[group->ops[m]], "  ", out);
    }
}
