/* emit_transfer.c - what stages send each other: the calls, and the table in plan.c. */
#include <ctype.h>
#include <string.h>

#include "codegen/emit_internal.h"

/* ---- names ---- */

const char *const *mpp_emit_transfer_names(struct mpp_arena *arena, const struct mpp_transfers *transfers)
{
    const char **name = mpp_arena_array(arena, transfers->n, const char *);
    for (int k = 0; k < transfers->n; k++) {
        const struct mpp_transfer_line *line = &transfers->line[k];
        char *base = mpp_arena_printf(arena, "%s_TO_STAGE%d", mpp_emit_identifier(arena, line->name), line->to);
        for (char *c = base; *c; c++)
            *c = (char)toupper((unsigned char)*c);
        name[k] = base;
        for (int i = 0, n = 1; i < k; i++)
            if (!strcmp(name[i], name[k])) {
                name[k] = mpp_arena_printf(arena, "%s_%d", base, ++n);
                i = -1;
            }
    }
    return name;
}

/* ---- calls ---- */

/* What it is, and how many bytes of it this rank has. */
static void note(struct mpp_emit *e, const char *begin, int stage, const struct mpp_transfer_line *line, const struct mpp_buffer *b)
{
    const char *what = !line->once ? "" : line->adds ? "its term of " : "the sum of ";
    if (line->once && line->adds && line->from == e->index)
        what = "this stage's term of ";
    mpp_emit_note(e, "%s stage %d: %s%s, %s. %s.", begin, stage, what, line->name, mpp_emit_shape(e, b),
                  mpp_emit_bytes_text(e->arena, mpp_emit_span(b, 0, b->n_dims) * mpp_dtype_bytes(b->dtype)));
}

static void write_sum(struct mpp_emit *e, const struct mpp_instr *in)
{
    mpp_emit_note(e, "Sum over stages%s%s%s. 4 bytes.", in->reason ? ": " : "", in->reason ? in->reason : "",
                  in->n_out ? "" : "; this one has no parameters");
    mpp_emit_line(e, "mpp_sum_over_stages(r, %s);", in->n_out ? mpp_emit_ptr(e, in->out[0]) : "NULL");
}

void mpp_emit_transfer(struct mpp_emit *e, const struct mpp_instr *in)
{
    if (in->kind == MPP_INSTR_SUM_STAGES) {
        write_sum(e, in);
        return;
    }
    const struct mpp_transfer_line *line = &e->transfers->line[in->transfer];
    bool send = in->kind == MPP_INSTR_SEND;
    struct mpp_bufref ref = send ? in->in[0] : in->out[0];
    note(e, send ? "To" : "From", send ? line->to : line->from, line, mpp_emit_buffer(e, ref));
    mpp_emit_line(e, "%s(r, %s, %s);", send ? "mpp_send" : "mpp_receive", e->transfer_name[in->transfer], mpp_emit_ptr(e, ref));
}

/* ---- tables ---- */

void mpp_emit_transfers_h(struct mpp_emit *e, struct mpp_text *out)
{
    if (e->transfers->n == 0)
        return;
    mpp_text_add(out, "\n/* What stages send each other: places in the table of plan.c. */\nenum {\n");
    for (int k = 0; k < e->transfers->n; k++)
        mpp_text_add(out, "    %s,\n", e->transfer_name[k]);
    mpp_text_add(out, "};\n");
}

static void add_split(struct mpp_emit *e, struct mpp_text *s, const char *field, const struct mpp_mesh *mesh, const unsigned *split,
                      int n_dims)
{
    struct mpp_text words = {.arena = e->arena}, list = {.arena = e->arena};
    for (int d = 0; d < n_dims; d++) {
        unsigned mask = 0;
        for (int a = 0; a < mesh->n_axes; a++)
            if ((split[d] >> a & 1) && mesh->size[a] > 1) {
                mask |= 1u << a;
                mpp_text_add(&words, "%s%s", words.n ? ", " : "", mesh->name[a]);
            }
        mpp_text_add(&list, "%s%u", d ? ", " : "", mask);
    }
    if (words.n)
        mpp_text_add(s, ", .%s = {%s} /* %s */", field, mpp_text_string(&list), mpp_text_safe(e->arena, mpp_text_string(&words)));
}

void mpp_emit_transfers_c(struct mpp_emit *e, struct mpp_lprog *const *progs, struct mpp_text *out)
{
    if (e->transfers->n == 0)
        return;
    mpp_text_add(out, "\n/* Splits are sets of axes, bit 0 for the first of the stage's mesh. */\n"
                      "static const struct mpp_transfer transfers[] = {\n");
    for (int k = 0; k < e->transfers->n; k++) {
        const struct mpp_transfer_line *line = &e->transfers->line[k];
        const struct mpp_lprog *from = progs[line->from];
        const struct mpp_buffer *ring = &from->buffers[from->ring[k]];
        struct mpp_text s = {.arena = e->arena};
        mpp_text_add(&s, "[%s] = {.name = %s, .type = %s, .from = %d, .to = %d, .n_dims = %d, .dims = {", e->transfer_name[k],
                     mpp_emit_quoted(e->arena, line->name), mpp_emit_type_name(line->dtype), line->from, line->to, line->n_dims);
        for (int d = 0; d < line->n_dims; d++)
            mpp_text_add(&s, "%s%lld", d ? ", " : "", (long long)line->dims[d]);
        mpp_text_add(&s, "%s}", line->n_dims ? "" : "0");
        add_split(e, &s, "from_split", &e->plan->stages[line->from].mesh, line->from_split, line->n_dims);
        add_split(e, &s, "to_split", &e->plan->stages[line->to].mesh, line->to_split, line->n_dims);
        mpp_text_add(&s, ", .depth = %d, .offset = %lld, .stride = %lld},", line->depth,
                     (long long)mpp_buffer_offset(from, (struct mpp_bufref){from->ring[k], -1}), (long long)ring->bytes);
        mpp_text_line(out, 4, mpp_text_string(&s));
    }
    mpp_text_add(out, "};\n");
}
