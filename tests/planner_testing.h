/* planner_testing.h - checks and small set-ups for test_planner.c and test_plan.c. */
#ifndef MPP_PLANNER_TESTING_H
#define MPP_PLANNER_TESTING_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/pass.h"
#include "planner/plan.h"

static int n_passed, n_failed;

__attribute__((format(printf, 2, 3), unused)) static void check(bool ok, const char *fmt, ...)
{
    va_list ap;
    if (ok) {
        n_passed++;
        return;
    }
    n_failed++;
    va_start(ap, fmt);
    fputs("FAIL: ", stdout);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
}

__attribute__((unused)) static void must(enum mpp_status st, const char *what)
{
    if (st != MPP_OK) {
        printf("FAIL: %s: status %d\n", what, st);
        exit(1);
    }
}

/* A model of models/ as a training step, for N devices of a cluster. */
struct setup {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    struct mpp_cluster *cluster;
    struct mpp_plan *plan;
    double hidden;                /* as in struct mpp_plan_options */
};

static struct setup setup_passes(const char *model, const char *preset, const char *defines, const char *cluster, int n_devices,
                                 bool before_fuse)
{
    struct setup s = {.arena = mpp_arena_new(), .diag = mpp_diag_new(NULL)};
    const char *list[32];
    int n = 0;
    char *text = mpp_arena_strdup(s.arena, defines), *save = NULL;
    for (char *at = strtok_r(text, " ", &save); at && n < 32; at = strtok_r(NULL, " ", &save))
        list[n++] = at;
    struct mpp_model_options options = {.preset = preset, .n_defines = n, .defines = list};
    struct mpp_model *m;
    enum mpp_status st = mpp_model_read(s.arena, s.diag, model, &options, &m);
    if (st == MPP_OK)
        st = mpp_graph_build(s.arena, s.diag, m, &s.g);
    struct mpp_pass_ctx ctx = {.arena = s.arena, .diag = s.diag, .before_fuse = before_fuse};
    if (st == MPP_OK)
        st = mpp_passes_run(&ctx, s.g);
    if (st == MPP_OK)
        st = mpp_cluster_load(s.arena, s.diag, cluster, n_devices, &s.cluster);
    if (st != MPP_OK)
        printf("%s", mpp_diag_text(s.diag));
    must(st, model);
    return s;
}

/* DEFINES: "layers=2 batch=8", or "". */
__attribute__((unused)) static struct setup setup_new(const char *model, const char *preset, const char *defines,
                                                      const char *cluster, int n_devices)
{
    return setup_passes(model, preset, defines, cluster, n_devices, false);
}

/* The same before the pass "fuse". */
__attribute__((unused)) static struct setup setup_unfused(const char *model, const char *preset, const char *defines,
                                                          const char *cluster, int n_devices)
{
    return setup_passes(model, preset, defines, cluster, n_devices, true);
}

__attribute__((unused)) static void setup_free(struct setup *s)
{
    mpp_diag_free(s->diag);
    mpp_arena_free(s->arena);
}

/* Search under FIX ("" for none) and derive. */
__attribute__((unused)) static enum mpp_status setup_plan(struct setup *s, const char *fix, int64_t capacity_bytes)
{
    struct mpp_plan_options options = {.pins = mpp_pins_none(), .capacity_bytes = capacity_bytes, .hidden = s->hidden};
    s->plan = NULL;
    MPP_TRY(mpp_pins_parse(s->arena, s->diag, fix, &options.pins));
    MPP_TRY(mpp_plan_search(s->arena, s->diag, s->g, s->cluster, &options, &s->plan));
    return mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, s->plan);
}

/* The group whose first op is called NAME. */
__attribute__((unused)) static int group_named(const struct mpp_graph *g, const char *name)
{
    for (int i = 0; i < g->n_groups; i++)
        if (strcmp(g->ops[g->groups[i].ops[0]].name, name) == 0)
            return i;
    printf("FAIL: no op is called %s\n", name);
    exit(1);
}

/* The name of the dimension that AXIS splits in op NAME: "" whole, "partial". */
__attribute__((unused)) static const char *split_name(const struct setup *s, const char *name, int axis)
{
    int i = group_named(s->g, name), f = s->plan->stages[0].split[i].axis[axis];
    const char *dim = f >= 0 ? s->g->groups[i].rule->factor[f].size.name : f == MPP_PARTIAL ? "partial" : "";
    return dim ? dim : "?";
}

__attribute__((unused)) static mpp_id tensor_named(const struct mpp_graph *g, const char *name)
{
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return t;
    printf("FAIL: no tensor is called %s\n", name);
    exit(1);
}

/* The axis called NAME, -1: none. */
__attribute__((unused)) static int axis_called(const struct setup *s, const char *name)
{
    const struct mpp_mesh *m = &s->plan->stages[0].mesh;
    for (int a = 0; a < m->n_axes; a++)
        if (strcmp(m->name[a], name) == 0)
            return a;
    return -1;
}

__attribute__((unused)) static int finish(void)
{
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}

#endif
