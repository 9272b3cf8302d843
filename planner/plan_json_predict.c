/* plan_json_predict.c - what a plan is predicted to take, as one JSON object for machines (docs/plan.md). */
#include <errno.h>
#include <string.h>

#include "planner/pins.h"
#include "planner/plan_json_value.h"

static void put_int(struct mpp_arena *arena, json_t *object, const char *key, int64_t value)
{
    mpp_json_put(arena, object, key, json_integer(value));
}

static void put_real(struct mpp_arena *arena, json_t *object, const char *key, double value)
{
    mpp_json_put(arena, object, key, json_real(value));
}

static void put_text(struct mpp_arena *arena, json_t *object, const char *key, const char *value)
{
    mpp_json_put(arena, object, key, json_string(value ? value : ""));
}

static json_t *prediction(struct mpp_arena *arena, const struct mpp_prediction *p)
{
    json_t *o = mpp_json_own(arena, json_object());
    put_real(arena, o, "compute_s", p->compute_s);
    put_real(arena, o, "activation_comm_s", p->activation_comm_s);
    put_real(arena, o, "gradient_comm_s", p->gradient_comm_s);
    put_real(arena, o, "parameter_comm_s", p->parameter_comm_s);
    put_real(arena, o, "receive_s", p->receive_s);
    put_real(arena, o, "update_s", p->update_s);
    put_real(arena, o, "bubble_s", p->bubble_s);
    return o;
}

static json_t *memory(struct mpp_arena *arena, const struct mpp_memory *m)
{
    const struct { const char *key; int64_t bytes; } kind[] = {
        {"parameters", m->parameters}, {"gradients", m->gradients}, {"optimizer", m->optimizer},
        {"activations", m->activations}, {"inputs", m->inputs}, {"workspace", m->workspace}, {"gaps", m->gaps},
        {"arena_bytes", m->arena_bytes}, {"live_bound_bytes", m->live_bound_bytes},
    };
    json_t *o = mpp_json_own(arena, json_object());
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++)
        put_int(arena, o, kind[i].key, kind[i].bytes);
    return o;
}

/* Devices of the axes that split the batch (called data, data2, ...), and of the others. */
static void parallel(const struct mpp_mesh *mesh, int64_t *out_dp, int64_t *out_tp)
{
    *out_dp = *out_tp = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        *(strncmp(mesh->name[a], "data", 4) == 0 ? out_dp : out_tp) *= mesh->size[a];
}

static json_t *stage(struct mpp_arena *arena, const struct mpp_stage *s)
{
    json_t *o = mpp_json_own(arena, json_object()), *mesh = mpp_json_own(arena, json_array());
    int64_t dp, tp;
    parallel(&s->mesh, &dp, &tp);
    for (int a = 0; a < s->mesh.n_axes; a++)
        mpp_json_append(arena, mesh, json_pack("{s:s,s:i}", "axis", s->mesh.name[a], "size", s->mesh.size[a]));
    put_int(arena, o, "first_layer", s->first_layer);
    put_int(arena, o, "last_layer", s->last_layer);
    put_int(arena, o, "first_device", s->first_device);
    put_int(arena, o, "devices", s->n_devices);
    put_int(arena, o, "dp", dp);
    put_int(arena, o, "tp", tp);
    mpp_json_put(arena, o, "mesh", json_incref(mesh));
    put_text(arena, o, "recompute", mpp_plan_recompute_word(s->recompute));
    put_int(arena, o, "in_flight", s->in_flight);
    put_real(arena, o, "forward_s", (double)s->time.forward_ps * 1e-12);
    put_real(arena, o, "backward_s", (double)s->time.backward_ps * 1e-12);
    put_real(arena, o, "once_s", (double)s->time.once_ps * 1e-12);
    put_real(arena, o, "busy_s", s->predicted.step_s);
    mpp_json_put(arena, o, "predicted", json_incref(prediction(arena, &s->predicted)));
    mpp_json_put(arena, o, "overlap", json_pack("{s:f,s:f,s:f,s:f}", "gradient_sums_s", s->overlap.sums_s, "gradient_sums_hidden_s",
                                                s->overlap.hidden_sums_s, "weight_gathers_s", s->overlap.gathers_s,
                                                "weight_gathers_hidden_s", s->overlap.hidden_gathers_s));
    mpp_json_put(arena, o, "memory", json_incref(memory(arena, &s->memory)));
    if (s->memory.beside.on_gpu)
        mpp_json_put(arena, o, "beside", json_incref(mpp_json_beside(arena, &s->memory.beside)));
    return o;
}

static void put_summary(struct mpp_arena *arena, json_t *o, const struct mpp_plan *plan)
{
    const struct mpp_stage *s = &plan->stages[0];
    int64_t dp, tp, micro = plan->batch / plan->micro_batches;
    parallel(&s->mesh, &dp, &tp);
    enum mpp_recompute recompute = s->recompute;
    for (int i = 0; i < plan->n_stages; i++)
        recompute = plan->stages[i].recompute > recompute ? plan->stages[i].recompute : recompute;
    put_int(arena, o, "dp", dp);
    put_int(arena, o, "tp", tp);
    put_int(arena, o, "pp", plan->n_stages);
    put_int(arena, o, "interleave", plan->pipeline.chunks);
    put_text(arena, o, "schedule", plan->schedule);
    put_int(arena, o, "batch", plan->batch);
    put_real(arena, o, "micro_batch", (double)micro / (double)dp);
    put_int(arena, o, "micro_batches", plan->micro_batches);
    put_text(arena, o, "recompute", mpp_plan_recompute_word(recompute));
    put_text(arena, o, "pins", plan->pins);
}

static void put_time(struct mpp_arena *arena, json_t *o, const struct mpp_graph *g, const struct mpp_cluster *cluster,
                     const struct mpp_plan *plan)
{
    double s = plan->predicted.step_s, flops = mpp_plan_step_flops(g), peak = mpp_plan_peak_flops(g, cluster);
    double samples = s > 0 ? (double)plan->batch / s : 0;
    put_real(arena, o, "step_s", s);
    put_real(arena, o, "simulated_s", (double)plan->simulated_ps * 1e-12);
    put_real(arena, o, "bound_s", (double)plan->bound_ps * 1e-12);
    put_real(arena, o, "gap", plan->gap);
    put_real(arena, o, "overlapped_s", (double)plan->overlapped_ps * 1e-12);
    if (plan->overlap)
        put_real(arena, o, "overlap_bound_s", (double)plan->overlap_bound_ps * 1e-12);
    if (plan->stopped)
        put_text(arena, o, "stopped", plan->stopped);
    put_real(arena, o, "samples_per_s", samples);
    put_real(arena, o, "tokens_per_s", samples * (double)g->tokens_per_sample);
    put_real(arena, o, "flops_per_step", flops);
    put_real(arena, o, "peak_fraction", s > 0 && peak > 0 ? flops / s / peak : 0);
    mpp_json_put(arena, o, "predicted", json_incref(prediction(arena, &plan->predicted)));
}

static json_t *build(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_cluster *cluster,
                     const struct mpp_plan *plan)
{
    json_t *o = mpp_json_own(arena, json_object()), *stages = mpp_json_own(arena, json_array()),
           *others = mpp_json_own(arena, json_array());
    put_text(arena, o, "model", g->model ? g->model->name : "");
    put_text(arena, o, "preset", g->model ? g->model->preset : "");
    put_text(arena, o, "precision", g->model ? g->model->training.precision : "f32");
    put_text(arena, o, "cluster", cluster->name);
    put_text(arena, o, "device", cluster->device.name);
    put_int(arena, o, "devices", cluster->n_devices);
    put_int(arena, o, "parameters", mpp_graph_param_count(g));
    put_summary(arena, o, plan);
    put_time(arena, o, g, cluster, plan);
    const struct mpp_memory *fullest = &plan->stages[mpp_plan_fullest(plan)].memory;
    mpp_json_put(arena, o, "memory", json_incref(memory(arena, fullest)));
    if (fullest->beside.on_gpu)
        mpp_json_put(arena, o, "beside", json_incref(mpp_json_beside(arena, &fullest->beside)));
    put_int(arena, o, "usable_bytes", mpp_device_usable_bytes(&cluster->device));
    for (int i = 0; i < plan->n_stages; i++)
        mpp_json_append(arena, stages, json_incref(stage(arena, &plan->stages[i])));
    mpp_json_put(arena, o, "stages", json_incref(stages));
    for (int i = 0; i < plan->n_others; i++) {
        const struct mpp_runner_up *r = &plan->others[i];
        json_t *x = mpp_json_own(arena, json_object());
        put_text(arena, x, "what", r->what);
        put_text(arena, x, "why", r->why);
        put_real(arena, x, "step_s", (double)r->time_ps * 1e-12);
        mpp_json_append(arena, others, json_incref(x));
    }
    mpp_json_put(arena, o, "runners_up", json_incref(others));
    return o;
}

enum mpp_status mpp_plan_predict_json(struct mpp_diag *diag, const struct mpp_graph *graph,
                                      const struct mpp_cluster *cluster, const struct mpp_plan *plan, FILE *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(graph->arena);
    json_t *o = build(scratch, graph, cluster, plan);
    bool done = fprintf(out, "%s\n", mpp_json_text(scratch, o, JSON_INDENT(1) | JSON_REAL_PRECISION(12))) > 0;
    mpp_arena_free(scratch);
    if (done)
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){0}, "cannot write the prediction: %s", strerror(errno));
    return MPP_IO;
}
