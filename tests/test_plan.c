/* test_plan.c - pins and what they show, contradictions and their messages, plan.json written, read, edited. */
#include <jansson.h>
#include <unistd.h>

#include "ir/op.h"
#include "planner/pins.h"
#include "tests/planner_testing.h"
#include "tests/stages_testing.h"

static const char tiny[] = "layers=2 batch=16";

/* ---- pins ---- */

/* Is the axis called AXIS put on the batch by every contraction, if BATCH, or on no group's batch? */
static bool batch_on(const struct setup *s, int axis, bool batch)
{
    for (int i = 0; i < s->g->n_groups; i++) {
        const struct mpp_group *group = &s->g->groups[i];
        int f = s->plan->stages[0].split[i].axis[axis];
        bool on = f >= 0 && group->rule->factor[f].size.per_batch > 0;
        bool contraction = mpp_op_info(s->g->ops[group->ops[0]].kind)->cls == MPP_CLASS_CONTRACTION;
        if (batch ? contraction && !on : on)
            return false;
    }
    return true;
}

/* How many parameters rest split over AXIS, and how many updates are. */
static void count_split(const struct setup *s, int axis, int *out_rest, int *out_update, int *out_sum, int *out_n)
{
    *out_rest = *out_update = *out_sum = *out_n = 0;
    for (mpp_id t = 0; t < s->g->n_tensors; t++)
        if (s->g->tensors[t].role == MPP_ROLE_PARAM) {
            ++*out_n;
            *out_rest += s->plan->stages[0].resting[t].axis[axis] >= 0;
        }
    for (int i = 0; i < s->g->n_groups; i++) {
        const struct mpp_gtensor *out = &s->g->tensors[s->g->groups[i].out[0]];
        int f = s->plan->stages[0].split[i].axis[axis];
        *out_update += out->updates >= 0 && f >= 0;
        *out_sum += out->role == MPP_ROLE_ACCUM && out->param >= 0 && f >= 0;
    }
}

static void pinned(const char *fix, int n_devices, struct setup *s)
{
    *s = setup_new("models/gpt.xml", "tiny", tiny, "dgx-a100", n_devices);
    enum mpp_status st = setup_plan(s, fix, 0);
    if (st != MPP_OK)
        printf("%s", mpp_diag_text(s->diag));
    must(st, fix);
}

static void test_data_and_model(void)
{
    struct setup s;
    pinned("dp=4", 4, &s);
    check(axis_called(&s, "data") == 0 && batch_on(&s, 0, true), "dp=4");
    setup_free(&s);
    pinned("tp=4", 4, &s);
    int m = axis_called(&s, "model");
    check(m == 0 && batch_on(&s, 0, false), "tp=4 splits no batch");
    check(strcmp(split_name(&s, "h.0.attn.c_attn", m), "heads") == 0 && strcmp(split_name(&s, "h.1.mlp.c_fc", m), "ffn") == 0
          && strcmp(split_name(&s, "h.1.mlp.c_proj", m), "ffn") == 0, "tp=4: %s %s", split_name(&s, "h.0.attn.c_attn", m),
          split_name(&s, "h.1.mlp.c_fc", m));
    setup_free(&s);
    pinned("dp=2,tp=2", 4, &s);
    check(axis_called(&s, "data") == 0 && axis_called(&s, "model") == 1 && batch_on(&s, 0, true) && batch_on(&s, 1, false)
          && strcmp(split_name(&s, "h.0.attn.c_attn", 1), "heads") == 0, "dp=2,tp=2");
    setup_free(&s);
    /* Large enough that eight GPUs are worth their collectives. */
    s = setup_new("models/gpt.xml", "tiny", "layers=2 batch=16 hidden=1024 heads=16 vocab=8192", "dgx-a100", 8);
    must(setup_plan(&s, "mesh=2x2x2", 0), "mesh=2x2x2");
    check(s.plan->stages[0].mesh.n_axes == 3, "mesh=2x2x2");
    for (int a = 0; a < 3; a++) {
        bool used = false;
        for (int i = 0; i < s.g->n_groups; i++)
            used = used || s.plan->stages[0].split[i].axis[a] >= 0;
        check(used, "mesh=2x2x2: axis %d is used", a);
    }
    setup_free(&s);
    pinned("dp=2,micro_batches=4", 2, &s);
    check(s.plan->micro_batches == 4, "micro_batches=4");
    setup_free(&s);
    pinned("dp=2,micro_batch=2", 2, &s);
    check(s.plan->micro_batches == 4, "micro_batch=2: %lld micro-batches", (long long)s.plan->micro_batches);
    setup_free(&s);
}

static void test_zero(void)
{
    for (int zero = 0; zero < 4; zero++) {
        struct setup s;
        char fix[32];
        int rest, update, sum, n;
        snprintf(fix, sizeof fix, "dp=4,zero=%d", zero);
        pinned(fix, 4, &s);
        count_split(&s, axis_called(&s, "data"), &rest, &update, &sum, &n);
        check(rest == (zero == 3 ? n : 0) && update == (zero >= 1 ? n : 0) && sum == (zero >= 2 ? n : 0),
              "%s: of %d parameters %d rest split, %d are updated split, %d gradients summed split", fix, n, rest, update, sum);
        setup_free(&s);
    }
}

/* The group that makes PARAM's new value. */
static int update_of(const struct setup *s, const char *param)
{
    mpp_id t = tensor_named(s->g, param);
    for (int i = 0; i < s->g->n_groups; i++)
        if (s->g->tensors[s->g->groups[i].out[0]].updates == t)
            return i;
    printf("FAIL: nothing updates %s\n", param);
    exit(1);
}

/* Tensors that no dimension cuts into so many blocks stay whole; the others are split. */
static void test_zero_where_it_can(void)
{
    for (int zero = 1; zero < 4; zero++) {
        struct setup s = setup_new("models/gpt.xml", NULL, "hidden=32 heads=4 layers=2 vocab=97 seq=16 positions=16 batch=7",
                                   "host", 7);
        char fix[32];
        snprintf(fix, sizeof fix, "dp=7,zero=%d", zero);
        must(setup_plan(&s, fix, 0), fix);
        const struct mpp_stage *st = &s.plan->stages[0];
        check((st->resting[tensor_named(s.g, "h.0.mlp.c_fc.weight")].axis[0] >= 0) == (zero == 3)
              && st->resting[tensor_named(s.g, "h.0.attn.c_attn.bias")].axis[0] < 0, "%s: resting", fix);
        check(st->split[update_of(&s, "h.0.mlp.c_fc.weight")].axis[0] >= 0
              && st->split[update_of(&s, "h.0.attn.c_attn.bias")].axis[0] < 0, "%s: updates", fix);
        setup_free(&s);
    }
}

/* Norms behind the sums (BERT) split the sequence too, and so does the sum of the gradients before them. */
static void test_post_norm_sequence(void)
{
    for (int adamw = 0; adamw < 2; adamw++) {
        struct setup s = setup_new("models/bert.xml", "tiny", adamw ? "optimizer=adamw" : "optimizer=sgd", "host", 4);
        must(setup_plan(&s, "tp=4,sequence_parallel=true", 0), "bert tp=4,sequence_parallel=true");
        check(strcmp(split_name(&s, "bert.encoder.layer.1.output.LayerNorm", 0), "seq") == 0
              && strcmp(split_name(&s, "bert.encoder.layer.0.attention.self.query", 0), "heads") == 0, "bert: %s, %s",
              split_name(&s, "bert.encoder.layer.1.output.LayerNorm", 0),
              split_name(&s, "bert.encoder.layer.0.attention.self.query", 0));
        setup_free(&s);
    }
}

/* Where there is one micro-batch sums of gradients are finished in the update, not before: equal costs, one place. */
static void test_gradients_in_the_update(void)
{
    struct setup s;
    pinned("dp=4,zero=0", 4, &s);
    for (int i = 0; i < s.plan->stages[0].n_collectives; i++) {
        const struct mpp_comm *c = &s.plan->stages[0].collectives[i];
        check(strcmp(c->role, "gradient") != 0 || c->phase == MPP_PHASE_UPDATE, "%s is reduced before the update", c->tensor);
    }
    setup_free(&s);
}

static void test_sequence_and_vocabulary(void)
{
    struct setup s;
    pinned("tp=4,sequence_parallel=true", 4, &s);
    check(strcmp(split_name(&s, "h.0.ln_1", 0), "seq") == 0 && strcmp(split_name(&s, "h.1.attn.c_proj.bias", 0), "seq") == 0,
          "sequence_parallel=true: %s", split_name(&s, "h.0.ln_1", 0));
    setup_free(&s);
    pinned("tp=4,sequence_parallel=false", 4, &s);
    bool none = true;
    for (int i = 0; i < s.g->n_groups; i++)
        for (int a = 0; a < s.plan->stages[0].mesh.n_axes; a++) {
            int f = s.plan->stages[0].split[i].axis[a];
            const char *name = f >= 0 ? s.g->groups[i].rule->factor[f].size.name : NULL;
            none = none && !(name && strcmp(name, "seq") == 0 && s.g->groups[i].phase != MPP_PHASE_UPDATE);
        }
    check(none, "sequence_parallel=false: the sequence is whole");
    setup_free(&s);
    pinned("tp=2,vocab_parallel=true", 2, &s);
    check(strcmp(split_name(&s, "lm_head", 0), "vocab") == 0 && strcmp(split_name(&s, "wte", 0), "vocab") == 0
          && strcmp(split_name(&s, "loss", 0), "vocab") == 0, "vocab_parallel=true");
    setup_free(&s);
    pinned("tp=2,vocab_parallel=false", 2, &s);
    check(strcmp(split_name(&s, "lm_head", 0), "vocab") != 0, "vocab_parallel=false");
    setup_free(&s);
    pinned("shard:h.*.mlp.c_fc.weight=ffn/model,shard:wte.weight=hidden/model", 4, &s);
    mpp_id w = tensor_named(s.g, "h.1.mlp.c_fc.weight");
    int m = axis_called(&s, "model");
    m = m < 0 ? s.plan->stages[0].mesh.n_axes - 1 : m;
    check(s.plan->stages[0].resting[w].axis[m] == 1, "shard: c_fc rests as %d", s.plan->stages[0].resting[w].axis[m]);
    setup_free(&s);
}

static void refuses(const char *fix, int n_devices, const char *defines, const char *says)
{
    struct setup s = setup_new("models/gpt.xml", "tiny", defines, "dgx-a100", n_devices);
    enum mpp_status st = setup_plan(&s, fix, 0);
    check(st == MPP_INVALID && strstr(mpp_diag_text(s.diag), says), "%s: status %d, %s", fix, st, mpp_diag_text(s.diag));
    setup_free(&s);
}

static void test_contradictions(void)
{
    refuses("dp=3,tp=2", 4, tiny, "makes 6 devices, but there are 4");
    refuses("dp=3", 4, tiny, "does not divide the 4 devices");
    refuses("mesh=2x3", 4, tiny, "make 6 devices, but");
    refuses("dp=2,tp=2,pp=2", 4, tiny, "dp=2,tp=2,pp=2 makes 8 devices, but there are 4");
    refuses("dp=2,tp=1,pp=1", 4, tiny, "makes 2 devices, but there are 4");
    refuses("pp=5", 4, tiny, "more stages than the 4 devices");
    refuses("dp=2,pp=4", 4, tiny, "dp=2,pp=4 wants 8 devices at least");
    refuses("mesh=2x2,pp=2", 4, tiny, "make 8 devices in all stages together, but there are 4");
    refuses("pp=1,interleave=2", 4, tiny, "nothing to interleave");
    refuses("interleave=2,schedule=gpipe", 4, tiny, "schedule=gpipe: only the interleaved");
    refuses("schedule=interleaved,interleave=1", 4, tiny, "at least two");
    refuses("pp=4,interleave=2,micro_batches=2", 4, tiny, "a multiple of the stages");
    refuses("pp=6", 6, tiny, "pp=6 makes 6 parts, but the model has only");
    refuses("interleave=64", 4, tiny, "interleave=64 makes 64 parts");
    refuses("recompute=some", 4, tiny, "none, selective or full");
    refuses("schedule=2f2b", 4, tiny, "1f1b, gpipe or interleaved");
    refuses("micro_batches=3", 4, tiny, "does not divide the batch of 16");
    refuses("dp=2,micro_batch=16", 4, tiny, "does not divide");
    refuses("dp=4,micro_batches=16", 4, tiny, "smaller than the data axis");
    refuses("zeroo=1", 4, tiny, "did you mean \"zero\"");
    refuses("zero=4", 4, tiny, "0, 1, 2 or 3");
    refuses("mesh=axb", 4, tiny, "not a mesh");
    refuses("sequence_parallel=maybe", 4, tiny, "true or false");
    refuses("dp", 4, tiny, "has no value");
    refuses("shard:h.*.mlp.c_fc.wieght=ffn/model", 4, tiny, "no tensor matches");
    refuses("shard:h.*.mlp.c_fc.weight=fffn/model", 4, tiny, "did you mean \"ffn\"");
    refuses("shard:h.*.mlp.c_fc.weight=ffn/modle", 4, tiny, "axis \"modle\"; did you mean \"model\"");
    refuses("shard:foo=vocab/model", 4, tiny, "--fix shard:foo=vocab/model: no tensor matches \"foo\"; parameters are called as in \"wte.weight\"");
    refuses("shard:wte.weigth=vocab/model", 4, tiny, "no tensor matches \"wte.weigth\"; did you mean \"wte.weight\"?");
    refuses("shard:wte.weight=voc/model", 4, tiny, "has a dimension \"voc\"; there are \"vocab\" and \"hidden\"");
    refuses("shard:*=nothing/model", 4, tiny, "; there are \"batch\", ");
    refuses("shard:wte.weight=vocab/nothing", 4, tiny, "has an axis \"nothing\"; there are \"a\", \"data\", \"model\" and \"b\"");
    refuses("dp=4,shard:wte.weight=vocab/model", 4, tiny, "that --fix leaves has an axis \"model\"; there is \"data\"\n");
    refuses("shard:h.*.attn.c_attn.weight=3/model", 4, tiny, "has only 3");
    refuses("mesh=4,shard:wte.weight=vocab/a,shard:wte.weight=hidden/a", 4, tiny, "no plan does what --fix asks");
}

/* More devices fit on a node that takes as many as are asked for; bytes in a unit of which there are some. */
static void test_no_room(void)
{
    struct setup s = setup_new("models/gpt.xml", "tiny", tiny, "host", 2);
    check(setup_plan(&s, "", 2 << 20) == MPP_INFEASIBLE && strstr(mpp_diag_text(s.diag), "--gpus "), "%s", mpp_diag_text(s.diag));
    setup_free(&s);
    s = setup_new("models/mlp.xml", "tiny", "", "host", 1);
    must(setup_plan(&s, "micro_batches=1", 0), "mlp");
    int64_t peak = s.plan->solver.peak_bytes;
    check(setup_plan(&s, "micro_batches=1", peak - 1) == MPP_INFEASIBLE && strstr(mpp_diag_text(s.diag), ", 1 bytes more"), "%s",
          mpp_diag_text(s.diag));
    setup_free(&s);
}

/* The first plan that is laid out takes more than there is, by OVER; the others fit. */
struct layout {
    int64_t capacity_bytes, over_bytes;
    int asked;
};

static enum mpp_status lay_out(void *context, const struct mpp_plan *plan, int stage, int64_t *out_bytes)
{
    struct layout *l = context;
    (void)plan;
    (void)stage;
    *out_bytes = l->capacity_bytes + (l->asked++ == 0 ? l->over_bytes : 0);
    return MPP_OK;
}

/* A search in less room proves nothing of plans that need more. */
static void test_bound_in_all_room(void)
{
    struct setup s = setup_unfused("models/gpt.xml", "tiny", "layers=9 batch=4 hidden=1024 heads=8", "dgx1-v100", 4);
    struct mpp_plan_options options = {.pins = mpp_pins_none()};
    struct mpp_plan *fits, *laid_out;
    must(mpp_pins_parse(s.arena, s.diag, "pp=1,recompute=none", &options.pins), "pins");
    must(mpp_plan_pipeline(s.arena, s.diag, s.g, s.cluster, &options, &fits), "without a memory limit");
    options.capacity_bytes = fits->solver.peak_bytes;
    struct layout l = {options.capacity_bytes, options.capacity_bytes / 20, 0};
    options.room = lay_out;
    options.room_context = &l;
    must(mpp_plan_pipeline(s.arena, s.diag, s.g, s.cluster, &options, &laid_out), "laid out");
    check(l.asked > 1 && laid_out->objective_ps > fits->objective_ps, "less room makes it slower: %lld ps, %lld ps",
          (long long)laid_out->objective_ps, (long long)fits->objective_ps);
    check(laid_out->bound_ps <= fits->objective_ps, "a bound of %lld ps, though in all the room there is a plan takes %lld ps",
          (long long)laid_out->bound_ps, (long long)fits->objective_ps);
    setup_free(&s);
}

static void test_normalised(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct setup s;
    pinned("vocab_parallel=off,tp=2,dp=2", 4, &s);
    check(strcmp(s.plan->pins, "dp=2,tp=2,vocab_parallel=false") == 0, "pins as text: %s", s.plan->pins);
    setup_free(&s);
    struct mpp_diag *diag = mpp_diag_in(arena, NULL);
    struct mpp_pins pins = mpp_pins_none();
    check(mpp_pins_parse(arena, diag, "schedule=1f1b,recompute=none,interleave=1,pp=2,tp=2", &pins) == MPP_OK
          && strcmp(mpp_pins_text(arena, &pins), "tp=2,pp=2,interleave=1,recompute=none,schedule=1f1b") == 0,
          "pins of several stages as text: %s", mpp_pins_text(arena, &pins));
    mpp_arena_free(arena);
}

/* ---- plan.json ---- */

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return calloc(1, 1);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)n + 1);
    if (fread(text, 1, (size_t)n, f) != (size_t)n)
        text[0] = '\0';
    fclose(f);
    return text;
}

static void spill(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static char path_a[] = "/tmp/mpplan-test-a-XXXXXX", path_b[] = "/tmp/mpplan-test-b-XXXXXX";

static void round_trip(const char *model, const char *preset, const char *defines, const char *cluster, int n, const char *fix)
{
    struct setup s = setup_new(model, preset, defines, cluster, n);
    must(setup_plan(&s, fix, 0), fix);
    must(mpp_plan_write_json(s.diag, s.g, s.cluster, s.plan, path_a), "write");
    struct setup r = setup_new(model, preset, defines, cluster, n);
    enum mpp_status st = mpp_plan_read_json(r.arena, r.diag, r.g, r.cluster, path_a, &r.plan);
    if (st == MPP_OK)
        st = mpp_plan_derive(r.arena, r.diag, r.g, r.cluster, r.plan);
    check(st == MPP_OK, "%s %s: read back: %s", model, fix, mpp_diag_text(r.diag));
    if (st == MPP_OK) {
        const struct mpp_stage *a = &s.plan->stages[0], *b = &r.plan->stages[0];
        check(memcmp(a->split, b->split, sizeof *a->split * (size_t)s.g->n_groups) == 0, "%s: splits", model);
        check(memcmp(a->resting, b->resting, sizeof *a->resting * (size_t)s.g->n_tensors) == 0, "%s: resting", model);
        check(a->n_copies == b->n_copies && a->n_collectives == b->n_collectives, "%s: copies", model);
        must(mpp_plan_write_json(r.diag, r.g, r.cluster, r.plan, path_b), "write");
        char *x = slurp(path_a), *y = slurp(path_b);
        check(strcmp(x, y) == 0, "%s %s: the same file", model, fix);
        json_t *json = json_loads(x, JSON_REJECT_DUPLICATES, NULL);
        check(json != NULL, "%s: JSON", model);
        json_decref(json);
        free(x);
        free(y);
    }
    setup_free(&r);
    setup_free(&s);
}

/* A plan of several stages is read as it was written: the same file, the same times. */
static void stages_trip(const char *model, const char *defines, int devices, int stages, enum mpp_recompute recompute)
{
    struct setup s = setup_unfused(model, "tiny", defines, "dgx-a100", devices), r = setup_unfused(model, "tiny", defines, "dgx-a100", devices);
    s.plan = plan_stages(s.arena, s.diag, s.g, s.cluster, stages, recompute, 4);
    check(s.plan != NULL, "%s in %d stages: %s", model, stages, mpp_diag_text(s.diag));
    if (s.plan) {
        s.plan->others = (struct mpp_runner_up[]){{"pp 1", "bubble", 77}, {"pp 2", NULL, 78}};
        s.plan->n_others = 2;
        must(mpp_plan_write_json(s.diag, s.g, s.cluster, s.plan, path_a), "write");
        enum mpp_status st = mpp_plan_read_json(r.arena, r.diag, r.g, r.cluster, path_a, &r.plan);
        if (st == MPP_OK)
            st = mpp_plan_derive(r.arena, r.diag, r.g, r.cluster, r.plan);
        check(st == MPP_OK, "%s in %d stages: read back: %s", model, stages, mpp_diag_text(r.diag));
        if (st == MPP_OK) {
            must(mpp_plan_write_json(r.diag, r.g, r.cluster, r.plan, path_b), "write");
            char *x = slurp(path_a), *y = slurp(path_b);
            check(strcmp(x, y) == 0, "%s in %d stages: the same file", model, stages);
            check(r.plan->objective_ps == s.plan->objective_ps && r.plan->n_others == 2 && !r.plan->others[1].why, "%s: times", model);
            free(x);
            free(y);
        }
    }
    setup_free(&r);
    setup_free(&s);
}

/* Stages that are alike stand once: GPT-3 in 96 stages on 3,072 devices is a small file. */
static void test_size(void)
{
    struct setup s = setup_unfused("models/gpt.xml", "gpt3-175b", "batch=3072", "dgx-a100", 3072);
    s.plan = plan_stages(s.arena, s.diag, s.g, s.cluster, 96, MPP_RECOMPUTE_FULL, 96);
    check(s.plan != NULL, "gpt3-175b in 96 stages: %s", mpp_diag_text(s.diag));
    if (s.plan) {
        must(mpp_plan_write_json(s.diag, s.g, s.cluster, s.plan, path_a), "write");
        char *text = slurp(path_a);
        json_t *json = json_loads(text, 0, NULL);
        size_t objects = json_array_size(json_object_get(json, "stages"));
        check(strlen(text) < 1000000, "gpt3-175b in 96 stages: plan.json has %zu bytes", strlen(text));
        check(objects > 0 && objects < 16, "gpt3-175b in 96 stages: %zu are not alike", objects);
        json_decref(json);
        free(text);
    }
    setup_free(&s);
}

/* Replace FROM, which stands in the file, by TO; reading it must fail and say SAYS (NULL: must work). */
static void edited(struct setup *s, const char *text, const char *from, const char *to, const char *says)
{
    const char *at = strstr(text, from);
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_plan *plan;
    check(at != NULL, "\"%s\" stands in plan.json", from ? from : "");
    if (!at) {
        mpp_diag_free(diag);
        return;
    }
    spill(path_b, mpp_arena_printf(s->arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)));
    enum mpp_status st = mpp_plan_read_json(s->arena, diag, s->g, s->cluster, path_b, &plan);
    if (st == MPP_OK)
        st = mpp_plan_derive(s->arena, diag, s->g, s->cluster, plan);
    if (says)
        check(st == MPP_INVALID && strstr(mpp_diag_text(diag), says) && strstr(mpp_diag_text(diag), path_b),
              "%s -> %s: status %d, %s", from, to, st, mpp_diag_text(diag));
    else
        check(st == MPP_OK, "%s -> %s: %s", from, to, mpp_diag_text(diag));
    mpp_diag_free(diag);
}

static void test_edits(void)
{
    struct setup s = setup_new("models/gpt.xml", "tiny", tiny, "dgx-a100", 4);
    must(setup_plan(&s, "dp=2,tp=2", 0), "plan");
    must(mpp_plan_write_json(s.diag, s.g, s.cluster, s.plan, path_a), "write");
    char *text = slurp(path_a);
    edited(&s, text, "\"pins\": \"dp=2,tp=2\"", "\"pins\": \"none\"", NULL);
    edited(&s, text, "\"plan_version\": \"2\"", "\"plan_version\": \"7\"", "version \"7\"");
    edited(&s, text, "\"batch\": 16", "\"batch\": 32", "a batch of 32");
    edited(&s, text, "\"micro_batches\": 1", "\"micro_batches\": 3", "do not divide");
    edited(&s, text, "\"micro_batches\": 1", "\"micro_batches\": \"1\"", "whole number");
    edited(&s, text, "\"devices\": 4", "\"devices\": 8", "for 8 devices");
    edited(&s, text, "\"cluster\": \"dgx-a100\"", "\"cluster\": \"host\"", "the cluster");
    edited(&s, text, "\"op\": \"h.*.ln_1\"", "\"op\": \"h.*.ln_11\"", "there is no \"h.0.ln_11\"; did you mean");
    edited(&s, text, "\"op\": \"h.*.ln_1\"", "\"op\": \"h.*.ln_2\"", "stands twice");
    edited(&s, text, "\"layers\": \"0-1\"", "\"layers\": \"0\"", "no record of op");
    edited(&s, text, "\"layers\": \"0-1\"", "\"layers\": \"1-0\"", "not a list of layers");
    edited(&s, text, "\"layers\": \"0-1\"", "\"layers\": \"0-99999\"", "there is no");
    edited(&s, text, "{\"data\": \"batch\", \"model\": \"heads\"}", "{\"data\": \"batch\", \"model\": \"headz\"}",
           "did you mean \"heads\"");
    edited(&s, text, "{\"data\": \"batch\", \"model\": \"heads\"}", "{\"data\": \"batch\", \"modell\": \"heads\"}",
           "no axis \"modell\"");
    edited(&s, text, "{\"data\": \"batch\", \"model\": \"heads\"}", "{\"data\": \"partial\", \"model\": \"heads\"}",
           "cannot be split so");
    edited(&s, text, "{\"data\": \"batch\", \"model\": \"heads\"}", "{\"data\": \"batch\", \"model\": \"3\"}", NULL);
    edited(&s, text, "\"axis\": \"model\", \"size\": 2", "\"axis\": \"model\", \"size\": 4", "8 devices, but there are 4");
    edited(&s, text, "\"axis\": \"model\"", "\"axis\": \"data\"", "two axes");
    edited(&s, text, "\"stages\": [", "\"stages\": 3, \"x\": [", "array \"stages\"");
    edited(&s, text, "{", "", "not JSON");
    free(text);
    setup_free(&s);
}

/* ---- nonsense ---- */

static uint64_t seed = 7;

static size_t below(size_t n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (size_t)(seed >> 33) % n;
}

/* A place in TEXT where a string, a number or a word begins; *OUT_SIZE its length. */
static size_t some_token(const char *text, size_t n, size_t *out_size)
{
    size_t at = below(n), end;
    while (text[at] != '"' && !strchr("-0123456789tf[{", text[at]))
        at = at + 1 < n ? at + 1 : 0;
    end = at + 1;
    if (text[at] == '"')
        while (end < n && text[end++] != '"')
            ;
    else
        while (end < n && !strchr(",]} \n", text[end]))
            end++;
    *out_size = end - at;
    return at;
}

/* plan.json with one to three places changed is read or refused with a message, and what is read can be written. */
static void fuzz_json(const char *model, const char *fix, int tries)
{
    static const char *const with[] = {"-1", "0", "3", "99999999999999999999", "9223372036854775807", "1e308", "null", "true",
                                       "[]", "{}", "\"\"", "\"partial\"", "\"#0\"", "\"h.*.\"", "\"0-9\"", "\"\\u0000\"", ""};
    struct setup s = setup_new(model, "tiny", "layers=2 batch=8", "host", 4);
    int read = 0, refused = 0, odd = 0;
    must(setup_plan(&s, fix, 0), fix);
    must(mpp_plan_write_json(s.diag, s.g, s.cluster, s.plan, path_a), "write");
    char *text = slurp(path_a), *edit = malloc(2 * strlen(text) + 256);
    for (int i = 0; i < tries; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_plan *plan = NULL;
        strcpy(edit, text);
        for (size_t k = 1 + below(3); k > 0; k--) {
            size_t n = strlen(edit), size, other, at = some_token(edit, n, &size), from = some_token(text, strlen(text), &other);
            const char *new = below(3) ? with[below(sizeof with / sizeof with[0])]
                                       : mpp_arena_strndup(arena, text + from, other < 64 ? other : 64);
            memmove(edit + at + strlen(new), edit + at + size, n - at - size + 1);
            memcpy(edit + at, new, strlen(new));
        }
        spill(path_b, edit);
        enum mpp_status st = mpp_plan_read_json(arena, diag, s.g, s.cluster, path_b, &plan);
        if (st == MPP_OK)
            st = mpp_plan_derive(arena, diag, s.g, s.cluster, plan);
        if (st == MPP_OK)
            st = mpp_plan_write_json(diag, s.g, s.cluster, plan, path_b);
        read += st == MPP_OK;
        refused += st == MPP_INVALID && mpp_diag_errors(diag) > 0;
        odd += st != MPP_OK && !(st == MPP_INVALID && mpp_diag_errors(diag) > 0);
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
    check(odd == 0 && read > 0 && refused > 0, "%s: of %d changed plans %d are read, %d refused, %d neither", model, tries, read,
          refused, odd);
    free(edit);
    free(text);
    setup_free(&s);
}

/* Pins made of pieces of pins are understood or refused with a message; what is understood reads the same again. */
static void fuzz_pins(int tries)
{
    static const char *const piece[] = {"dp", "tp", "pp", "mesh", "zero", "sequence_parallel", "vocab_parallel", "micro_batch",
                                        "micro_batches", "shard:", "=", "=", "=", ",", ",", "/", "x", "2", "4", "-1", "0", "1e9",
                                        "99999999999999999999", "true", "off", "h.*.mlp", "[", "*", "ffn", "model", " ", "2x2",
                                        "dp=2", "zero=1", "mesh=2x2", "interleave=2", "recompute=full", "schedule=1f1b", "vocab_parallel=off", "shard:a=b/c"};
    int odd = 0, understood = 0;
    for (int i = 0; i < tries; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_pins pins = mpp_pins_none(), again = mpp_pins_none();
        const char *text = "";
        for (size_t k = 1 + below(9); k > 0; k--)
            text = mpp_arena_printf(arena, "%s%s", text, piece[below(sizeof piece / sizeof piece[0])]);
        enum mpp_status st = mpp_pins_parse(arena, diag, text, &pins);
        if (st == MPP_OK) {
            const char *said = mpp_pins_text(arena, &pins);
            understood++;
            if (mpp_pins_parse(arena, diag, said, &again) != MPP_OK || strcmp(mpp_pins_text(arena, &again), said) != 0)
                check(false, "%s reads as %s, and that as %s", text, said, mpp_pins_text(arena, &again));
        }
        odd += st != MPP_OK && !(st == MPP_INVALID && mpp_diag_errors(diag) > 0);
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
    check(odd == 0 && understood > 0, "of %d pins %d are understood, %d neither understood nor refused", tries, understood, odd);
}

static void derived(struct setup *s, double dispatch_s, double pair_s, double batch_s)
{
    s->cluster->device.dispatch_s = dispatch_s;
    s->cluster->device.dispatch_pair_s = pair_s;
    s->cluster->device.dispatch_batch_s = batch_s;
    must(mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, s->plan), "derive");
}

/* Kernels that nothing fuses wait for the host that starts them. */
static void test_host(void)
{
    struct setup s;
    pinned("tp=4,zero=0,micro_batch=4,sequence_parallel=false", 4, &s);
    const struct mpp_stage *stage = &s.plan->stages[0];
    struct mpp_stage_time fused = stage->time;
    s.g->unfused = true;
    derived(&s, 0, 0, 0);
    check(stage->time.forward_ps == fused.forward_ps && stage->time.backward_ps == fused.backward_ps, "no host, no wait");
    int64_t kernels[2] = {0, 0}, collectives[2] = {0, 0};
    for (int i = 0; i < s.g->n_groups; i++) {
        const struct mpp_group *g = &s.g->groups[i];
        bool sum = g->n_out > 0 && s.g->tensors[g->out[0]].role == MPP_ROLE_ACCUM;
        if (g->phase != MPP_PHASE_UPDATE && !sum)
            kernels[g->phase == MPP_PHASE_BACKWARD]++;
    }
    for (int i = 0; i < stage->n_collectives; i++)
        if (stage->collectives[i].phase != MPP_PHASE_UPDATE && stage->collectives[i].count == s.plan->micro_batches)
            collectives[stage->collectives[i].phase == MPP_PHASE_BACKWARD]++;
    check(collectives[0] >= 4 && collectives[1] >= 4, "tp=4: %lld and %lld collectives", (long long)collectives[0],
          (long long)collectives[1]);
    const int64_t second = 1000000000000;
    derived(&s, 1, 0, 0);
    check(stage->time.forward_ps >= (kernels[0] + collectives[0]) * second && stage->time.backward_ps >= (kernels[1] + collectives[1]) * second
              && stage->time.forward_ps < (kernels[0] + 2 * collectives[0] + 2) * second, "a second for each kernel and collective");
    derived(&s, 0, 1, 0);
    check(stage->time.forward_ps >= 6 * collectives[0] * second && stage->time.forward_ps < (6 * collectives[0] + 1) * second,
          "six pairs of four hosts: %lld collectives, %lld ps", (long long)collectives[0], (long long)stage->time.forward_ps);
    derived(&s, 0, 0, 1);
    check(stage->time.backward_ps == fused.backward_ps + second && stage->time.forward_ps == fused.forward_ps, "a second per micro-batch");
    setup_free(&s);
}

/* Unfused, the gradients' sums cost what one call of all their bytes does. */
static void test_joined_gradients(void)
{
    struct setup s;
    struct mpp_groups groups;
    pinned("dp=4,zero=0,micro_batch=1", 4, &s);
    const struct mpp_stage *stage = &s.plan->stages[0];
    int64_t sum[2] = {0, 0}, once[2] = {0, 0};
    double bytes = 0;
    for (int unfused = 0; unfused < 2; unfused++) {
        s.g->unfused = unfused;
        derived(&s, 0, 0, 0);
        once[unfused] = stage->time.once_ps;
        for (int i = 0; i < stage->n_collectives; i++)
            if (strcmp(stage->collectives[i].role, "gradient") == 0 && stage->collectives[i].phase == MPP_PHASE_UPDATE) {
                sum[unfused] += stage->collectives[i].cost_ps;
                bytes += unfused ? (double)stage->collectives[i].bytes : 0;
            }
    }
    mpp_groups_init(s.cluster, &stage->mesh, 0, 1, &groups);
    int64_t one = mpp_cost_collective(s.cluster, &groups, MPP_COLLECTIVE_ALL_REDUCE, bytes);
    check(sum[0] > 2 * one && sum[1] <= one && sum[1] > one - 1000, "gradients: %lld ps apart, %lld joined, one call %lld",
          (long long)sum[0], (long long)sum[1], (long long)one);
    check(once[0] - once[1] >= sum[0] - one, "the step is as much shorter");
    setup_free(&s);
}

int main(int argc, char **argv)
{
    int tries = argc > 1 ? atoi(argv[1]) : 200;
    close(mkstemp(path_a));
    close(mkstemp(path_b));
    test_data_and_model();
    test_zero();
    test_zero_where_it_can();
    test_post_norm_sequence();
    test_gradients_in_the_update();
    test_sequence_and_vocabulary();
    test_contradictions();
    test_no_room();
    test_bound_in_all_room();
    test_host();
    test_joined_gradients();
    test_normalised();
    round_trip("models/gpt.xml", "tiny", "", "host", 4, "");
    round_trip("models/gpt.xml", "tiny", "", "dgx-a100", 8, "mesh=2x2x2");
    round_trip("models/gpt.xml", "tiny", tiny, "dgx-a100", 4, "dp=4,zero=3,micro_batches=2");
    round_trip("models/gpt.xml", "gpt2", "layers=3", "dgx-a100", 8, "");
    round_trip("models/bert.xml", "tiny", "padding_mask=true", "host", 3, "");
    round_trip("models/mlp.xml", NULL, "", "host", 7, "");
    round_trip("models/mlp.xml", NULL, "", "host", 1, "");
    stages_trip("models/gpt.xml", "layers=6 batch=16", 8, 4, MPP_RECOMPUTE_NONE);
    stages_trip("models/gpt.xml", "layers=12 batch=16", 16, 8, MPP_RECOMPUTE_FULL);
    stages_trip("models/gpt.xml", "layers=4 batch=16", 4, 1, MPP_RECOMPUTE_SELECTIVE);
    stages_trip("models/bert.xml", "batch=16", 4, 2, MPP_RECOMPUTE_NONE);
    stages_trip("models/mlp.xml", "batch=16", 4, 2, MPP_RECOMPUTE_FULL);
    test_size();
    test_edits();
    fuzz_json("models/gpt.xml", "dp=2,tp=2", tries);
    fuzz_json("models/bert.xml", "", tries);
    fuzz_pins(10 * tries);
    unlink(path_a);
    unlink(path_b);
    return finish();
}
