#include "tests/machine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/layers.h"
#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/ref.h"

enum { SEED = 42 };
static const double LEARNING_RATE = 0.01;

struct cell {                     /* bytes FIRST .. END - 1 of a stage's memory */
    int64_t first, end;
    const struct value *value;
};

struct gather {                   /* one that has begun: a place is another's until it is awaited */
    int64_t to, bytes, from, from_bytes;
    const struct value *value, *read;
};

struct player {                   /* a stage */
    const struct mpp_graph *g;
    const struct mpp_flat_program *flat; /* or */
    const struct mpp_lprog *prog;
    size_t cap;
    int n_cells;
    struct cell *cells;
    bool stale;
    const struct value **local;   /* [n_tensors] what the ops of the running group have read and made */
    int64_t slot;
    int chunk;                    /* that runs; its instructions alone do */
    /* where it stands */
    int64_t piece;
    int unit;                     /* of the section that it runs: flats of a phase, or items */
    bool placed, arrived;         /* inputs of this piece are there; it waits for the others' terms */
    int64_t in_flight, most_in_flight;
    size_t cap_gathers;
    int n_gathers;
    struct gather *gathers;       /* [n_gathers] under way, in the order of their beginnings */
};

struct queue {                    /* of a transfer */
    int64_t sent, received;
    size_t cap;
    const struct value **value;   /* flat programs: what was sent and not yet received, from `received` on */
};

struct machine {
    struct mpp_arena *arena;
    const struct mpp_plan *plan;
    const struct mpp_transfers *transfers;
    bool numbers;
    int64_t step;
    struct player *player;
    struct queue *queue;
};

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    return h ^ (h >> 33);
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 7;
    for (const char *c = text; *c; c++)
        h = mix(h, (unsigned char)*c);
    return h;
}

/* ---- values ---- */

static struct value *new_value(struct machine *m, uint64_t hash, int64_t n)
{
    struct value *v = mpp_arena_array(m->arena, 1, struct value);
    *v = (struct value){hash, n, m->numbers ? mpp_arena_array(m->arena, n, double) : NULL};
    return v;
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

void machine_elements(const struct mpp_gtensor *t, int64_t n, double *out)
{
    uint64_t state = hash_text(t->name);
    int64_t limit = t->input && t->input->limit > 0 ? t->input->limit : 2;
    uniform(&state);
    bool given = t->role == MPP_ROLE_PARAM && t->info->gradient < 0; /* the loss's scale, counts */
    for (int64_t i = 0; i < n; i++) {
        double u = uniform(&state);
        out[i] = given ? t->info->init_a : t->role == MPP_ROLE_STATE ? 0 : t->dtype == MPP_I32 ? floor(u * (double)limit) : 0.6 * (u - 0.5);
    }
}

static const struct value *sum_of(struct machine *m, const struct value *a, const struct value *b, uint64_t hash)
{
    struct value *v = new_value(m, hash, a->n);
    for (int64_t i = 0; v->x && i < v->n; i++)
        v->x[i] = a->x[i] + b->x[i];
    return v;
}

/* ---- memory ---- */

static void write_cell(struct player *p, int64_t first, int64_t bytes, const struct value *value)
{
    int n = 0;
    p->cells = realloc(p->cells, ((size_t)p->n_cells + 1) * sizeof *p->cells);
    assert(p->cells);
    for (int i = 0; i < p->n_cells; i++)
        if (p->cells[i].end <= first || p->cells[i].first >= first + bytes)
            p->cells[n++] = p->cells[i];
    p->cells[n++] = (struct cell){first, first + bytes, value};
    p->n_cells = n;
}

/* NULL: something else than one value is there. */
static const struct value *read_cell(struct player *p, int64_t first, int64_t bytes)
{
    for (int i = 0; i < p->n_cells; i++)
        if (p->cells[i].first == first && p->cells[i].end == first + bytes)
            return p->cells[i].value;
    p->stale = true;
    return NULL;
}

/* Where the buffer that REF means in iteration LAYER lies: found by its definition, not by the functions that lowering uses. */
static int64_t address(const struct player *p, struct mpp_bufref ref, int layer, int64_t *out_bytes)
{
    if (p->flat) {
        *out_bytes = 1;
        return mpp_buffer_root(p->flat->buffers, ref.buffer);
    }
    const struct mpp_buffer *b = &p->prog->buffers[ref.buffer];
    int i = ref.layer >= 0 ? ref.layer : layer;
    if (b->alias >= 0)
        return address(p, (struct mpp_bufref){b->alias, b->alias_layer >= 0 ? b->alias_layer : i}, i, out_bytes);
    if (b->address == MPP_ADDR_CARRIED) {
        const struct mpp_layer_class *c = &p->prog->classes[b->cls];
        int end = b->carry_step < 0 ? c->first : c->first + c->count - 1;
        struct mpp_bufref to = i == end ? b->carry_in : (struct mpp_bufref){b->carry_from, i + b->carry_step};
        return address(p, to, layer, out_bytes);
    }
    *out_bytes = b->bytes;
    int64_t at = b->offset + (b->slots > 1 ? p->slot * b->bytes : 0);
    if (b->cls < 0 || b->address == MPP_ADDR_FIXED)
        return at;
    int k = i - p->prog->classes[b->cls].first;
    assert(k >= 0 && k < p->prog->classes[b->cls].count);
    return at + (b->address == MPP_ADDR_PINGPONG ? (k & 1) : k) * b->stride;
}

static const struct value *read_buffer(struct player *p, struct mpp_bufref ref, int layer)
{
    int64_t bytes, at = address(p, ref, layer, &bytes);
    return read_cell(p, at, bytes);
}

static void write_buffer(struct player *p, struct mpp_bufref ref, int layer, const struct value *v)
{
    int64_t bytes, at = address(p, ref, layer, &bytes);
    write_cell(p, at, bytes, v);
}

static bool has_rest(const struct player *p, mpp_id t)
{
    return (p->flat ? p->flat->resting[t] : p->prog->param_buffer[t]) >= 0;
}

static struct mpp_bufref rest_of(const struct player *p, mpp_id t)
{
    return p->flat ? (struct mpp_bufref){p->flat->resting[t], -1}
                   : (struct mpp_bufref){p->prog->param_buffer[t], p->prog->param_layer[t]};
}

/* ---- instructions ---- */

static uint64_t mix_ops(const struct mpp_graph *g, mpp_id group, uint64_t h)
{
    for (int k = 0; group >= 0 && k < g->groups[group].n_ops; k++)
        h = mix(h, (uint64_t)g->ops[g->groups[group].ops[k]].kind);
    return h;
}

/* What an instruction computes, whatever layer it stands for. */
static uint64_t signature(const struct mpp_graph *g, const struct mpp_instr *in)
{
    uint64_t h = mix(17, (uint64_t)in->kind);
    if (in->kind == MPP_INSTR_COMPUTE)
        h = mix_ops(g, in->epilogue, mix_ops(g, in->group, h));
    if (in->step)
        h = mix(mix(mix(h, (uint64_t)in->step->kind), in->step->mask), (uint64_t)in->step->dim);
    return h;
}

static struct mpp_ref_tensor view(const struct mpp_graph *g, mpp_id t, const struct value *v, int64_t micro_batch)
{
    struct mpp_ref_tensor x = {.n_dims = g->tensors[t].n_dims, .data = v->x};
    for (int d = 0; d < x.n_dims; d++) {
        struct mpp_size size = g->tensors[t].dims[d];
        x.dims[d] = x.global[d] = size.size;
        if (size.per_batch > 0) {
            x.global[d] = size.per_batch * g->global_batch;
            x.offset[d] = micro_batch * size.size;
        }
    }
    return x;
}

/* Random streams are counted by layer. */
static struct mpp_attrs shifted(struct machine *m, struct mpp_attrs attrs, int64_t by)
{
    struct mpp_attr *copy = mpp_arena_memdup(m->arena, attrs.attr, (size_t)attrs.n * sizeof *attrs.attr);
    for (int i = 0; i < attrs.n; i++)
        if (strcmp(copy[i].name, "stream") == 0)
            copy[i].i += by;
    return mpp_attrs_make(m->arena, attrs.n, copy);
}

/* Where an instruction runs. */
struct at {
    int64_t micro_batch;
    int layer, iteration;         /* of a loop; -1, 0 outside */
    bool last;                    /* iteration of its loop, as it runs */
};

static void run_op(struct machine *m, struct player *p, const struct mpp_gop *op, struct at at, int64_t stream)
{
    struct mpp_ref_tensor in[64] = {0}, out[16] = {0};
    struct mpp_gop shift = *op;
    assert(op->n_in <= 64 && op->n_out <= 16);
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] >= 0)
            in[k] = view(p->g, op->in[k], p->local[op->in[k]], at.micro_batch);
    for (int k = 0; k < op->n_out; k++) {
        p->local[op->out[k]] = new_value(m, 0, mpp_tensor_count(&p->g->tensors[op->out[k]]));
        out[k] = view(p->g, op->out[k], p->local[op->out[k]], at.micro_batch);
    }
    if (stream && mpp_attrs_find(&op->attrs, "stream"))
        shift.attrs = shifted(m, op->attrs, stream);
    const struct mpp_training *t = &p->g->model->training;
    struct mpp_ref_in ref = {.op = &shift, .in = in, .out = out, .seed = SEED, .lr = LEARNING_RATE, .step = m->step,
                             .beta1 = t->beta1, .beta2 = t->beta2, .epsilon = t->epsilon, .momentum = t->momentum,
                             .clip_norm = t->clip_norm, .nesterov = t->nesterov};
    mpp_op_info(op->kind)->ref(&ref);
}

/* What GROUP computes from READ. */
static void compute_group(struct machine *m, struct player *p, mpp_id id, int64_t stream, struct at at, const struct value **read)
{
    const struct mpp_group *group = &p->g->groups[id];
    for (int i = 0; i < group->n_in; i++)
        if (group->in[i] >= 0 && read[i])
            p->local[group->in[i]] = read[i];
    for (int k = 0; k < group->n_ops; k++)
        run_op(m, p, &p->g->ops[group->ops[k]], at, stream);
}

/* The elements of what IN computes from READ, as values of its tensors in p->local. */
static void compute(struct machine *m, struct player *p, const struct mpp_instr *in, struct at at, const struct value **read)
{
    compute_group(m, p, in->group, in->stream_step * at.iteration, at, read);
    if (in->epilogue >= 0)
        compute_group(m, p, in->epilogue, 0, at, read + p->g->groups[in->group].n_in);
}

/* What output I of IN becomes, but for what it is added to. */
static const struct value *result(struct machine *m, struct player *p, const struct mpp_instr *in, const struct value **read,
                                  uint64_t hash, int i)
{
    const struct mpp_group *maker = in->kind != MPP_INSTR_COMPUTE ? NULL : &p->g->groups[in->epilogue >= 0 ? in->epilogue : in->group];
    int64_t n = maker ? mpp_tensor_count(&p->g->tensors[maker->out[i]]) : in->n_in > 0 && read[0] ? read[0]->n : 1;
    struct value *v = new_value(m, hash, n);
    const struct value *from = maker ? p->local[maker->out[i]] : in->n_in > 0 ? read[0] : NULL;
    if (v->x && from && from->x)
        memcpy(v->x, from->x, (size_t)n * sizeof(double));
    return v;
}

/* A gather that goes on beside the rank's work: it comes as late as it may. */
static void begin_gather(struct machine *m, struct player *p, const struct mpp_instr *in, struct at at)
{
    struct gather x = {.read = read_buffer(p, in->in[0], at.layer)};
    x.from = address(p, in->in[0], at.layer, &x.from_bytes);
    x.to = address(p, in->out[0], at.layer, &x.bytes);
    const struct value *v = x.read;
    x.value = v ? result(m, p, in, &v, mix(mix(signature(p->g, in), v->hash), 0), 0) : NULL;
    write_cell(p, x.to, x.bytes, NULL); /* nothing that can be read */
    p->gathers = mpp_arena_grow(m->arena, p->gathers, &p->cap_gathers, (size_t)p->n_gathers + 1, sizeof *p->gathers);
    p->gathers[p->n_gathers++] = x;
}

/* All but the last UNDER_WAY end, and what is in memory where they write is lost. */
static void end_gathers(struct player *p, int under_way)
{
    int n = p->n_gathers > under_way ? p->n_gathers - under_way : 0;
    for (int i = 0; i < n; i++) {
        const struct gather *x = &p->gathers[i];
        p->stale = p->stale || read_cell(p, x->from, x->from_bytes) != x->read; /* its operand was written meanwhile */
        write_cell(p, x->to, x->bytes, x->value);
    }
    p->n_gathers -= n;
    memmove(p->gathers, p->gathers + n, (size_t)p->n_gathers * sizeof *p->gathers);
}

static void execute(struct machine *m, struct player *p, const struct mpp_instr *in, struct at at)
{
    if ((in->once && at.micro_batch > 0) || (in->begins && at.micro_batch < m->plan->micro_batches - 1))
        return;
    if (in->prefetch) {
        begin_gather(m, p, in, at);
        return;
    }
    if (in->kind == MPP_INSTR_AWAIT) {
        end_gathers(p, at.last ? in->under_way_last : in->under_way);
        return;
    }
    const struct value *read[64] = {NULL};
    uint64_t h = signature(p->g, in);
    bool all = true;
    assert(in->n_in <= 64);
    for (int i = 0; i < in->n_in; i++)
        if (in->in[i].buffer >= 0) {
            read[i] = read_buffer(p, in->in[i], at.layer);
            h = mix(h, read[i] ? read[i]->hash : 0);
            all = all && read[i];
        }
    if (m->numbers && all && in->kind == MPP_INSTR_COMPUTE)
        compute(m, p, in, at, read);
    for (int i = 0; i < in->n_out && all; i++) {
        if (in->out[i].buffer < 0)
            continue;
        const struct value *v = result(m, p, in, read, mix(h, (uint64_t)i), i);
        bool add = in->mode[i] == MPP_WRITE_ADD || (in->mode[i] == MPP_WRITE_ADD_LATER && at.micro_batch > 0)
                   || in->kind == MPP_INSTR_ADD_SCALAR;
        const struct value *old = add ? read_buffer(p, in->out[i], at.layer) : NULL;
        write_buffer(p, in->out[i], at.layer, old ? sum_of(m, old, v, mix(v->hash, old->hash)) : v);
    }
}

/* ---- between stages ---- */

static bool can_go(const struct machine *m, const struct player *p, const struct mpp_instr *in)
{
    if (in->kind == MPP_INSTR_SUM_STAGES)
        return p->arrived;
    if (in->kind != MPP_INSTR_SEND && in->kind != MPP_INSTR_RECEIVE)
        return true;
    const struct queue *q = &m->queue[in->transfer];
    if (in->kind == MPP_INSTR_RECEIVE)
        return q->sent > q->received;
    return p->flat || q->sent - q->received < m->transfers->line[in->transfer].depth;
}

/* The ring's place of message K, in the memory of its sender. */
static int64_t ring_at(const struct player *p, int transfer, int64_t k, int64_t *out_bytes)
{
    const struct mpp_buffer *ring = &p->prog->buffers[p->prog->ring[transfer]];
    *out_bytes = ring->bytes;
    return ring->offset + k % ring->slots * ring->bytes;
}

static void pass(struct machine *m, struct player *p, const struct mpp_instr *in)
{
    struct queue *q = &m->queue[in->transfer];
    struct player *from = &m->player[m->transfers->line[in->transfer].from];
    int64_t bytes, at;
    if (in->kind == MPP_INSTR_SEND) {
        const struct value *v = read_buffer(p, in->in[0], -1);
        q->value = mpp_arena_grow(m->arena, q->value, &q->cap, (size_t)q->sent + 1, sizeof *q->value);
        q->value[q->sent] = v;
        if (p->prog) {
            at = ring_at(p, in->transfer, q->sent, &bytes);
            write_cell(p, at, bytes, v);
        }
        q->sent++;
        return;
    }
    const struct value *v = q->value[q->received];
    if (from->prog) {
        at = ring_at(from, in->transfer, q->received, &bytes);
        v = read_cell(from, at, bytes);
    }
    q->received++;
    if (v)
        write_buffer(p, in->out[0], -1, v);
}

static bool is_sum(const struct mpp_instr *in)
{
    return in->kind == MPP_INSTR_SUM_STAGES;
}

static const struct mpp_instr *plain_instr(const struct player *p, enum mpp_phase phase, int unit)
{
    if (p->flat)
        return &p->flat->flats[unit].instr;
    return p->prog->section[phase].items[unit].loop ? NULL : &p->prog->section[phase].items[unit].instr;
}

/* All stages have come to their sum over stages. */
static void sum_stages(struct machine *m)
{
    const struct value *sum = NULL;
    for (int pass_no = 0; pass_no < 2; pass_no++)
        for (int i = 0; i < m->plan->n_stages; i++) {
            struct player *p = &m->player[i];
            const struct mpp_instr *in = plain_instr(p, MPP_PHASE_UPDATE, p->unit);
            p->arrived = true;
            if (in->n_out == 0)
                continue;
            const struct value *v = pass_no ? NULL : read_buffer(p, in->out[0], -1);
            if (pass_no && sum)
                write_buffer(p, in->out[0], -1, sum);
            else if (v)
                sum = sum ? sum_of(m, sum, v, mix(sum->hash, v->hash)) : v;
        }
}

/* ---- sections ---- */

static int n_units(const struct player *p, enum mpp_phase phase)
{
    return p->flat ? p->flat->n_flats : p->prog->section[phase].n_items;
}

/* An instruction of a layer of C; one for a layer further on does nothing where there is none. */
static void step_layer(struct machine *m, struct player *p, const struct mpp_layer_class *c, const struct mpp_instr *in, struct at at)
{
    at.layer += in->ahead;
    if (at.layer >= c->first && at.layer < c->first + c->count)
        execute(m, p, in, at);
}

static void run_loop(struct machine *m, struct player *p, const struct mpp_pitem *item, int64_t micro_batch)
{
    const struct mpp_layer_class *c = &p->prog->classes[item->cls];
    for (int k = 0; k < c->count; k++) {
        int iteration = item->descending ? c->count - 1 - k : k;
        for (int j = 0; j < p->prog->bodies[item->body].n_instrs; j++)
            step_layer(m, p, c, &p->prog->bodies[item->body].instrs[j], (struct at){micro_batch, c->first + iteration, iteration, k == c->count - 1});
    }
}

static int chunk_of(const struct player *p, enum mpp_phase phase, int unit)
{
    return p->flat ? p->flat->flats[unit].chunk : p->prog->section[phase].items[unit].chunk;
}

/* From p->unit on, to the section's end (true) or to where it must wait. */
static bool run_section(struct machine *m, struct player *p, enum mpp_phase phase, int64_t micro_batch)
{
    for (; p->unit < n_units(p, phase); p->unit++) {
        const struct mpp_instr *in = plain_instr(p, phase, p->unit);
        bool other = phase == MPP_PHASE_FORWARD || phase == MPP_PHASE_BACKWARD ? chunk_of(p, phase, p->unit) != p->chunk : false;
        if (other || (p->flat && p->flat->flats[p->unit].phase != phase))
            continue;
        if (!in) {
            run_loop(m, p, &p->prog->section[phase].items[p->unit], micro_batch);
            continue;
        }
        if (!can_go(m, p, in))
            return false;
        if (is_sum(in))
            p->arrived = false;
        else if (in->kind == MPP_INSTR_SEND || in->kind == MPP_INSTR_RECEIVE)
            pass(m, p, in);
        else
            execute(m, p, in, (struct at){micro_batch, -1, 0, false});
    }
    p->unit = 0;
    p->stale = p->stale || p->n_gathers > 0; /* all have been awaited */
    return true;
}

/* The inputs of a micro-batch; AGAIN: those that have one place for all. */
static void place_inputs(struct machine *m, struct player *p, int64_t micro_batch, bool again)
{
    for (mpp_id t = 0; t < p->g->n_tensors; t++) {
        const struct mpp_gtensor *tensor = &p->g->tensors[t];
        if (tensor->role != MPP_ROLE_INPUT || !has_rest(p, t) || (again && p->prog && p->prog->buffers[rest_of(p, t).buffer].slots > 1))
            continue;
        int64_t n = mpp_tensor_count(tensor), skip = tensor->n_dims > 0 && tensor->dims[0].per_batch > 0 ? micro_batch * n : 0;
        struct value *v = new_value(m, mix(hash_text(tensor->name), (uint64_t)micro_batch), n);
        if (v->x) {
            double *all = mpp_arena_array(m->arena, skip + n, double);
            machine_elements(tensor, skip + n, all);
            memcpy(v->x, all + skip, (size_t)n * sizeof *all);
        }
        write_buffer(p, rest_of(p, t), -1, v);
    }
}

/* One turn of P in a forward or backward; true: it is done. */
static bool run_pass(struct machine *m, struct player *p, int chunk, int64_t micro_batch, bool backward)
{
    p->chunk = chunk;
    if (!p->placed) {
        p->slot = p->prog ? micro_batch % p->prog->slots[chunk] : 0;
        place_inputs(m, p, micro_batch, backward);
        p->in_flight += !backward;
        p->most_in_flight = p->in_flight > p->most_in_flight ? p->in_flight : p->most_in_flight;
    }
    p->placed = !run_section(m, p, backward ? MPP_PHASE_BACKWARD : MPP_PHASE_FORWARD, micro_batch);
    p->in_flight -= backward && !p->placed;
    return !p->placed;
}

static int64_t n_pieces(const struct machine *m)
{
    return 2 * m->plan->micro_batches * m->plan->pipeline.chunks;
}

/* A turn of P; false: it can't go on, or has come to the end. */
static bool turn(struct machine *m, struct player *p)
{
    int64_t n = n_pieces(m), piece = p->piece;
    int unit = p->unit;
    if (p->piece < n) {
        struct mpp_schedule_event e = mpp_schedule_work(&m->plan->pipeline, (int)(p - m->player), p->piece);
        p->piece += run_pass(m, p, e.chunk, e.micro_batch, e.what == MPP_EVENT_BACKWARD);
    } else if (p->piece == n) {
        p->piece += run_section(m, p, MPP_PHASE_UPDATE, 0);
    }
    return p->piece != piece || p->unit != unit;
}

static bool all_at_sum(const struct machine *m)
{
    for (int i = 0; i < m->plan->n_stages; i++) {
        const struct player *p = &m->player[i];
        if (p->piece != n_pieces(m) || p->arrived || p->unit >= n_units(p, MPP_PHASE_UPDATE))
            return false;
        const struct mpp_instr *in = plain_instr(p, MPP_PHASE_UPDATE, p->unit);
        if (!in || !is_sum(in))
            return false;
    }
    return true;
}

/* Those who can go on do, in random turns, until all have come to the end. */
static bool run_in_turns(struct machine *m, uint64_t *state)
{
    int n = m->plan->n_stages, left = n, idle = 0;
    while (left > 0 && idle < 50 * n) {
        struct player *p = &m->player[(int)(uniform(state) * n)];
        bool went = turn(m, p);
        if (!went && all_at_sum(m)) {
            sum_stages(m);
            went = true;
        }
        idle = went ? 0 : idle + 1;
        left = 0;
        for (int i = 0; i < n; i++)
            left += m->player[i].piece <= n_pieces(m);
    }
    return left == 0;
}

/* Micro-batch after micro-batch, each forward through all stages and back. */
static bool run_in_order(struct machine *m, uint64_t *state)
{
    int n = m->plan->n_stages, all = n * m->plan->pipeline.chunks;
    for (int64_t mb = 0; mb < m->plan->micro_batches; mb++) {
        for (int i = 0; i < all; i++)
            if (!run_pass(m, &m->player[i % n], i / n, mb, false))
                return false;
        for (int i = all - 1; i >= 0; i--)
            if (!run_pass(m, &m->player[i % n], i / n, mb, true))
                return false;
    }
    for (int i = 0; i < n; i++)
        m->player[i].piece = n_pieces(m);
    return run_in_turns(m, state);
}

bool machine_step(struct machine *m, uint64_t *state)
{
    m->step++;
    for (int i = 0; i < m->plan->n_stages; i++) {
        struct player *p = &m->player[i];
        p->piece = 0;
        p->slot = 0;
        for (int64_t mb = 0; mb < m->plan->micro_batches; mb++) {
            place_inputs(m, p, mb, false);
            if (!run_section(m, p, MPP_PHASE_PROLOGUE, mb))
                return false;
        }
    }
    return m->player[0].flat ? run_in_order(m, state) : run_in_turns(m, state);
}

/* ---- the outside ---- */

struct machine *machine_new(struct mpp_arena *arena, const struct mpp_plan *plan, const struct mpp_transfers *transfers,
                            const struct mpp_flat_program *flats, struct mpp_lprog *const *progs, bool numbers)
{
    struct machine *m = mpp_arena_array(arena, 1, struct machine);
    *m = (struct machine){.arena = arena, .plan = plan, .transfers = transfers, .numbers = numbers,
                          .player = mpp_arena_array(arena, plan->n_stages, struct player),
                          .queue = mpp_arena_array(arena, transfers->n, struct queue)};
    for (int i = 0; i < plan->n_stages; i++) {
        const struct mpp_graph *g = plan->stages[i].graph;
        m->player[i] = (struct player){.g = g, .flat = flats ? &flats[i] : NULL, .prog = progs ? progs[i] : NULL,
                                       .local = mpp_arena_array(arena, g->n_tensors, const struct value *)};
    }
    return m;
}

void machine_free(struct machine *m)
{
    for (int i = 0; i < m->plan->n_stages; i++)
        free(m->player[i].cells);
}

void machine_fill(struct machine *m)
{
    for (int i = 0; i < m->plan->n_stages; i++) {
        struct player *p = &m->player[i];
        for (mpp_id t = 0; t < p->g->n_tensors; t++) {
            const struct mpp_gtensor *tensor = &p->g->tensors[t];
            if (!has_rest(p, t) || tensor->role == MPP_ROLE_INPUT)
                continue;
            struct value *v = new_value(m, hash_text(tensor->name), mpp_tensor_count(tensor));
            if (v->x)
                machine_elements(tensor, v->n, v->x);
            write_buffer(p, rest_of(p, t), -1, v);
        }
    }
}

static const struct value *of_buffer(struct machine *m, int stage, int flat, int rolled)
{
    struct player *p = &m->player[stage];
    int b = p->flat ? flat : rolled;
    return b < 0 ? NULL : read_buffer(p, (struct mpp_bufref){b, -1}, -1);
}

const struct value *machine_rest(struct machine *m, int stage, mpp_id t)
{
    struct player *p = &m->player[stage];
    return has_rest(p, t) ? read_buffer(p, rest_of(p, t), -1) : NULL;
}

const struct value *machine_loss(struct machine *m, int stage)
{
    const struct player *p = &m->player[stage];
    return of_buffer(m, stage, p->flat ? p->flat->loss : -1, p->prog ? p->prog->loss : -1);
}

const struct value *machine_norm(struct machine *m, int stage)
{
    const struct player *p = &m->player[stage];
    return of_buffer(m, stage, p->flat ? p->flat->grad_norm : -1, p->prog ? p->prog->grad_norm : -1);
}

bool machine_stale(const struct machine *m)
{
    for (int i = 0; i < m->plan->n_stages; i++)
        if (m->player[i].stale)
            return true;
    return false;
}

int64_t machine_in_flight(const struct machine *m, int stage)
{
    return m->player[stage].most_in_flight;
}
