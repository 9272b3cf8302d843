/* report_graph.c - graph.ir: the training step as text (docs/ir.md), with what a report says besides it in comments before.
 *
 *     #: model gpt
 *     #: preset tiny
 *     #: precision f32
 *     #: optimizer adamw
 *     #: shard wte.weight vocab model
 *     #: cluster dgx-a100
 *     #: devices 8
 *     graph batch=8 of=8 tokens=64 loss=loss ...
 *
 * Model files are named without their folders: the text holds nothing of the machine that it is made on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/program.h"
#include "ir/infile.h"

enum { MOST_MIB = 1024, MAX_SHARDS = 1024 };

static const struct mpp_loc nowhere = {0};

/* ---- written ---- */

/* "#: KEY WORDS", on one line. */
static void write_note(FILE *out, const char *key, const char *words)
{
    fprintf(out, "#: %s ", key);
    for (; *words; words++) {
        if (*words == '\\' || *words == '\n')
            fputc('\\', out);
        fputc(*words == '\n' ? 'n' : *words, out);
    }
    fputc('\n', out);
}

static const char *basename_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* TEXT with each mention of FILE without its folders. */
static const char *without_folders(struct mpp_arena *arena, const char *text, const char *file)
{
    const char *base = basename_of(file), *at;
    if (!text || base == file)
        return text;
    char *out = mpp_arena_alloc(arena, strlen(text) + 1), *end = out;
    for (; (at = strstr(text, file)) != NULL; text = at + strlen(file)) {
        end = mempcpy(end, text, (size_t)(at - text));
        end = stpcpy(end, base);
    }
    strcpy(end, text);
    return out;
}

enum mpp_status mpp_report_graph(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                 const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out)
{
    (void)plan;
    (void)prog;
    struct mpp_arena *arena = mpp_arena_scratch(graph->arena);
    const struct mpp_model *m = graph->model;
    write_note(out, "model", m->name);
    if (m->preset)
        write_note(out, "preset", m->preset);
    write_note(out, "precision", m->training.precision ? m->training.precision : "f32");
    write_note(out, "optimizer", m->training.optimizer);
    for (int i = 0; i < m->n_shards; i++)
        write_note(out, "shard", mpp_arena_printf(arena, "%s\t%s\t%s", m->shards[i].match, m->shards[i].dim, m->shards[i].axis ? m->shards[i].axis : ""));
    write_note(out, "cluster", cluster->name);
    write_note(out, "devices", mpp_arena_printf(arena, "%d", cluster->n_devices));
    struct mpp_graph copy = *graph;
    copy.ops = mpp_arena_memdup(arena, graph->ops, sizeof *graph->ops * (size_t)graph->n_ops);
    const char *last = NULL, *last_out = NULL; /* ops of a block in a row share their path */
    for (mpp_id o = 0; o < copy.n_ops; o++) {
        struct mpp_gop *op = &copy.ops[o];
        if (op->path && op->path != last) {
            last = op->path;
            last_out = without_folders(arena, op->path, m->file ? m->file : "");
            last_out = without_folders(arena, last_out, op->loc.file ? op->loc.file : "");
        }
        op->path = op->path ? last_out : NULL;
        op->loc.file = op->loc.file ? basename_of(op->loc.file) : NULL;
    }
    mpp_graph_print(&copy, out);
    mpp_arena_free(arena);
    if (!ferror(out))
        return MPP_OK;
    mpp_diag_error(diag, nowhere, "cannot write graph.ir: %s", strerror(errno ? errno : EIO));
    return MPP_IO;
}

/* ---- read ---- */

/* The words of the note KEY at LINE, which ends at END, in ARENA; NULL: it is another one. */
static char *note_words(struct mpp_arena *arena, const char *line, const char *end, const char *key)
{
    size_t n = strlen(key);
    if (strncmp(line, "#: ", 3) != 0 || strncmp(line + 3, key, n) != 0 || line[3 + n] != ' ')
        return NULL;
    char *words = mpp_arena_strndup(arena, line + 4 + n, (size_t)(end - line) - 4 - n), *to = words;
    for (const char *from = words; *from; from++)
        *to++ = *from == '\\' && from[1] ? (*++from == 'n' ? '\n' : *from) : *from;
    *to = '\0';
    return words;
}

static void read_shard(struct mpp_arena *arena, struct mpp_model *m, char *words)
{
    char *dim = strchr(words, '\t'), *axis = dim ? strchr(dim + 1, '\t') : NULL;
    if (!axis || m->n_shards == MAX_SHARDS)
        return;
    *dim++ = *axis++ = '\0';
    if (!m->shards)
        m->shards = mpp_arena_array(arena, MAX_SHARDS, struct mpp_shard_pin);
    m->shards[m->n_shards++] = (struct mpp_shard_pin){.match = words, .dim = dim, .axis = *axis ? axis : NULL};
}

enum mpp_status mpp_report_graph_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_graph **out,
                                      const char **out_cluster, int64_t *out_devices)
{
    const char *why;
    size_t size;
    char *text = mpp_infile_read(arena, path, MOST_MIB, &size, &why), *devices = NULL;
    *out_cluster = NULL;
    if (!text) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot read: %s; a plan directory holds it beside plan.json", why);
        return MPP_INVALID;
    }
    struct mpp_model *m = mpp_arena_array(arena, 1, struct mpp_model);
    for (char *line = text, *end; *line == '#'; line = *end ? end + 1 : end) {
        char *words;
        end = line + strcspn(line, "\n");
        if ((words = note_words(arena, line, end, "model")) != NULL)
            m->name = words;
        else if ((words = note_words(arena, line, end, "preset")) != NULL)
            m->preset = words;
        else if ((words = note_words(arena, line, end, "precision")) != NULL)
            m->training.precision = words;
        else if ((words = note_words(arena, line, end, "optimizer")) != NULL)
            m->training.optimizer = words;
        else if ((words = note_words(arena, line, end, "shard")) != NULL)
            read_shard(arena, m, words);
        else if ((words = note_words(arena, line, end, "cluster")) != NULL)
            *out_cluster = words;
        else if ((words = note_words(arena, line, end, "devices")) != NULL)
            devices = words;
    }
    *out_devices = devices ? strtoll(devices, NULL, 10) : 0;
    if (!m->name || !m->training.precision || !m->training.optimizer || !*out_cluster || *out_devices < 1) {
        mpp_diag_error(diag, (struct mpp_loc){path, 1}, "this is no graph of a plan directory: it does not begin with its model, precision, "
                       "optimizer, cluster and devices");
        return MPP_INVALID;
    }
    MPP_TRY(mpp_graph_parse(arena, diag, path, text, size, out));
    if ((*out)->groups) {
        mpp_diag_error(diag, (struct mpp_loc){path, 1}, "this is a graph after the pass \"fuse\"; a plan directory holds the one before");
        return MPP_INVALID;
    }
    (*out)->model = m;
    return MPP_OK;
}
