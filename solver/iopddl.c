/* iopddl.c - contest problems from JSON, by events: yajl reads, zlib unpacks. */
#include "solver/iopddl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <yajl/yajl_parse.h>
#include <zlib.h>

enum { CHUNK = 1 << 16, MOST_DEPTH = 64, MOST_CHOICES = 1 << 20 };
/* Numbers that a file may hold: 3.2 GB of them. */
static const size_t MOST_NUMBERS = (size_t)400000000;

enum list { INTERVALS, COSTS, USAGES, EDGE_NODES, EDGE_COSTS, N_LISTS, LIMIT, NO_LIST };
static const char *const LIST_NAME[] = {"nodes.intervals", "nodes.costs", "nodes.usages", "edges.nodes", "edges.costs"};

/* A list of lists of numbers, one after the other. */
struct table {
    bool seen;
    int64_t *number;
    size_t n_numbers, number_cap;
    size_t *first;                /* [n_rows + 1] */
    size_t n_rows, row_cap;
};

struct reader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *name;
    struct table table[N_LISTS];
    bool has_limit;
    int64_t limit;
    char key[MOST_DEPTH][16];     /* of the maps that are open, cut to what matters */
    bool is_map[MOST_DEPTH];
    int depth;                    /* of maps and arrays */
    int map_depth;
    enum list list;               /* that the present key opens */
    int list_depth;               /* arrays of it that are open */
    int line;                     /* of what has been read; 0: all of it has */
    const char *fault;            /* the first one; reported when its line is known */
};

static int fail(struct reader *r, const char *what)
{
    if (r->fault == NULL)
        r->fault = what;
    return 0;
}

static void report(const struct reader *r)
{
    mpp_diag_error(r->diag, (struct mpp_loc){r->name, r->line}, "%s", r->fault);
}

/* ---- events ------------------------------------------------------------------------------------------------ */

static bool at_key(const struct reader *r, const char *outer, const char *inner)
{
    if (r->map_depth == 2)
        return inner == NULL && strcmp(r->key[0], "problem") == 0 && strcmp(r->key[1], outer) == 0;
    return inner != NULL && r->map_depth == 3 && strcmp(r->key[0], "problem") == 0 && strcmp(r->key[1], outer) == 0 &&
           strcmp(r->key[2], inner) == 0;
}

static enum list list_of_key(const struct reader *r)
{
    static const char *const path[][2] = {{"nodes", "intervals"}, {"nodes", "costs"}, {"nodes", "usages"},
                                          {"edges", "nodes"}, {"edges", "costs"}};
    for (int i = 0; i < N_LISTS; i++)
        if (at_key(r, path[i][0], path[i][1]))
            return (enum list)i;
    return at_key(r, "usage_limit", NULL) ? LIMIT : NO_LIST;
}

static int on_key(void *context, const unsigned char *text, size_t size)
{
    struct reader *r = context;
    size_t cut = size < sizeof r->key[0] - 1 ? size : sizeof r->key[0] - 1;
    if (r->map_depth < 1 || r->map_depth > MOST_DEPTH)
        return 1;
    memcpy(r->key[r->map_depth - 1], text, cut);
    r->key[r->map_depth - 1][cut] = '\0';
    if (memchr(text, '\0', size) != NULL)
        return fail(r, "a key holds a NUL character");
    if (r->depth > r->map_depth)
        return 1; /* inside something that is not ours */
    r->list = list_of_key(r);
    if (r->list < N_LISTS && r->table[r->list].seen)
        return fail(r, mpp_arena_printf(r->arena, "%s stands twice", LIST_NAME[r->list]));
    if (r->list == LIMIT && r->has_limit)
        return fail(r, "usage_limit stands twice");
    return 1;
}

static int open_one(struct reader *r, bool map)
{
    if (r->depth >= MOST_DEPTH)
        return fail(r, "nested too deeply");
    if (map && r->list < N_LISTS)
        return fail(r, mpp_arena_printf(r->arena, "%s must be a list of lists of numbers", LIST_NAME[r->list]));
    if (r->list == LIMIT)
        return fail(r, "usage_limit must be a whole number");
    r->is_map[r->depth++] = map;
    r->map_depth += map;
    return 1;
}

static int on_map(void *context)
{
    return open_one(context, true);
}

static int on_array(void *context)
{
    struct reader *r = context;
    if (!open_one(r, false) || r->list >= N_LISTS)
        return r->fault == NULL;
    struct table *t = &r->table[r->list];
    if (++r->list_depth > 2)
        return fail(r, mpp_arena_printf(r->arena, "%s must be a list of lists of numbers", LIST_NAME[r->list]));
    t->seen = true;
    t->first = mpp_arena_grow(r->arena, t->first, &t->row_cap, t->n_rows + 2, sizeof *t->first);
    if (r->list_depth == 2)
        t->first[t->n_rows++] = t->n_numbers;
    t->first[t->n_rows] = t->n_numbers;
    return 1;
}

static int on_end(void *context)
{
    struct reader *r = context;
    r->depth--;
    r->map_depth -= r->is_map[r->depth];
    if (r->list < N_LISTS && r->list_depth > 0) {
        r->table[r->list].first[r->table[r->list].n_rows] = r->table[r->list].n_numbers;
        if (--r->list_depth > 0)
            return 1;
    }
    r->list = NO_LIST;
    return 1;
}

static int on_number(void *context, const char *text, size_t size)
{
    struct reader *r = context;
    char digits[32], *end;
    if (r->list == NO_LIST)
        return 1;
    if (r->list < N_LISTS && r->list_depth != 2)
        return fail(r, mpp_arena_printf(r->arena, "%s must be a list of lists of numbers", LIST_NAME[r->list]));
    size_t cut = size < sizeof digits - 1 ? size : sizeof digits - 1;
    memcpy(digits, text, cut);
    digits[cut] = '\0';
    errno = 0;
    long long x = strtoll(digits, &end, 10);
    if (*end != '\0' || size != cut)
        return fail(r, mpp_arena_printf(r->arena, "%s: %.40s is no whole number",
                                        r->list == LIMIT ? "usage_limit" : LIST_NAME[r->list], digits));
    if (errno == ERANGE)
        return fail(r, mpp_arena_printf(r->arena, "%s: %s does not fit 64 bits",
                                        r->list == LIMIT ? "usage_limit" : LIST_NAME[r->list], digits));
    if (x < 0)
        return fail(r, mpp_arena_printf(r->arena, "%s: %lld is negative",
                                        r->list == LIMIT ? "usage_limit" : LIST_NAME[r->list], x));
    if (r->list == LIMIT) {
        r->limit = x;
        r->has_limit = true;
        r->list = NO_LIST;
        return 1;
    }
    struct table *t = &r->table[r->list];
    if (t->n_numbers >= MOST_NUMBERS)
        return fail(r, "more numbers than mpplan takes");
    t->number = mpp_arena_grow(r->arena, t->number, &t->number_cap, t->n_numbers + 1, sizeof *t->number);
    t->number[t->n_numbers++] = x;
    return 1;
}

/* Something that is neither number nor list. */
static int on_other(struct reader *r)
{
    if (r->list < N_LISTS)
        return fail(r, mpp_arena_printf(r->arena, "%s must be a list of lists of numbers", LIST_NAME[r->list]));
    if (r->list == LIMIT)
        return fail(r, "usage_limit must be a whole number");
    return 1;
}

static int on_null(void *context)
{
    return on_other(context);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return on_other(context);
}

static int on_string(void *context, const unsigned char *text, size_t size)
{
    (void)text;
    (void)size;
    return on_other(context);
}

/* ---- tables to a problem -------------------------------------------------------------------------------------- */

static size_t row_size(const struct table *t, size_t row)
{
    return t->first[row + 1] - t->first[row];
}

static bool lengths_agree(struct reader *r)
{
    const struct table *t = r->table;
    for (int i = 0; i < N_LISTS; i++)
        if (!t[i].seen)
            return fail(r, mpp_arena_printf(r->arena, "problem.%s is missing", LIST_NAME[i]));
    if (!r->has_limit)
        return fail(r, "problem.usage_limit is missing");
    if (t[COSTS].n_rows != t[INTERVALS].n_rows || t[USAGES].n_rows != t[INTERVALS].n_rows)
        return fail(r, mpp_arena_printf(r->arena, "%zu intervals, %zu costs and %zu usages: each node has one of each",
                                        t[INTERVALS].n_rows, t[COSTS].n_rows, t[USAGES].n_rows));
    if (t[EDGE_NODES].n_rows != t[EDGE_COSTS].n_rows)
        return fail(r, mpp_arena_printf(r->arena, "%zu edges and %zu tables of costs: each edge has one",
                                        t[EDGE_NODES].n_rows, t[EDGE_COSTS].n_rows));
    if (t[COSTS].n_rows > INT32_MAX / 2 || t[EDGE_NODES].n_rows > INT32_MAX / 2)
        return fail(r, "more nodes or edges than mpplan takes");
    return true;
}

static bool make_node(struct reader *r, size_t i, struct mpp_pairwise_node *node, struct mpp_pairwise_usage *usage)
{
    const struct table *t = r->table;
    size_t n = row_size(&t[COSTS], i);
    if (row_size(&t[INTERVALS], i) != 2)
        return fail(r, mpp_arena_printf(r->arena, "node %zu: an interval has two numbers", i));
    const int64_t *interval = t[INTERVALS].number + t[INTERVALS].first[i];
    if (interval[1] > INT32_MAX - 1)
        return fail(r, mpp_arena_printf(r->arena, "node %zu: time %" PRId64 " is past %d", i, interval[1], INT32_MAX - 1));
    if (interval[0] > interval[1])
        return fail(r, mpp_arena_printf(r->arena, "node %zu: the interval ends before it begins", i));
    if (n == 0 || n > MOST_CHOICES)
        return fail(r, mpp_arena_printf(r->arena, "node %zu has %zu strategies; it needs 1 to %d", i, n, MOST_CHOICES));
    if (row_size(&t[USAGES], i) != n)
        return fail(r, mpp_arena_printf(r->arena, "node %zu has %zu costs and %zu usages", i, n, row_size(&t[USAGES], i)));
    *usage = (struct mpp_pairwise_usage){(int32_t)interval[0], (int32_t)interval[1], t[USAGES].number + t[USAGES].first[i]};
    *node = (struct mpp_pairwise_node){(int32_t)n, t[COSTS].number + t[COSTS].first[i], 1, usage};
    return true;
}

static bool make_edge(struct reader *r, size_t i, const struct mpp_pairwise_problem *p, struct mpp_pairwise_edge *edge)
{
    const struct table *t = r->table;
    if (row_size(&t[EDGE_NODES], i) != 2)
        return fail(r, mpp_arena_printf(r->arena, "edge %zu: an edge has two nodes", i));
    const int64_t *end = t[EDGE_NODES].number + t[EDGE_NODES].first[i];
    for (int j = 0; j < 2; j++)
        if (end[j] >= p->n_nodes)
            return fail(r, mpp_arena_printf(r->arena, "edge %zu names node %" PRId64 ", but there are %d", i, end[j], p->n_nodes));
    int64_t want = (int64_t)p->nodes[end[0]].n_choices * p->nodes[end[1]].n_choices;
    if ((int64_t)row_size(&t[EDGE_COSTS], i) != want)
        return fail(r, mpp_arena_printf(r->arena, "edge %zu has %zu costs; its nodes have %d x %d strategies", i,
                                        row_size(&t[EDGE_COSTS], i), p->nodes[end[0]].n_choices, p->nodes[end[1]].n_choices));
    *edge = (struct mpp_pairwise_edge){(int32_t)end[0], (int32_t)end[1], t[EDGE_COSTS].number + t[EDGE_COSTS].first[i]};
    return true;
}

static struct mpp_pairwise_problem *make_problem(struct reader *r)
{
    if (!lengths_agree(r))
        return NULL;
    struct mpp_pairwise_problem *p = mpp_arena_array(r->arena, 1, struct mpp_pairwise_problem);
    p->capacity = r->limit;
    p->n_nodes = (int32_t)r->table[COSTS].n_rows;
    p->n_edges = (int32_t)r->table[EDGE_NODES].n_rows;
    struct mpp_pairwise_node *node = mpp_arena_array(r->arena, p->n_nodes, struct mpp_pairwise_node);
    struct mpp_pairwise_usage *usage = mpp_arena_array(r->arena, p->n_nodes, struct mpp_pairwise_usage);
    struct mpp_pairwise_edge *edge = mpp_arena_array(r->arena, p->n_edges, struct mpp_pairwise_edge);
    p->nodes = node;
    p->edges = edge;
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (!make_node(r, (size_t)i, &node[i], &usage[i]))
            return NULL;
    for (int32_t e = 0; e < p->n_edges; e++)
        if (!make_edge(r, (size_t)e, p, &edge[e]))
            return NULL;
    return p;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static const yajl_callbacks CALLBACKS = {
    .yajl_null = on_null, .yajl_boolean = on_boolean, .yajl_number = on_number, .yajl_string = on_string,
    .yajl_start_map = on_map, .yajl_map_key = on_key, .yajl_end_map = on_end,
    .yajl_start_array = on_array, .yajl_end_array = on_end,
};

static void free_parser(void *parser)
{
    yajl_free(parser);
}

static void count_lines(struct reader *r, const char *text, size_t size)
{
    for (const char *p = memchr(text, '\n', size); p != NULL; p = memchr(p + 1, '\n', size - (size_t)(p + 1 - text)))
        r->line++;
}

/* True if the parser took the bytes. */
static bool feed(struct reader *r, yajl_handle parser, const char *text, size_t size)
{
    yajl_status status = size > 0 ? yajl_parse(parser, (const unsigned char *)text, size) : yajl_complete_parse(parser);
    if (status == yajl_status_ok) {
        count_lines(r, text, size);
        return true;
    }
    count_lines(r, text, size > 0 ? yajl_get_bytes_consumed(parser) : 0);
    (void)fail(r, size > 0 ? "no valid JSON here" : "the JSON ends too early");
    report(r);
    return false;
}

/* What was read makes a problem, or a fault is reported: of the whole, no line holds it. */
static struct mpp_pairwise_problem *finish(struct reader *r)
{
    r->line = 0;
    struct mpp_pairwise_problem *p = make_problem(r);
    if (p == NULL)
        report(r);
    return p;
}

static yajl_handle new_parser(struct reader *r)
{
    yajl_handle parser = yajl_alloc(&CALLBACKS, NULL, r);
    if (parser == NULL)
        mpp_arena_fail(r->arena, 0);
    mpp_arena_defer(r->arena, free_parser, parser);
    return parser;
}

static struct reader *new_reader(const char *name, struct mpp_arena *arena, struct mpp_diag *diag)
{
    struct reader *r = mpp_arena_array(arena, 1, struct reader);
    *r = (struct reader){.arena = arena, .diag = diag, .name = name, .list = NO_LIST, .line = 1};
    return r;
}

enum mpp_status mpp_iopddl_parse(const char *text, size_t size, const char *name, struct mpp_arena *arena,
                                 struct mpp_diag *diag, struct mpp_pairwise_problem **out)
{
    struct reader *r = new_reader(name, arena, diag);
    yajl_handle parser = new_parser(r);
    *out = NULL;
    if ((size == 0 || feed(r, parser, text, size)) && feed(r, parser, "", 0))
        *out = finish(r);
    return *out != NULL ? MPP_OK : MPP_INVALID;
}

static void close_file(void *file)
{
    gzclose(file);
}

enum mpp_status mpp_iopddl_read(const char *path, struct mpp_arena *arena, struct mpp_diag *diag,
                                struct mpp_pairwise_problem **out)
{
    struct reader *r = new_reader(path, arena, diag);
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    char *chunk = mpp_arena_alloc(scratch, CHUNK);
    struct stat about;
    *out = NULL;
    errno = 0;
    bool regular = stat(path, &about) != 0 || S_ISREG(about.st_mode); /* a pipe would be waited for */
    gzFile file = regular ? gzopen(path, "rb") : NULL;
    if (file == NULL) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot be read: %s",
                       !regular ? "not a file" : strerror(errno != 0 ? errno : ENOMEM));
        mpp_arena_free(scratch);
        return MPP_INVALID;
    }
    mpp_arena_defer(scratch, close_file, file);
    yajl_handle parser = new_parser(r);
    bool ok = true;
    int n = 1;
    while (ok && n > 0) {
        n = gzread(file, chunk, CHUNK);
        if (n > 0)
            ok = feed(r, parser, chunk, (size_t)n);
    }
    int code = Z_OK;
    const char *why = gzerror(file, &code);
    if (ok && code != Z_OK && code != Z_STREAM_END) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot be read: %s",
                       code == Z_ERRNO ? strerror(errno) : code == Z_BUF_ERROR ? "the gzip file ends too early" : why);
        ok = false;
    }
    if (ok && feed(r, parser, "", 0))
        *out = finish(r);
    mpp_arena_free(scratch);
    return *out != NULL ? MPP_OK : MPP_INVALID;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

void mpp_iopddl_write_choice(FILE *out, const int32_t *choice, int32_t n_nodes)
{
    fputc('[', out);
    for (int32_t i = 0; i < n_nodes; i++)
        fprintf(out, "%s%d", i > 0 ? ", " : "", choice[i]);
    fputs("]\n", out);
}

static void write_numbers(FILE *out, const int64_t *x, int64_t n, const char *before)
{
    fprintf(out, "%s[", before);
    for (int64_t i = 0; i < n; i++)
        fprintf(out, "%s%" PRId64, i > 0 ? "," : "", x[i] < MPP_PAIRWISE_FORBIDDEN ? x[i] : MPP_PAIRWISE_FORBIDDEN);
    fputc(']', out);
}

static void write_usage(FILE *out, const struct mpp_pairwise_node *node, const char *before)
{
    if (node->n_usages > 0) {
        write_numbers(out, node->usages[0].bytes, node->n_choices, before);
        return;
    }
    fprintf(out, "%s[", before);
    for (int32_t k = 0; k < node->n_choices; k++)
        fputs(k > 0 ? ",0" : "0", out);
    fputc(']', out);
}

void mpp_iopddl_write(FILE *out, const char *name, const struct mpp_pairwise_problem *p)
{
    fprintf(out, "{\"problem\":{\"name\":\"%s\",\"nodes\":{\"intervals\":[", name);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        bool holds = p->nodes[i].n_usages > 0;
        fprintf(out, "%s[%d,%d]", i > 0 ? "," : "", holds ? p->nodes[i].usages[0].begin : 0, holds ? p->nodes[i].usages[0].end : 0);
    }
    fputs("],\n\"costs\":[", out);
    for (int32_t i = 0; i < p->n_nodes; i++)
        write_numbers(out, p->nodes[i].cost, p->nodes[i].n_choices, i > 0 ? "," : "");
    fputs("],\n\"usages\":[", out);
    for (int32_t i = 0; i < p->n_nodes; i++)
        write_usage(out, &p->nodes[i], i > 0 ? "," : "");
    fputs("]},\n\"edges\":{\"nodes\":[", out);
    for (int32_t e = 0; e < p->n_edges; e++)
        fprintf(out, "%s[%d,%d]", e > 0 ? "," : "", p->edges[e].a, p->edges[e].b);
    fputs("],\n\"costs\":[", out);
    for (int32_t e = 0; e < p->n_edges; e++) {
        const struct mpp_pairwise_edge *x = &p->edges[e];
        write_numbers(out, x->cost, (int64_t)p->nodes[x->a].n_choices * p->nodes[x->b].n_choices, e > 0 ? "," : "");
    }
    fprintf(out, "]},\n\"usage_limit\":%" PRId64 "}}\n", p->capacity);
}
