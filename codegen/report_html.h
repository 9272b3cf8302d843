/* report_html.h - what the parts of report.html share: a JSON text that is written front to back, and a table of strings.
 *
 *     mpp_html_open(h, "cluster", '{');
 *     mpp_html_text(h, "name", cluster->name);
 *     mpp_html_int(h, "devices", cluster->n_devices);
 *     mpp_html_close(h, '}');
 *
 * The text stands inside a <script> element, so no byte of it can end that: '<', '>' and '&' are written as \u003c and so on.
 * Keys are NULL inside arrays. Numbers are written so that they read back as the same double. */
#ifndef MPP_REPORT_HTML_H
#define MPP_REPORT_HTML_H

#include "codegen/report_internal.h"

enum { MPP_HTML_DEPTH = 16 };

/* Texts by number, in order of first appearance: names and shapes recur a lot. Begins as {.arena = arena}. */
struct mpp_html_strings {
    struct mpp_arena *arena;
    int n, n_slots;
    int *slot;                    /* [n_slots] 1 + the number of a text with that hash; 0: free */
    const char **text;
    size_t cap;
};

struct mpp_piece;

struct mpp_html {
    struct report *r;
    struct mpp_text out;
    int depth;
    bool follows[MPP_HTML_DEPTH]; /* something stands before, at this depth */
    struct mpp_html_strings *strings;
    /* of the stage that is written */
    const char **repeat;          /* [n_repeats] name of each <repeat> */
    int *first, *last, n_repeats; /* [n_repeats] its layers in the stage; first INT_MAX: none */
    const struct mpp_piece *piece; /* [n_pieces] planner/timeline.h */
    int n_pieces;
};

/* ---- report_html_json.c ---- */
void mpp_html_open(struct mpp_html *h, const char *key, char bracket);
void mpp_html_close(struct mpp_html *h, char bracket);
void mpp_html_int(struct mpp_html *h, const char *key, int64_t v);
void mpp_html_double(struct mpp_html *h, const char *key, double v);
void mpp_html_bool(struct mpp_html *h, const char *key, bool v);
void mpp_html_text(struct mpp_html *h, const char *key, const char *text); /* NULL: null; what is not UTF-8 becomes U+FFFD */
void mpp_html_string(struct mpp_html *h, const char *key, const char *text); /* by its number in h->strings */
void mpp_html_raw(struct mpp_html *h, const char *key, const char *json);
int mpp_html_intern(struct mpp_html_strings *s, const char *text);
/* TEXT for HTML, in ARENA: & < > " ' escaped, what is not UTF-8 as U+FFFD. */
const char *mpp_html_escape(struct mpp_arena *arena, const char *text);

/* Records that are equal but for their layer stand once. */
struct mpp_html_records {
    struct mpp_html *h;
    struct mpp_html_strings texts;
    struct mpp_html_record {
        int n_layers, *layer;     /* counted from the stage's first; none: it belongs to no layer */
        size_t cap;
        int64_t times;
    } *record;
    size_t cap;
};
void mpp_html_records_begin(struct mpp_html *h, struct mpp_html_records *out);
/* TEXT: the record's fields, joined by commas; LAYER -1: of none. */
void mpp_html_records_add(struct mpp_html_records *rs, const char *text, int layer);
/* As the array KEY of arrays [layers ("0-11"; ""), times, fields...]. */
void mpp_html_records_write(struct mpp_html_records *rs, const char *key);

/* PATH without its folders: pages hold nothing of the machine that they are made on. */
const char *mpp_html_basename(const char *path);

/* ---- report_html.c ---- */
void mpp_html_note_layers(struct mpp_html *h);    /* the repeats and layers of H's stage */

/* ---- report_html_tree.c: of H's stage ---- */
/* NAME with its layer as "*": "h.3.attn" is "h.*.attn" and layer 3, counted from the stage's first in *OUT_LAYER. Of a layer
 * before the stage's first "h.*-1.res2" and layer 0, of one after its last "h.*+1.res2" and the last; else NAME and -1. */
const char *mpp_html_template(const struct mpp_html *h, const char *name, int *out_layer);
/* NAME as what is called FROM sees it: in FROM's layer "h.*.x", in the one before "h.*-1.x"; where FROM is in no layer, as the stage's
 * first layer does; of another repeat NAME. */
const char *mpp_html_seen(const struct mpp_html *h, const char *name, const char *from);
/* Is NAME in a layer? Its repeat, its number, and what follows ("" or ".attn"). */
bool mpp_html_layer(const struct mpp_html *h, const char *name, int *out_repeat, int *out_index, const char **out_rest);
/* "batch over data (8), heads over model (4)"; "whole"; "partial sums over model (4)". */
const char *mpp_html_words(const struct report *r, const struct mpp_gtensor *t, struct mpp_sharding s);
void mpp_html_tree(struct mpp_html *h);

/* ---- report_html_time.c ---- */
void mpp_html_pieces(struct mpp_html *h);         /* of H's stage: what it does in a micro-batch, and once */
void mpp_html_collectives(struct mpp_html *h);    /* of H's stage */
void mpp_html_schedule(struct mpp_html *h);       /* of the plan: when each stage does what */

/* ---- report_html_cluster.c ---- */
void mpp_html_cluster(struct mpp_html *h);        /* cluster, device, figures with sources */
void mpp_html_axes(struct mpp_html *h);           /* of H's stage: its mesh and the links that each axis uses */

#endif
