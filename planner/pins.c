/* pins.c - --fix as text: parsing, checking, and the meshes it leaves. */
#include "planner/pins.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* In the order of their enums. */
static const char *const recompute_words[] = {"none", "selective", "full", NULL};
static const char *const schedule_words[] = {"gpipe", "1f1b", "interleaved", NULL};

enum kind { DEVICES, NUMBER, TRUTH, MESH, WORD };

static const struct key {
    const char *name;
    enum kind kind;
    size_t at;                    /* its field of struct mpp_pins */
    int64_t least, most, unset;
    const char *wants;
    const char *const *words;     /* WORD: of each value, NULL at the end */
} keys[] = {
    {"dp", DEVICES, offsetof(struct mpp_pins, dp), 1, MPP_CLUSTER_MAX_DEVICES, 0, "a whole number from 1 to 65536", NULL},
    {"tp", DEVICES, offsetof(struct mpp_pins, tp), 1, MPP_CLUSTER_MAX_DEVICES, 0, "a whole number from 1 to 65536", NULL},
    {"pp", DEVICES, offsetof(struct mpp_pins, pp), 1, MPP_CLUSTER_MAX_DEVICES, 0, "a whole number from 1 to 65536", NULL},
    {"interleave", DEVICES, offsetof(struct mpp_pins, interleave), 1, MPP_CLUSTER_MAX_DEVICES, 0, "a whole number from 1 to 65536", NULL},
    {"recompute", WORD, offsetof(struct mpp_pins, recompute), 0, 0, -1, "none, selective or full", recompute_words},
    {"schedule", WORD, offsetof(struct mpp_pins, schedule), 0, 0, -1, "1f1b, gpipe or interleaved", schedule_words},
    {"mesh", MESH, offsetof(struct mpp_pins, mesh), 0, 0, 0, "a mesh of one to three axes, as in 2x4", NULL},
    {"zero", DEVICES, offsetof(struct mpp_pins, zero), 0, 3, -1, "0, 1, 2 or 3", NULL},
    {"sequence_parallel", TRUTH, offsetof(struct mpp_pins, sequence_parallel), 0, 1, -1, "true or false", NULL},
    {"vocab_parallel", TRUTH, offsetof(struct mpp_pins, vocab_parallel), 0, 1, -1, "true or false", NULL},
    {"micro_batch", NUMBER, offsetof(struct mpp_pins, micro_batch), 1, INT64_MAX / 2, 0, "a whole number from 1 on", NULL},
    {"micro_batches", NUMBER, offsetof(struct mpp_pins, micro_batches), 1, INT64_MAX / 2, 0, "a whole number from 1 on", NULL},
};
enum { N_KEYS = sizeof keys / sizeof keys[0], MAX_SHARDS = 64 };

struct mpp_pins mpp_pins_none(void)
{
    return (struct mpp_pins){.recompute = -1, .schedule = -1, .zero = -1, .sequence_parallel = -1, .vocab_parallel = -1};
}

/* ---- parsing ---- */

static const struct mpp_loc nowhere = {0};

static bool whole_number(const char *s, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v < least || v > most || !isdigit((unsigned char)*s))
        return false;
    *out = v;
    return true;
}

static bool truth(const char *s, int *out)
{
    if (strcmp(s, "true") == 0 || strcmp(s, "on") == 0 || strcmp(s, "1") == 0)
        *out = 1;
    else if (strcmp(s, "false") == 0 || strcmp(s, "off") == 0 || strcmp(s, "0") == 0)
        *out = 0;
    else
        return false;
    return true;
}

static bool word(const char *s, const char *const *words, int *out)
{
    for (int k = 0; words[k]; k++)
        if (strcmp(s, words[k]) == 0) {
            *out = k;
            return true;
        }
    return false;
}

static bool parse_mesh(struct mpp_arena *arena, const char *value, struct mpp_mesh *out)
{
    *out = (struct mpp_mesh){.size = {1, 1, 1}};
    for (const char *at = value;; at++) {
        size_t len = strcspn(at, "x");
        int64_t n;
        if (out->n_axes == MPP_MAX_AXES || !whole_number(mpp_arena_strndup(arena, at, len), 1, MPP_CLUSTER_MAX_DEVICES, &n))
            return false;
        out->size[out->n_axes++] = (int)n;
        at += len;
        if (!*at)
            return true;
    }
}

static const char *const kind_words[] = {"shard", "rest", "split"};

const char *mpp_pins_kind_word(enum mpp_pin_kind kind)
{
    return kind_words[kind];
}

static bool parse_shard(struct mpp_arena *arena, enum mpp_pin_kind kind, const char *glob, const char *value, struct mpp_pins *pins)
{
    const char *slash = strrchr(value, '/');
    if (!*glob || !slash || slash == value || !slash[1])
        return false;
    struct mpp_pin_tensor *list = mpp_arena_array(arena, pins->n_tensors + 1, struct mpp_pin_tensor);
    if (pins->n_tensors > 0)
        memcpy(list, pins->tensors, sizeof *list * (size_t)pins->n_tensors);
    list[pins->n_tensors++] = (struct mpp_pin_tensor){
        mpp_arena_strdup(arena, glob), mpp_arena_strndup(arena, value, (size_t)(slash - value)),
        mpp_arena_strdup(arena, slash + 1), kind};
    pins->tensors = list;
    return true;
}

static const struct key *find_key(struct mpp_diag *diag, const char *name)
{
    const char *names[N_KEYS];
    for (int k = 0; k < N_KEYS; k++) {
        names[k] = keys[k].name;
        if (strcmp(name, names[k]) == 0)
            return &keys[k];
    }
    const char *hint = mpp_diag_hint(diag, name, names, N_KEYS);
    mpp_diag_error(diag, nowhere, "--fix knows no \"%s\"%s", name,
                   *hint ? hint : "; it knows dp, tp, pp, interleave, recompute, schedule, mesh, zero, sequence_parallel, "
                                  "vocab_parallel, micro_batch, micro_batches, shard:GLOB, rest:GLOB and split:GLOB (docs/plan.md)");
    return NULL;
}

static bool is_set(const struct mpp_pins *pins, const struct key *key)
{
    const void *field = (const char *)pins + key->at;
    return key->kind == MESH     ? ((const struct mpp_mesh *)field)->n_axes > 0
           : key->kind == NUMBER ? *(const int64_t *)field != key->unset
                                 : *(const int *)field != key->unset;
}

static bool take_value(struct mpp_arena *arena, const struct key *key, const char *value, struct mpp_pins *pins)
{
    void *field = (char *)pins + key->at;
    int64_t n;
    if (key->kind == MESH)
        return parse_mesh(arena, value, field);
    if (key->kind == TRUTH)
        return truth(value, field);
    if (key->kind == WORD)
        return word(value, key->words, field);
    if (!whole_number(value, key->least, key->most, &n))
        return false;
    if (key->kind == NUMBER)
        *(int64_t *)field = n;
    else
        *(int *)field = (int)n;
    return true;
}

static enum mpp_status parse_one(struct mpp_arena *arena, struct mpp_diag *diag, char *text, struct mpp_pins *pins)
{
    int kind = 2;
    while (kind >= 0 && (strncmp(text, kind_words[kind], strlen(kind_words[kind])) != 0 || text[strlen(kind_words[kind])] != ':'))
        kind--;
    bool shard = kind >= 0;
    const char *word = shard ? kind_words[kind] : "";
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    if (shard && value && pins->n_tensors == MAX_SHARDS)
        mpp_diag_error(diag, nowhere, "--fix %s: more than %d of them", word, MAX_SHARDS);
    else if (shard && value && parse_shard(arena, (enum mpp_pin_kind)kind, text + strlen(word) + 1, value, pins))
        return MPP_OK;
    else if (shard)
        mpp_diag_error(diag, nowhere, "--fix %s: wants %s:GLOB=dimension/axis, as in %s:h.*.mlp.*=hidden/model", word, word, word);
    else if (!value)
        mpp_diag_error(diag, nowhere, "--fix \"%s\" has no value; write key=value", text);
    if (shard || !value)
        return MPP_INVALID;
    const struct key *key = find_key(diag, text);
    if (key && is_set(pins, key))
        mpp_diag_error(diag, nowhere, "--fix %s stands twice", text);
    else if (key && take_value(arena, key, value, pins))
        return MPP_OK;
    else if (key)
        mpp_diag_error(diag, nowhere, "--fix %s=%s: that is not %s", text, value, key->wants);
    return MPP_INVALID;
}

enum mpp_status mpp_pins_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *text, struct mpp_pins *pins)
{
    enum mpp_status st = MPP_OK;
    if (!*text)
        return MPP_OK;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        if (parse_one(arena, diag, mpp_arena_strndup(arena, at, len), pins) != MPP_OK)
            st = MPP_INVALID;
        at += len;
        if (!*at || mpp_diag_errors(diag) > MAX_SHARDS)
            return st;
    }
}

const char *mpp_plan_recompute_word(enum mpp_recompute r)
{
    return recompute_words[r];
}

const char *mpp_pins_text(struct mpp_arena *arena, const struct mpp_pins *pins)
{
    const char *t = "";
    const struct { const char *key; int64_t value, unset; } number[] = {
        {"dp", pins->dp, 0}, {"tp", pins->tp, 0}, {"pp", pins->pp, 0}, {"interleave", pins->interleave, 0}, {"zero", pins->zero, -1},
        {"micro_batch", pins->micro_batch, 0}, {"micro_batches", pins->micro_batches, 0},
    };
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if (number[i].value != number[i].unset)
            t = mpp_arena_printf(arena, "%s%s%s=%lld", t, *t ? "," : "", number[i].key, (long long)number[i].value);
    if (pins->recompute >= 0)
        t = mpp_arena_printf(arena, "%s%srecompute=%s", t, *t ? "," : "", recompute_words[pins->recompute]);
    if (pins->schedule >= 0)
        t = mpp_arena_printf(arena, "%s%sschedule=%s", t, *t ? "," : "", schedule_words[pins->schedule]);
    if (pins->mesh.n_axes > 0) {
        t = mpp_arena_printf(arena, "%s%smesh=%d", t, *t ? "," : "", pins->mesh.size[0]);
        for (int a = 1; a < pins->mesh.n_axes; a++)
            t = mpp_arena_printf(arena, "%sx%d", t, pins->mesh.size[a]);
    }
    if (pins->sequence_parallel >= 0)
        t = mpp_arena_printf(arena, "%s%ssequence_parallel=%s", t, *t ? "," : "", pins->sequence_parallel ? "true" : "false");
    if (pins->vocab_parallel >= 0)
        t = mpp_arena_printf(arena, "%s%svocab_parallel=%s", t, *t ? "," : "", pins->vocab_parallel ? "true" : "false");
    for (int i = 0; i < pins->n_tensors; i++)
        t = mpp_arena_printf(arena, "%s%s%s:%s=%s/%s", t, *t ? "," : "", kind_words[pins->tensors[i].kind], pins->tensors[i].glob,
                             pins->tensors[i].dimension, pins->tensors[i].axis);
    return t;
}

/* ---- checks that need no mesh ---- */

static bool tensor_matches(const struct mpp_gtensor *t, const char *glob)
{
    return mpp_glob(glob, t->name) || (t->info && t->info->published && mpp_glob(glob, t->info->published));
}

/* A shard pin and how messages name it: --fix shard:GLOB=dimension/axis, or <shard match="GLOB"> of the model file. */
struct shard {
    const struct mpp_pin_tensor *pin;
    struct mpp_loc loc;
    const char *name;
};

enum { MAX_LISTED = 64, MAX_SHOWN = 8 };

/* "a", "b" and "c", with quotes; how many more where there are many. */
static const char *listed(struct mpp_arena *arena, const char *const *names, int n)
{
    const char *t = "";
    for (int i = 0; i < n && i < MAX_SHOWN; i++)
        t = mpp_arena_printf(arena, "%s%s\"%s\"", t, i == 0 ? "" : i == n - 1 ? " and " : ", ", names[i]);
    return n > MAX_SHOWN ? mpp_arena_printf(arena, "%s and %d more", t, n - MAX_SHOWN) : t;
}

static void add_name(const char **names, int *n, const char *name)
{
    for (int k = 0; k < *n; k++)
        if (strcmp(names[k], name) == 0)
            return;
    if (*n < MAX_LISTED)
        names[(*n)++] = name;
}

static void no_match(struct mpp_arena *scratch, struct mpp_diag *diag, const struct mpp_graph *g, const struct shard *s)
{
    const char **all = mpp_arena_array(scratch, g->n_tensors, const char *), *example = NULL;
    for (mpp_id i = 0; i < g->n_tensors; i++) {
        all[i] = g->tensors[i].info ? g->tensors[i].info->published : g->tensors[i].name;
        if (!example && g->tensors[i].info)
            example = all[i];
    }
    const char *hint = mpp_diag_hint(diag, s->pin->glob, all, g->n_tensors);
    if (!*hint && example)
        hint = mpp_arena_printf(scratch, "; parameters are called as in \"%s\", and * stands for any letters", example);
    mpp_diag_error(diag, s->loc, "%s: no tensor matches \"%.80s\"%s", s->name, s->pin->glob, hint);
}

/* The same of ops and the dimensions that they run over. */
static bool check_ops(struct mpp_arena *scratch, struct mpp_diag *diag, const struct mpp_graph *g, const struct shard *s)
{
    const char *names[MAX_LISTED], **all = mpp_arena_array(scratch, g->n_ops, const char *);
    int n = 0, matches = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct mpp_rule *rule = g->ops[i].rule;
        all[i] = g->ops[i].name;
        if (!mpp_glob(s->pin->glob, g->ops[i].name))
            continue;
        matches++;
        if (mpp_pins_find_factor(rule, s->pin->dimension) >= MPP_PARTIAL)
            return true;
        for (int f = 0; f < rule->n_factors; f++)
            if (rule->factor[f].size.name)
                add_name(names, &n, rule->factor[f].size.name);
    }
    if (matches == 0) {
        mpp_diag_error(diag, s->loc, "%s: no op matches \"%.80s\"%s", s->name, s->pin->glob, mpp_diag_hint(diag, s->pin->glob, all, g->n_ops));
        return false;
    }
    const char *hint = mpp_diag_hint(diag, s->pin->dimension, names, n);
    if (!*hint && n > 0)
        hint = mpp_arena_printf(scratch, "; there %s %s", n == 1 ? "is" : "are", listed(scratch, names, n));
    mpp_diag_error(diag, s->loc, "%s: no op that matches \"%.80s\" runs over \"%.80s\"%s", s->name, s->pin->glob, s->pin->dimension, hint);
    return false;
}

static bool check_tensors(struct mpp_arena *scratch, struct mpp_diag *diag, const struct mpp_graph *g, const struct shard *s)
{
    const char *names[MAX_LISTED];
    int n = 0, matches = 0;
    for (mpp_id i = 0; i < g->n_tensors; i++) {
        const struct mpp_gtensor *t = &g->tensors[i];
        if (!tensor_matches(t, s->pin->glob))
            continue;
        matches++;
        if (mpp_pins_find_dim(t, s->pin->dimension) >= MPP_PARTIAL)
            return true;
        for (int d = 0; d < t->n_dims; d++) {
            if (t->dims[d].name)
                add_name(names, &n, t->dims[d].name);
        }
    }
    if (matches == 0) {
        no_match(scratch, diag, g, s);
        return false;
    }
    const char *hint = mpp_diag_hint(diag, s->pin->dimension, names, n);
    if (!*hint && n > 0)
        hint = mpp_arena_printf(scratch, "; there %s %s", n == 1 ? "is" : "are", listed(scratch, names, n));
    mpp_diag_error(diag, s->loc, "%s: no tensor that matches \"%.80s\" has a dimension \"%.80s\"%s", s->name, s->pin->glob,
                   s->pin->dimension, hint);
    return false;
}

/* Is there a mesh with the axis that the pin names? A misspelt one is no matter of memory, so it is said before the search. */
static bool check_axis(struct mpp_arena *scratch, struct mpp_diag *diag, int n_devices, const struct mpp_pins *pins,
                       const struct shard *s)
{
    static const char *const words[] = {"data", "model", "a", "b", "c"};
    const char *names[MAX_LISTED], *axis = s->pin->axis;
    struct mpp_candidate *c;
    int n_names = 0, n = mpp_pins_candidates(scratch, n_devices, false, pins, &c);
    for (int i = 0; i < n; i++) {
        if (mpp_pins_axis(&c[i], axis) >= 0)
            return true;
        for (int a = 0; a < c[i].mesh.n_axes; a++)
            add_name(names, &n_names, c[i].mesh.name[a]);
        for (int k = 0; k < 2; k++)
            if (mpp_pins_axis(&c[i], words[k]) >= 0)
                add_name(names, &n_names, words[k]);
    }
    if (n == 0)
        return true;
    bool word = false;
    for (int k = 0; k < 5; k++)
        word = word || strcmp(words[k], axis) == 0;
    const char *hint = word ? "" : mpp_diag_hint(diag, axis, words, 5);
    if (!*hint)
        hint = mpp_arena_printf(scratch, "; there %s %s", n_names == 1 ? "is" : "are", listed(scratch, names, n_names));
    mpp_diag_error(diag, s->loc, "%s: no mesh of %d devices%s has an axis \"%.80s\"%s", s->name, n_devices,
                   pins->mesh.n_axes || pins->dp || pins->tp ? " that --fix leaves" : "", axis, hint);
    return false;
}

/* AXES: the mesh itself is in order, so that its axes can be looked at. */
static enum mpp_status check_shard(struct mpp_diag *diag, const struct mpp_graph *g, int n_devices, const struct mpp_pins *pins,
                                   const struct shard *s, bool axes)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    bool op = s->pin->kind == MPP_PIN_SPLIT;
    bool ok = (op ? check_ops(scratch, diag, g, s) : check_tensors(scratch, diag, g, s)) && (!axes || check_axis(scratch, diag, n_devices, pins, s));
    mpp_arena_free(scratch);
    return ok ? MPP_OK : MPP_INVALID;
}

/* dp, tp and the mesh are of one stage; where both they and pp are told they make all devices. */
static enum mpp_status check_devices(struct mpp_arena *scratch, struct mpp_diag *diag, int n, const struct mpp_pins *p)
{
    const char *pp = p->pp ? mpp_arena_printf(scratch, ",pp=%d", p->pp) : "";
    int64_t mesh = 1, pipeline = p->pp ? p->pp : 1, both = (int64_t)p->dp * p->tp;
    for (int a = 0; a < p->mesh.n_axes; a++)
        mesh *= p->mesh.size[a];
    if (p->pp > n)
        mpp_diag_error(diag, nowhere, "--fix pp=%d: there are more stages than the %d device%s", p->pp, n, n == 1 ? "" : "s");
    else if (both && (p->pp ? both * pipeline != n : n % both != 0))
        mpp_diag_error(diag, nowhere, "--fix dp=%d,tp=%d%s makes %lld devices, but there are %d", p->dp, p->tp, pp,
                       (long long)(both * pipeline), n);
    else if (p->dp && n % p->dp)
        mpp_diag_error(diag, nowhere, "--fix dp=%d does not divide the %d devices", p->dp, n);
    else if (p->tp && n % p->tp)
        mpp_diag_error(diag, nowhere, "--fix tp=%d does not divide the %d devices", p->tp, n);
    else if (p->dp * pipeline > n || p->tp * pipeline > n)
        mpp_diag_error(diag, nowhere, "--fix %s=%d%s wants %lld devices at least, but there are %d", p->dp ? "dp" : "tp",
                       p->dp ? p->dp : p->tp, pp, (long long)((p->dp ? p->dp : p->tp) * pipeline), n);
    else if (p->mesh.n_axes && (p->pp ? mesh * pipeline != n : n % mesh != 0))
        mpp_diag_error(diag, nowhere, "--fix mesh%s: its axes make %lld devices%s, but there are %d", pp,
                       (long long)(mesh * pipeline), p->pp > 1 ? " in all stages together" : "", n);
    else
        return MPP_OK;
    return MPP_INVALID;
}

/* What pp, interleave and schedule say together. */
static enum mpp_status check_schedule(struct mpp_diag *diag, const struct mpp_pins *p)
{
    bool interleaved = p->schedule == MPP_SCHEDULE_INTERLEAVED;
    if (p->interleave > 1 && p->pp == 1)
        mpp_diag_error(diag, nowhere, "--fix interleave=%d,pp=1: one stage has nothing to interleave", p->interleave);
    else if (p->interleave > 1 && p->schedule >= 0 && !interleaved)
        mpp_diag_error(diag, nowhere, "--fix interleave=%d,schedule=%s: only the interleaved schedule runs several parts of a stage",
                       p->interleave, schedule_words[p->schedule]);
    else if (interleaved && (p->interleave == 1 || p->pp == 1))
        mpp_diag_error(diag, nowhere, "--fix schedule=interleaved,%s=1: it wants at least two", p->pp == 1 ? "pp" : "interleave");
    else if ((interleaved || p->interleave > 1) && p->pp && p->micro_batches % p->pp)
        mpp_diag_error(diag, nowhere, "--fix pp=%d,micro_batches=%lld: the interleaved schedule wants a multiple of the stages",
                       p->pp, (long long)p->micro_batches);
    else
        return MPP_OK;
    return MPP_INVALID;
}

/* A stage has a layer at least, each part of an interleaved one too. */
static enum mpp_status check_layers(struct mpp_arena *scratch, struct mpp_diag *diag, const struct mpp_graph *g,
                                    const struct mpp_pins *p)
{
    struct mpp_layering *l;
    int64_t want = (int64_t)(p->pp ? p->pp : 1) * (p->interleave ? p->interleave : 1);
    if (want <= 1)
        return MPP_OK;
    MPP_TRY(mpp_layering_make(scratch, diag, g, 0, &l));
    if (want <= l->n_layers)
        return MPP_OK;
    const char *interleave = p->interleave > 1 ? mpp_arena_printf(scratch, "%sinterleave=%d", p->pp ? "," : "", p->interleave) : "";
    mpp_diag_error(diag, nowhere, "--fix %s%s makes %lld parts, but the model has only %d layer%s to share out",
                   p->pp ? mpp_arena_printf(scratch, "pp=%d", p->pp) : "", interleave, (long long)want, l->n_layers, l->n_layers == 1 ? "" : "s");
    return MPP_INVALID;
}

static enum mpp_status check_batch(struct mpp_diag *diag, const struct mpp_graph *g, const struct mpp_pins *p)
{
    int64_t batch = g->global_batch, dp = p->dp ? p->dp : 1, micro = g->model ? g->model->training.micro : 0;
    if (p->micro_batches && batch % p->micro_batches)
        mpp_diag_error(diag, nowhere, "--fix micro_batches=%lld does not divide the batch of %lld",
                       (long long)p->micro_batches, (long long)batch);
    else if (p->micro_batch && (batch % p->micro_batch || batch / p->micro_batch % dp))
        mpp_diag_error(diag, nowhere, "--fix micro_batch=%lld%s does not divide the batch of %lld",
                       (long long)p->micro_batch, p->dp ? " times dp" : "", (long long)batch);
    else if (p->micro_batch && p->micro_batches && p->dp && batch / p->micro_batch / dp != p->micro_batches)
        mpp_diag_error(diag, nowhere, "--fix micro_batch=%lld,micro_batches=%lld,dp=%lld: a batch of %lld has %lld such micro-batches",
                       (long long)p->micro_batch, (long long)p->micro_batches, (long long)dp, (long long)batch,
                       (long long)(batch / p->micro_batch / dp));
    else if (g->whole_batch && (p->micro_batches > 1 || (p->micro_batch && p->micro_batch * dp < batch)))
        mpp_diag_error(diag, nowhere, "--fix %s: the loss is no sum of terms of one sample each, so micro-batches do not "
                       "add up to it; leave the whole batch in one", p->micro_batches > 1 ? "micro_batches" : "micro_batch");
    else if (!p->micro_batch && !p->micro_batches && micro > 0 && batch % micro)
        mpp_diag_error(diag, g->model->training.loc, "micro=\"%lld\" does not divide the batch of %lld",
                       (long long)micro, (long long)batch);
    else
        return MPP_OK;
    return MPP_INVALID;
}

enum mpp_status mpp_pins_check_model(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_pins *pins)
{
    struct mpp_arena *scratch = mpp_arena_scratch(graph->arena);
    enum mpp_status st = check_schedule(diag, pins);
    if (st == MPP_OK)
        st = check_layers(scratch, diag, graph, pins);
    mpp_arena_free(scratch);
    return check_batch(diag, graph, pins) == MPP_OK ? st : MPP_INVALID;
}

enum mpp_status mpp_pins_check(struct mpp_diag *diag, const struct mpp_graph *graph, int n_devices,
                               const struct mpp_pins *pins)
{
    enum mpp_status st = MPP_OK;
    struct mpp_arena *scratch = mpp_arena_scratch(graph->arena);
    if (check_devices(scratch, diag, n_devices, pins) != MPP_OK || check_schedule(diag, pins) != MPP_OK
        || check_layers(scratch, diag, graph, pins) != MPP_OK)
        st = MPP_INVALID;
    mpp_arena_free(scratch);
    if (pins->pp > 1)
        n_devices /= pins->pp;
    if (check_batch(diag, graph, pins) != MPP_OK)
        st = MPP_INVALID;
    for (int i = 0; i < pins->n_tensors; i++) {
        const struct mpp_pin_tensor *pin = &pins->tensors[i];
        const char *name = mpp_arena_printf(graph->arena, "--fix %s:%.80s=%.80s/%.80s", kind_words[pin->kind], pin->glob, pin->dimension, pin->axis);
        if (check_shard(diag, graph, n_devices, pins, &(struct shard){pin, nowhere, name}, st == MPP_OK) != MPP_OK)
            st = MPP_INVALID;
    }
    for (int i = 0; graph->model && i < graph->model->n_shards; i++) {
        const struct mpp_shard_pin *s = &graph->model->shards[i];
        struct mpp_pin_tensor pin = {s->match, s->dim, s->axis ? s->axis : MPP_PIN_ANY_AXIS, MPP_PIN_SHARD};
        const char *name = mpp_arena_printf(graph->arena, "<shard match=\"%.80s\">", s->match);
        if (check_shard(diag, graph, n_devices, pins, &(struct shard){&pin, s->loc, name}, st == MPP_OK) != MPP_OK)
            st = MPP_INVALID;
    }
    return st;
}

/* ---- meshes ---- */

struct list {
    struct mpp_arena *arena;
    struct mpp_candidate *c;
    size_t cap;
    int n;
};

static void add(struct list *l, int n_axes, const int *size, int data_axis, int model_axis, bool no_data)
{
    l->c = mpp_arena_grow(l->arena, l->c, &l->cap, (size_t)l->n + 1, sizeof *l->c);
    struct mpp_candidate *c = &l->c[l->n++];
    static const char *const letters[] = {"a", "b", "c"};
    *c = (struct mpp_candidate){
        .mesh = {.n_axes = n_axes, .size = {1, 1, 1}}, .data_axis = data_axis, .model_axis = model_axis, .no_data = no_data};
    for (int a = 0; a < n_axes; a++) {
        c->mesh.size[a] = size[a];
        c->mesh.name[a] = a == data_axis ? "data" : a == model_axis ? "model" : letters[a];
    }
}

/* dp=DP in N devices: the data axis first, then one more axis for the rest. */
static void add_data(struct list *l, int n, int dp)
{
    int size[2] = {dp, n / dp};
    if (dp == 1)
        add(l, 1, &n, -1, n > 1 ? 0 : -1, true);
    else if (dp == n)
        add(l, 1, &n, 0, -1, false);
    else
        add(l, 2, size, 0, 1, false);
}

/* A pinned mesh: dp and tp choose axes of their size. */
static void add_pinned_mesh(struct list *l, const struct mpp_pins *p)
{
    int data = -1, model = -1;
    for (int a = 0; a < p->mesh.n_axes && p->dp > 1 && data < 0; a++)
        data = p->mesh.size[a] == p->dp ? a : -1;
    for (int a = p->mesh.n_axes - 1; a >= 0 && p->tp > 1 && model < 0; a--)
        model = p->mesh.size[a] == p->tp && a != data ? a : -1;
    if ((p->dp > 1 && data < 0) || (p->tp > 1 && model < 0))
        return;
    if (p->dp <= 1 && p->zero >= 0 && model != 0)
        data = 0;
    if (model < 0 && (p->sequence_parallel == 1 || p->vocab_parallel == 1))
        model = p->mesh.n_axes - 1 != data ? p->mesh.n_axes - 1 : -1;
    add(l, p->mesh.n_axes, p->mesh.size, data, model, p->dp == 1);
    if (p->mesh.n_axes > 2 && data < 0 && p->dp != 1 && model != 0) {
        /* Three free axes are hard to solve well: try also with the batch on the first. */
        add(l, p->mesh.n_axes, p->mesh.size, 0, model, false);
        l->c[l->n - 1].loose_data = true;
    }
}

int mpp_pins_candidates(struct mpp_arena *arena, int n, bool homogeneous, const struct mpp_pins *p,
                        struct mpp_candidate **out)
{
    struct list l = {.arena = arena};
    int64_t all = 1;
    for (int a = 0; a < p->mesh.n_axes; a++)
        all *= p->mesh.size[a];
    *out = NULL;
    if ((p->dp && n % p->dp) || (p->tp && n % p->tp) || (p->dp && p->tp && n != p->dp * p->tp) || (p->mesh.n_axes && all != n))
        return 0;                 /* a stage of other sizes than the pins ask for */
    int dp = p->dp ? p->dp : p->tp && (p->zero >= 0 || p->micro_batch) ? n / p->tp : 0;
    bool wants_model = p->sequence_parallel == 1 || p->vocab_parallel == 1;
    if (p->mesh.n_axes > 0) {
        add_pinned_mesh(&l, p);
    } else if (dp) {
        add_data(&l, n, dp);
    } else if (p->tp > 1) {
        int size[2] = {n / p->tp, p->tp};
        if (p->tp == n)
            add(&l, 1, &n, -1, 0, false);
        else
            add(&l, 2, size, -1, 1, false);
    } else if (p->zero >= 0 || p->micro_batch) {
        for (dp = 1; dp <= n; dp++)
            if (n % dp == 0 && (dp > 1 || p->zero < 0 || n == 1))
                add_data(&l, n, dp);
    } else {
        add(&l, 1, &n, -1, wants_model && n > 1 ? 0 : -1, false);
        for (int k = 2; k < n; k++) {
            int size[2] = {k, n / k};
            if (n % k == 0 && (!homogeneous || wants_model || k <= n / k))
                add(&l, 2, size, -1, wants_model ? 1 : -1, false);
        }
    }
    *out = l.c;
    return l.n;
}
