/* trace_read.c - JSON by events of yajl: of each object in "traceEvents" the fields that matter. */
#include "inspect/trace_read.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <yajl/yajl_parse.h>

#include "planner/stage.h"

enum { CHUNK = 1 << 16, MOST_DEPTH = 64 };
static const int64_t MOST_EVENTS = 100000000;

struct reader {
    struct mpp_arena *arena;
    struct mpp_memo *names;       /* that were met */
    const char **name;            /* [so many] the same, to point at */
    size_t cap_names;
    struct mpp_trace_events *out;
    size_t cap;
    const char *fault;
    int depth;                    /* of maps and arrays */
    bool in_events, any;          /* inside "traceEvents"; it was there */
    char key[16], inner[16];      /* of the top and the event; of args */
    /* the event */
    struct mpp_trace_read_event e;
    bool complete;
    double dur_us;
};

/* The top object is depth 1, the array 2, an event 3, its args 4. */
static bool in_event(const struct reader *r)
{
    return r->in_events && r->depth == 3;
}

static int on_open(struct reader *r)
{
    if (++r->depth > MOST_DEPTH) {
        r->fault = "nested too deeply";
        return 0;
    }
    return 1;
}

static int on_map(void *context)
{
    struct reader *r = context;
    if (!on_open(r))
        return 0;
    if (in_event(r)) {
        r->e = (struct mpp_trace_read_event){.name = ""};
        r->complete = false;
        r->dur_us = 0;
    }
    r->inner[0] = '\0';
    return 1;
}

static int on_array(void *context)
{
    struct reader *r = context;
    if (!on_open(r))
        return 0;
    if (r->depth == 2 && strcmp(r->key, "traceEvents") == 0)
        r->in_events = r->any = true;
    return 1;
}

static int on_key(void *context, const unsigned char *text, size_t size)
{
    struct reader *r = context;
    char *key = r->depth == 1 || in_event(r) ? r->key : r->inner;
    size_t n = size < sizeof r->key - 1 ? size : sizeof r->key - 1;
    memcpy(key, text, n);
    key[n] = '\0';
    return 1;
}

static const char *intern(struct reader *r, const char *name, size_t size)
{
    bool is_new;
    int number = mpp_memo_add(r->names, name, size, &is_new);
    if (is_new) {
        r->name = mpp_arena_grow(r->arena, r->name, &r->cap_names, (size_t)number + 1, sizeof *r->name);
        r->name[number] = mpp_diag_plain(r->arena, name);
    }
    return r->name[number];
}

static int on_string(void *context, const unsigned char *text, size_t size)
{
    struct reader *r = context;
    if (!in_event(r))
        return 1;
    if (strcmp(r->key, "ph") == 0)
        r->complete = size == 1 && text[0] == 'X';
    if (strcmp(r->key, "cat") == 0)
        r->e.kernel = size == 6 && memcmp(text, "kernel", 6) == 0;
    if (strcmp(r->key, "name") == 0) {
        char name[1024];
        size_t n = size < sizeof name - 1 ? size : sizeof name - 1;
        memcpy(name, text, n);
        name[n] = '\0';
        r->e.name = intern(r, name, n + 1);
    }
    return 1;
}

static int on_number(void *context, const char *text, size_t size)
{
    struct reader *r = context;
    char copy[64];
    if (!r->in_events || r->depth < 3 || size >= sizeof copy)
        return 1;
    memcpy(copy, text, size);
    copy[size] = '\0';
    double v = strtod(copy, NULL);
    bool small = v >= 0 && v < 1e6;
    if (r->depth == 4 && strcmp(r->key, "args") == 0 && strcmp(r->inner, "bytes") == 0 && v >= 0 && v < 1e18)
        r->e.bytes = (int64_t)v;
    if (!in_event(r))
        return 1;
    if (strcmp(r->key, "pid") == 0)
        r->e.stage = small ? (int)v : -1;
    if (strcmp(r->key, "tid") == 0)
        r->e.rank = small ? (int)v : -1;
    if (strcmp(r->key, "ts") == 0)
        r->e.begin_s = v * 1e-6;
    if (strcmp(r->key, "dur") == 0)
        r->dur_us = v;
    return 1;
}

static int on_end_map(void *context)
{
    struct reader *r = context;
    if (in_event(r) && r->complete) {
        struct mpp_trace_events *t = r->out;
        r->e.end_s = r->e.begin_s + r->dur_us * 1e-6;
        if (t->n >= MOST_EVENTS || !isfinite(r->e.end_s) || r->dur_us < 0 || r->e.stage < 0 || r->e.rank < 0) {
            r->fault = t->n >= MOST_EVENTS ? "more than 100,000,000 events" : "an event without a sensible time, pid or tid";
            return 0;
        }
        t->event = mpp_arena_grow(r->arena, t->event, &r->cap, (size_t)t->n + 1, sizeof *t->event);
        t->event[t->n++] = r->e;
    }
    r->depth--;
    return 1;
}

static int on_end_array(void *context)
{
    struct reader *r = context;
    if (r->depth == 2)
        r->in_events = false;
    r->depth--;
    return 1;
}

static const yajl_callbacks CALLBACKS = {
    .yajl_number = on_number, .yajl_string = on_string, .yajl_start_map = on_map, .yajl_map_key = on_key, .yajl_end_map = on_end_map,
    .yajl_start_array = on_array, .yajl_end_array = on_end_array,
};

static void free_parser(void *parser)
{
    yajl_free(parser);
}

static void close_file(void *file)
{
    fclose(file);
}

/* Reads F to its end; NULL or what is wrong with it. */
static const char *parse(struct reader *r, FILE *f, yajl_handle parser, int64_t *out_at)
{
    unsigned char *chunk = mpp_arena_alloc(r->arena, CHUNK);
    for (size_t n = CHUNK; n == CHUNK; *out_at += (int64_t)n) {
        n = fread(chunk, 1, CHUNK, f);
        if (ferror(f))
            return strerror(errno);
        if (yajl_parse(parser, chunk, n) != yajl_status_ok) {
            *out_at += (int64_t)yajl_get_bytes_consumed(parser);
            return r->fault ? r->fault : "not JSON";
        }
    }
    return yajl_complete_parse(parser) != yajl_status_ok ? "it ends too early" : r->any ? NULL : "there are no \"traceEvents\"";
}

const char *mpp_trace_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask)
{
    const char *text = "";
    for (int a = 0; a < mesh->n_axes; a++)
        if (mask >> a & 1)
            text = mpp_arena_printf(arena, "%s%s%s %d", text, *text ? " x " : "", mesh->name[a], mesh->size[a]);
    return text;
}

enum mpp_status mpp_trace_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_trace_events *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct reader *r = mpp_arena_array(scratch, 1, struct reader);
    struct stat about;
    int64_t at = 0;
    *out = (struct mpp_trace_events){0};
    *r = (struct reader){.arena = arena, .names = mpp_memo_new(arena), .out = out};
    bool regular = stat(path, &about) != 0 || S_ISREG(about.st_mode);
    FILE *f = regular ? fopen(path, "rbe") : NULL;
    const char *why = regular ? strerror(errno) : "not a file";
    if (f) {
        mpp_arena_defer(scratch, close_file, f);
        yajl_handle parser = yajl_alloc(&CALLBACKS, NULL, r);
        if (!parser)
            mpp_arena_fail(scratch, 0);
        mpp_arena_defer(scratch, free_parser, parser);
        why = parse(r, f, parser, &at);
    }
    if (why && at > 0)
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "this is no trace of a trainer (--profile): %s, near byte %lld", why, (long long)at);
    else if (why)
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot read the trace: %s", why);
    mpp_arena_free(scratch);
    return why ? MPP_INVALID : MPP_OK;
}
