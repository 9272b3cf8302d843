#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/model_internal.h"

/* ---- checks that every section uses ---- */

struct mpp_eval mpp_reader_at(struct mpp_reader *r, const struct mpp_xml *node, const struct mpp_env *env)
{
    return (struct mpp_eval){
        .arena = r->arena, .diag = r->diag, .env = env, .loc = node->loc, .faults = &r->faults};
}

struct mpp_eval mpp_reader_attr(struct mpp_reader *r, const struct mpp_xml *node, const struct mpp_env *env,
                                const char *attr)
{
    struct mpp_eval ev = mpp_reader_at(r, node, env);
    ev.what = attr;
    return ev;
}

const char **mpp_words(struct mpp_arena *arena, const char *list, int *out_n)
{
    const char **words = mpp_arena_array(arena, strlen(list) / 2 + 1, const char *);
    int n = 0;
    for (;;) {
        list += strspn(list, " ");
        size_t len = strcspn(list, " ");
        if (len == 0)
            break;
        words[n++] = mpp_arena_strndup(arena, list, len - (list[len - 1] == '*'));
        list += len;
    }
    *out_n = n;
    return words;
}

static bool is_one_of(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0)
            return true;
    }
    return false;
}

/* "a, b or c", with each word in quotes. */
static const char *join(struct mpp_arena *arena, const char *const *words, int n)
{
    const char *s = "";
    for (int i = 0; i < n; i++)
        s = mpp_arena_printf(arena, "%s%s\"%s\"", s, i == 0 ? "" : i == n - 1 ? " or " : ", ", words[i]);
    return s;
}

bool mpp_check_attrs(const struct mpp_eval *ev, const struct mpp_xml *node, const char *list)
{
    int n;
    const char **names = mpp_words(ev->arena, list, &n);
    bool ok = true;
    for (int i = 0; i < node->n_attrs; i++) {
        const char *name = node->attrs[i].name;
        if (is_one_of(name, names, n))
            continue;
        mpp_eval_error(ev, "<%s> has no attribute \"%s\"%s", node->name, name, mpp_diag_hint(ev->diag, name, names, n));
        ok = false;
    }
    for (int i = 0; i < n; i++) {
        list += strspn(list, " ");
        list += strcspn(list, " ");
        if (list[-1] == '*' && !mpp_xml_get(node, names[i])) {
            mpp_eval_error(ev, "<%s> needs the attribute \"%s\"", node->name, names[i]);
            ok = false;
        }
    }
    return ok;
}

void mpp_unexpected_element(const struct mpp_eval *ev, const struct mpp_xml *node, const char *list)
{
    int n;
    const char **names = mpp_words(ev->arena, list, &n);
    const char *hint = mpp_diag_hint(ev->diag, node->name, names, n);
    const char *where = node->parent ? mpp_arena_printf(ev->arena, " in <%s>", node->parent->name) : "";
    if (*hint || n == 0)
        mpp_eval_error(ev, "no element <%s>%s%s", node->name, where, hint);
    else
        mpp_eval_error(ev, "no element <%s>%s; allowed here: %s", node->name, where, join(ev->arena, names, n));
}

bool mpp_check_shown(const struct mpp_eval *ev, const char *what, const char *name)
{
    if (strlen(name) > MPP_MAX_NAME) {
        mpp_eval_error(ev, "%s has over %d characters", what, MPP_MAX_NAME);
        return false;
    }
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            mpp_eval_error(ev, "%s (\"%.40s\") holds a control character", what, name);
            return false;
        }
    }
    return true;
}

bool mpp_check_count(const struct mpp_eval *ev, const struct mpp_xml *node, const char *name, int most)
{
    int n = 0;
    for (const struct mpp_xml *c = node->first; c; c = c->next) {
        if (strcmp(c->name, name) == 0 && ++n > most) {
            struct mpp_eval at = *ev;
            at.loc = c->loc;
            mpp_eval_error(&at, "<%s> holds over %d <%s>", node->name, most, name);
            return false;
        }
    }
    return true;
}

bool mpp_check_leaf(const struct mpp_eval *ev, const struct mpp_xml *node)
{
    if (!node->first)
        return true;
    struct mpp_eval at = *ev;
    at.loc = node->first->loc;
    mpp_eval_error(&at, "<%s> has no child elements, so <%s> can't stand in it", node->name, node->first->name);
    return false;
}

const char *mpp_check_word(const struct mpp_eval *ev, const char *value, const char *list)
{
    int n;
    const char **words = mpp_words(ev->arena, list, &n);
    value = mpp_eval_string(ev, value);
    if (is_one_of(value, words, n))
        return value;
    const char *hint = mpp_diag_hint(ev->diag, value, words, n);
    mpp_eval_error(ev, "%s must be %s, not \"%.80s\"%s", ev->what, join(ev->arena, words, n), value, hint);
    return NULL;
}

bool mpp_check_type(const struct mpp_eval *ev, const char *text, enum mpp_value_type *out)
{
    const char *word = mpp_check_word(ev, text, "int float bool string");
    if (!word)
        return false;
    *out = MPP_VALUE_INT;
    while (strcmp(mpp_value_type_name(*out), word) != 0)
        *out += 1;
    return true;
}

bool mpp_typed_value(const struct mpp_eval *ev, const char *text, enum mpp_value_type type, struct mpp_value *out,
                     const char **out_text)
{
    *out_text = text;
    if (type == MPP_VALUE_STRING) {
        *out = (struct mpp_value){.type = type, .s = mpp_eval_string(ev, text)};
        return true;
    }
    return mpp_eval_value(ev, text, out, out_text) && mpp_eval_convert(ev, text, type, out);
}

/* ---- blocks and includes ---- */

static void add_block(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_eval ev = mpp_reader_at(r, node, NULL);
    const char *name = mpp_xml_get(node, "name");
    if (!mpp_check_attrs(&ev, node, "name*") || !name)
        return;
    for (int i = 0; i < r->n_blocks; i++) {
        if (strcmp(r->blocks[i].name, name) == 0) {
            mpp_eval_error(&ev, "a second block \"%s\"; the first is at %s:%d", name, r->blocks[i].xml->loc.file,
                           r->blocks[i].xml->loc.line);
            return;
        }
    }
    if (!*name)
        mpp_eval_error(&ev, "a block's name can't be empty");
    if (!*name || !mpp_check_shown(&ev, "a block's name", name))
        return;
    if (r->n_blocks == MPP_MAX_BLOCKS) {
        mpp_eval_error(&ev, "the model has over %d blocks", MPP_MAX_BLOCKS);
        return;
    }
    r->blocks = mpp_arena_grow(r->arena, r->blocks, &r->cap_blocks, (size_t)r->n_blocks + 1, sizeof *r->blocks);
    r->blocks[r->n_blocks++] = (struct mpp_block){.name = name, .xml = node};
}

/* The folder part of PATH, with its slash; "" without one. */
static const char *folder(struct mpp_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? mpp_arena_strndup(arena, path, (size_t)(slash - path) + 1) : "";
}

/* The real path of PATH in the arena, or NULL. */
static const char *real_path(struct mpp_arena *arena, const char *path)
{
    char real[PATH_MAX];
    return realpath(path, real) ? mpp_arena_strdup(arena, real) : NULL;
}

/* One file being included: they form the chain from the main file, for loops and depth. */
struct include {
    const struct include *up;
    const char *real;
    int depth;
};

static void read_include(struct mpp_reader *r, const struct mpp_xml *node, const struct include *up);

static void read_library(struct mpp_reader *r, const struct mpp_xml *root, const struct include *self)
{
    struct mpp_eval ev = mpp_reader_at(r, root, NULL);
    if (strcmp(root->name, "library") != 0) {
        mpp_eval_error(&ev, "an included file holds a <library>, not <%s>", root->name);
        return;
    }
    mpp_check_attrs(&ev, root, "version name");
    bool blocks = false;
    for (const struct mpp_xml *c = root->first; c; c = c->next) {
        struct mpp_eval at = mpp_reader_at(r, c, NULL);
        if (strcmp(c->name, "block") == 0) {
            add_block(r, c);
            blocks = true;
        } else if (strcmp(c->name, "include") == 0 && !blocks) {
            read_include(r, c, self);
        } else if (strcmp(c->name, "include") == 0) {
            mpp_eval_error(&at, "<include> must come before the blocks");
        } else {
            mpp_unexpected_element(&at, c, "include block");
        }
    }
}

/* The real path of an include, or NULL after a report. */
static const char *locate(struct mpp_reader *r, const struct mpp_eval *ev, const char *path, const char *href,
                          const struct include *up)
{
    if (href[0] == '/' || href[0] == '\0' || strstr(href, "://")) {
        mpp_eval_error(ev, "href=\"%.80s\" must be a relative path", href);
        return NULL;
    }
    if (up->depth >= MPP_MAX_INCLUDE_DEPTH) {
        mpp_eval_error(ev, "includes are nested over %d deep", MPP_MAX_INCLUDE_DEPTH);
        return NULL;
    }
    const char *real = real_path(r->arena, path);
    if (!real) {
        mpp_eval_error(ev, "cannot find \"%.200s\" (looked for %.200s)", href, path);
        return NULL;
    }
    size_t len = strlen(r->root_dir);
    bool below = strncmp(real, r->root_dir, len) == 0 && (r->root_dir[len - 1] == '/' || real[len] == '/');
    if (!below) {
        mpp_eval_error(ev, "\"%.200s\" lies outside the main file's folder; copy it below that", href);
        return NULL;
    }
    for (const struct include *i = up; i; i = i->up) {
        if (strcmp(i->real, real) == 0) {
            mpp_eval_error(ev, "\"%.200s\" is already being read: the includes form a loop", href);
            return NULL;
        }
    }
    return real;
}

static void read_include(struct mpp_reader *r, const struct mpp_xml *node, const struct include *up)
{
    struct mpp_eval ev = mpp_reader_at(r, node, NULL);
    const char *href = mpp_xml_get(node, "href");
    if (!mpp_check_attrs(&ev, node, "href*") || !mpp_check_leaf(&ev, node))
        return;
    const char *path = mpp_arena_printf(r->arena, "%s%s", folder(r->arena, node->loc.file), href);
    const char *real = locate(r, &ev, path, href, up);
    if (!real)
        return;
    for (int i = 0; i < r->n_loaded; i++) {
        if (strcmp(r->loaded[i], real) == 0)
            return; /* included twice, over two ways: its blocks are there */
    }
    r->loaded = mpp_arena_grow(r->arena, r->loaded, &r->cap_loaded, (size_t)r->n_loaded + 1, sizeof *r->loaded);
    r->loaded[r->n_loaded++] = real;
    struct mpp_xml *root;
    if (mpp_xml_read_at(r->arena, r->diag, path, node->loc, &root) != MPP_OK) {
        r->faults++;
        return;
    }
    struct include self = {.up = up, .real = real, .depth = up->depth + 1};
    read_library(r, root, &self);
}

/* ---- sections ---- */

enum section { S_INCLUDE, S_PARAMS, S_BLOCK, S_INPUTS, S_GRAPH, S_TRAINING, S_DATA, S_WEIGHTS, S_PLANNING, N_SECTIONS };

static const struct {
    const char *name;
    bool many, required;
} sections[N_SECTIONS] = {
    {"include", true, false}, {"params", false, true},   {"block", true, false},
    {"inputs", false, true},  {"graph", false, true},    {"training", false, true},
    {"data", false, false},   {"weights", false, false}, {"planning", false, false},
};

#define ALL_SECTIONS "include params block inputs graph training data weights planning"

static int section_of(const char *name)
{
    int s = 0;
    while (s < N_SECTIONS && strcmp(sections[s].name, name) != 0)
        s++;
    return s;
}

/* Sort the children of <model> into sections; FIRST gets the first of each. Reports order, doubles and gaps. */
static void sort_sections(struct mpp_reader *r, const struct mpp_xml *first[N_SECTIONS])
{
    int latest = 0;
    for (const struct mpp_xml *c = r->root->first; c; c = c->next) {
        struct mpp_eval ev = mpp_reader_at(r, c, NULL);
        int s = section_of(c->name);
        if (s == N_SECTIONS) {
            mpp_unexpected_element(&ev, c, ALL_SECTIONS);
            continue;
        }
        if (s < latest)
            mpp_eval_error(&ev, "<%s> must come before <%s>; the order is " ALL_SECTIONS, c->name,
                           sections[latest].name);
        else
            latest = s;
        if (first[s] && !sections[s].many)
            mpp_eval_error(&ev, "a second <%s>; the first is at line %d", c->name, first[s]->loc.line);
        if (!first[s])
            first[s] = c;
    }
    struct mpp_eval ev = mpp_reader_at(r, r->root, NULL);
    for (int s = 0; s < N_SECTIONS; s++) {
        if (sections[s].required && !first[s])
            mpp_eval_error(&ev, "the model has no <%s>", sections[s].name);
    }
}

static void read_blocks(struct mpp_reader *r)
{
    struct include self = {.real = real_path(r->arena, r->root->loc.file)};
    if (!self.real)
        self.real = "";
    for (const struct mpp_xml *c = r->root->first; c; c = c->next) {
        if (strcmp(c->name, "include") == 0)
            read_include(r, c, &self);
        else if (strcmp(c->name, "block") == 0)
            add_block(r, c);
    }
    r->incomplete = r->faults > 0;
}

static bool check_root(struct mpp_reader *r)
{
    struct mpp_eval ev = mpp_reader_at(r, r->root, NULL);
    if (strcmp(r->root->name, "model") != 0) {
        const char *what = strcmp(r->root->name, "library") == 0 ? "; a <library> is included by a model"
                           : strcmp(r->root->name, "net") == 0   ? "; OpenVINO's IR is not supported yet"
                                                                 : "";
        mpp_eval_error(&ev, "the root element is <%s>, not <model>%s", r->root->name, what);
        return false;
    }
    mpp_check_attrs(&ev, r->root, "name* version*");
    const char *version = mpp_xml_get(r->root, "version");
    if (version && strcmp(version, "1") != 0)
        mpp_eval_error(&ev, "version=\"%.80s\" of the model file is not supported; this release reads version 1",
                       version);
    r->model->name = mpp_xml_get(r->root, "name");
    if (r->model->name)
        mpp_check_shown(&ev, "the model's name", r->model->name);
    return true;
}

static enum mpp_status read_sections(struct mpp_reader *r)
{
    const struct mpp_xml *first[N_SECTIONS] = {0};
    if (!check_root(r))
        return MPP_INVALID;
    sort_sections(r, first);
    read_blocks(r);
    if (!first[S_PARAMS])
        return MPP_INVALID;
    MPP_TRY(mpp_read_params(r, first[S_PARAMS]));
    int before = r->faults;
    if (first[S_INPUTS])
        mpp_read_inputs(r, first[S_INPUTS]);
    r->values_missing = !first[S_INPUTS] || r->faults > before;
    if (first[S_TRAINING])
        mpp_read_training(r, first[S_TRAINING]);
    if (first[S_DATA])
        mpp_read_data(r, first[S_DATA]);
    if (first[S_WEIGHTS])
        mpp_read_weights(r, first[S_WEIGHTS]);
    if (first[S_PLANNING])
        mpp_read_planning(r, first[S_PLANNING]);
    if (first[S_GRAPH])
        mpp_expand_graph(r, first[S_GRAPH], first[S_TRAINING]);
    return r->faults ? MPP_INVALID : MPP_OK;
}

enum mpp_status mpp_model_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                               const struct mpp_model_options *options, struct mpp_model **out)
{
    static const struct mpp_model_options none = {0};
    struct mpp_xml *root;
    *out = NULL;
    MPP_TRY(mpp_xml_read(arena, diag, path, &root));
    struct mpp_reader r = {.arena = arena, .diag = diag, .options = options ? options : &none, .root = root};
    r.model = mpp_arena_array(arena, 1, struct mpp_model);
    r.model->file = root->loc.file;
    r.model->training.precision = "f32";
    const char *dir = folder(arena, path);
    r.root_dir = real_path(arena, *dir ? dir : ".");
    if (!r.root_dir)
        r.root_dir = "/nowhere"; /* the folder went away: nothing can be included */
    MPP_TRY(read_sections(&r));
    if (r.options->precision)
        r.model->training.precision = r.options->precision;
    *out = r.model;
    return MPP_OK;
}
