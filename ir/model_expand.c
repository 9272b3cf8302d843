#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/model_internal.h"
#include "ir/model_names.h"

enum { MAX_NESTING = 1024, MAX_NAME = MPP_MAX_NAME, MAX_PATH_LEVELS = 4, MAX_HINTS = 20, MAX_WORDS = 1000 };
enum { SCRATCH_UNNAMED, SCRATCH_FAULTY }; /* counters for unnamed ops; elements that have been reported */

/* A scope being expanded: the graph, a block's body, one iteration of a loop. */
struct frame {
    struct frame *up;           /* whose names are seen too; NULL at the top and in a block */
    struct frame *outer;        /* what it is expanded in; NULL at the top */
    const struct mpp_xml *call; /* the <call> of a block's body; NULL otherwise */
    int table;                  /* of its own names */
    const char *prefix;         /* "h.3.attn", or "" */
    const char *x;              /* what %x is; NULL: nothing */
    const char *prev;           /* the previous op's first output; NULL: none yet */
    const struct mpp_env *env;
    const char *path;           /* call path, made when first needed; NULL at the top */
};

struct state {
    struct mpp_reader *r;
    struct mpp_model_names names;
    struct mpp_model_names scratch;   /* SCRATCH_ tables */
    size_t cap_items;
    int64_t bytes;              /* of text made so far */
    int n_tables, steps, nesting, repeat_depth, call_depth;
    int repeat, index;          /* outermost loop now being expanded; -1 */
    const char *repeat_name;
    bool stop;
};

static void expand_body(struct state *st, struct frame *f, const struct mpp_xml *first);

/* Like printf into the arena, but counted: expansion must not eat all memory. */
__attribute__((format(printf, 2, 3))) static const char *text(struct state *st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *s = mpp_arena_vprintf(st->r->arena, fmt, ap);
    va_end(ap);
    st->bytes += (int64_t)strlen(s);
    return s;
}

/* What it takes to evaluate EXPR, at most: a token takes an allocation of 16 bytes. */
static int64_t cost_of(const char *expr)
{
    return 16 * (int64_t)strlen(expr);
}

/* "in block "f", called as h.3.attn at gpt.xml:58", innermost first. */
static const char *path_of(struct state *st, struct frame *f)
{
    int levels = 0;
    const char *path = NULL;
    for (struct frame *g = f; g && !f->path; g = g->outer) {
        if (!g->call)
            continue;
        if (++levels > MAX_PATH_LEVELS) {
            path = text(st, "%s, ...", path);
            break;
        }
        path = text(st, "%s%sin block \"%s\", called%s%s at %s:%d", path ? path : "", path ? ", " : "",
                    mpp_xml_get(g->call, "block"), *g->prefix ? " as " : "", g->prefix, g->call->loc.file,
                    g->call->loc.line);
    }
    if (!f->path)
        f->path = path;
    return f->path;
}

/* NODE's entry among the elements that have been reported, so that loops and calls do not do it again; NULL: none. */
static struct mpp_model_name *faulty(struct state *st, const struct mpp_xml *node, bool mark)
{
    if (st->r->faults == 0)
        return NULL;
    const char *key = mpp_arena_printf(st->r->arena, "%p", (const void *)node);
    struct mpp_model_name *known = mpp_model_names_find(&st->scratch, SCRATCH_FAULTY, key);
    return known || !mark ? known : mpp_model_names_put(&st->scratch, SCRATCH_FAULTY, key, "", node->loc.line);
}

static struct mpp_eval at(struct state *st, struct frame *f, const struct mpp_xml *node, const char *attr)
{
    struct mpp_eval ev = mpp_reader_attr(st->r, node, f->env, attr);
    ev.path = path_of(st, f);
    ev.quiet = faulty(st, node, false) != NULL;
    return ev;
}

static const char *joined(struct state *st, const char *prefix, const char *name)
{
    if (!*prefix)
        return name;
    return *name ? text(st, "%s.%s", prefix, name) : prefix;
}

/* Count one element; false when expansion must end. */
static bool step(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    if (st->stop || st->r->faults > MPP_MAX_FAULTS)
        return false;
    if (++st->steps <= MPP_MAX_STEPS && st->nesting <= MAX_NESTING && st->bytes <= MPP_MAX_TEXT_BYTES)
        return true;
    struct mpp_eval ev = at(st, f, node, NULL);
    if (st->steps > MPP_MAX_STEPS)
        mpp_eval_error(&ev, "the model takes over %d steps to expand", MPP_MAX_STEPS);
    else if (st->nesting > MAX_NESTING)
        mpp_eval_error(&ev, "blocks, loops and ifs are nested over %d deep", MAX_NESTING);
    else
        mpp_eval_error(&ev, "the model's names and expressions take over %d MiB when expanded", MPP_MAX_TEXT_BYTES >> 20);
    st->stop = true;
    return false;
}

/* ---- names and wiring ---- */

static bool good_name(const char *name)
{
    if (strlen(name) > MAX_NAME || *name == '.' || *name == '-' || *name == '\0' ||
        name[strlen(name) - 1] == '.' || strstr(name, ".."))
        return false;
    for (; *name; name++) {
        if (!isalnum((unsigned char)*name) && !strchr("_.-", *name))
            return false;
    }
    return true;
}

static void bad_name(const struct mpp_eval *ev, const char *name)
{
    mpp_eval_error(ev, "\"%.80s\" is not a name: letters, digits, _, - and single dots inside, at most %d", name,
                   MAX_NAME);
}

/* Give VALUE the local NAME in F; both the local and the full name must be free. */
static bool declare(struct state *st, struct frame *f, const struct mpp_xml *node, const char *name, const char *value)
{
    struct mpp_eval ev = at(st, f, node, NULL);
    const char *full = joined(st, f->prefix, name);
    const struct mpp_model_name *other = mpp_model_names_find(&st->names, f->table, name);
    if (!other)
        other = mpp_model_names_find(&st->names, MPP_MODEL_NAMES_FULL, full);
    if (!good_name(name)) {
        bad_name(&ev, name);
        st->r->values_missing = true;
        return false;
    }
    if (other) {
        mpp_eval_error(&ev, "the name \"%.80s\" is taken by line %d", full, other->line);
        return false;
    }
    mpp_model_names_put(&st->names, f->table, name, value, node->loc.line);
    mpp_model_names_put(&st->names, MPP_MODEL_NAMES_FULL, full, value, node->loc.line);
    return true;
}

/* A name for an op that has none: its type in lower case, numbered from the second on. */
static const char *unnamed(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    struct mpp_arena *arena = st->r->arena;
    char *base = mpp_arena_strdup(arena, node->name);
    for (char *s = base; *s; s++)
        *s = (char)tolower((unsigned char)*s);
    const char *first = joined(st, f->prefix, base), *full = first;
    struct mpp_model_name *counter = mpp_model_names_find(&st->scratch, SCRATCH_UNNAMED, first);
    if (!counter)
        counter = mpp_model_names_put(&st->scratch, SCRATCH_UNNAMED, first, "", 0);
    if (++counter->count > 1)
        full = text(st, "%s_%d", first, counter->count);
    while (mpp_model_names_find(&st->names, MPP_MODEL_NAMES_FULL, full))
        full = text(st, "%s_%d", first, ++counter->count);
    mpp_model_names_put(&st->names, MPP_MODEL_NAMES_FULL, full, full, node->loc.line);
    return full;
}

static const char *hint_for(struct state *st, struct frame *f, const char *ref)
{
    if (mpp_diag_errors(st->r->diag) >= MAX_HINTS)
        return "";
    const char **names = mpp_arena_array(st->r->arena, st->names.n + 1, const char *);
    int n = 0;
    for (; f; f = f->up) {
        for (size_t i = 0; i < st->names.cap; i++) {
            if (st->names.slot[i].name && st->names.slot[i].table == f->table)
                names[n++] = st->names.slot[i].name;
        }
    }
    for (int i = 0; i < st->r->model->n_inputs; i++)
        names[n++] = st->r->model->inputs[i].name;
    return mpp_diag_hint(st->r->diag, ref, names, n);
}

/* The value that REF means in F, or NULL after a report. */
static const char *resolve(struct state *st, struct frame *f, const struct mpp_eval *ev, const char *ref)
{
    if (strcmp(ref, "%x") == 0) {
        if (!f->x && !f->outer)
            mpp_eval_error(ev, "%%x is the input of a block or loop; there is none here");
        else if (!f->x)
            mpp_eval_error(ev, "%%x is empty here: nothing comes before the block or loop, and it has no in=");
        return f->x;
    }
    const char *value = NULL;
    for (struct frame *s = f; s && !value; s = s->up)
        value = mpp_model_names_get(&st->names, s->table, ref);
    if (!value)
        value = mpp_model_names_get(&st->names, MPP_MODEL_NAMES_INPUTS, ref);
    for (struct frame *s = f; s && !value; s = s->up)
        value = mpp_model_names_get(&st->names, MPP_MODEL_NAMES_FULL, joined(st, s->prefix, ref));
    if (!value && st->r->values_missing)
        st->r->faults++;
    else if (!value)
        mpp_eval_error(ev, "no value \"%.80s\" before this%s", ref, hint_for(st, f, ref));
    return value;
}

static int count_words(const char *text)
{
    int n = 0;
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (!*text)
            return n;
        text += strcspn(text, " \t\r\n");
        n++;
    }
}

/* The next word of *TEXT, or NULL. */
static const char *next_word(struct mpp_arena *arena, const char **text)
{
    *text += strspn(*text, " \t\r\n");
    size_t len = strcspn(*text, " \t\r\n");
    const char *word = len ? mpp_arena_strndup(arena, *text, len) : NULL;
    *text += len;
    return word;
}

/* The one value that in= of a call or loop names; the previous op's output without it. */
static bool single_input(struct state *st, struct frame *f, const struct mpp_xml *node, const char **out)
{
    const char *in = mpp_xml_get(node, "in");
    *out = f->prev;
    if (!in)
        return true;
    struct mpp_eval ev = at(st, f, node, "in");
    if (count_words(in) != 1) {
        mpp_eval_error(&ev, "in=\"%.80s\": <%s> takes one value, which is %%x inside", in, node->name);
        return false;
    }
    *out = resolve(st, f, &ev, next_word(st->r->arena, &in));
    return *out != NULL;
}

/* ---- ops ---- */

static bool wire_inputs(struct state *st, struct frame *f, const struct mpp_xml *node, struct mpp_item *item)
{
    struct mpp_eval ev = at(st, f, node, "in");
    const char *in = mpp_xml_get(node, "in");
    item->in_default = in == NULL;
    if (!in) {
        item->n_in = f->prev != NULL;
        item->in = mpp_arena_array(st->r->arena, 1, const char *);
        item->in[0] = f->prev;
        return true;
    }
    item->n_in = count_words(in);
    if (item->n_in > MAX_WORDS) {
        mpp_eval_error(&ev, "in names over %d values", MAX_WORDS);
        item->n_in = 0;
        return false;
    }
    st->bytes += item->n_in * 32 + (int64_t)strlen(in);
    item->in = mpp_arena_array(st->r->arena, item->n_in, const char *);
    bool ok = true;
    for (int i = 0; i < item->n_in; i++) {
        const char *word = next_word(st->r->arena, &in);
        if (strcmp(word, "-") == 0)
            continue;
        item->in[i] = resolve(st, f, &ev, word);
        ok = ok && item->in[i];
    }
    return ok;
}

/* Names the op and its outputs, and makes them known. */
static bool name_outputs(struct state *st, struct frame *f, const struct mpp_xml *node, struct mpp_item *item)
{
    struct mpp_arena *arena = st->r->arena;
    const char *name = mpp_xml_get(node, "name"), *out = mpp_xml_get(node, "out");
    struct mpp_eval ev = at(st, f, node, "out");
    item->n_out = out ? count_words(out) : 1;
    if (item->n_out == 0 || item->n_out > MAX_WORDS) {
        mpp_eval_error(&ev, item->n_out ? "out names over %d values" : "out is empty", MAX_WORDS);
        item->n_out = 0;
        return false;
    }
    item->out = mpp_arena_array(arena, item->n_out, const char *);
    bool ok = true;
    for (int i = 0; out && i < item->n_out; i++) {
        const char *word = next_word(arena, &out);
        item->out[i] = joined(st, f->prefix, word);
        ok = declare(st, f, node, word, item->out[i]) && ok;
    }
    if (!name) {
        item->name = unnamed(st, f, node);
    } else {
        item->name = joined(st, f->prefix, name);
        const char *value = item->out[0] ? item->out[0] : item->name;
        if (strcmp(value, item->name) != 0 || !item->out[0])
            ok = declare(st, f, node, name, value) && ok;
    }
    if (!item->out[0])
        item->out[0] = item->name;
    return ok;
}

static void expand_op(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    struct mpp_model *m = st->r->model;
    struct mpp_item item = {.type = node->name, .scope = f->prefix, .loc = node->loc, .path = path_of(st, f),
                            .repeat = st->repeat, .index = st->index, .repeat_name = st->repeat_name,
                            .xml = node, .env = f->env};
    if (m->n_items >= MPP_MAX_ITEMS) {
        struct mpp_eval ev = at(st, f, node, NULL);
        mpp_eval_error(&ev, "the model has over %d ops when expanded", MPP_MAX_ITEMS);
        st->stop = true;
        return;
    }
    for (int i = 0; i < node->n_attrs; i++)
        st->bytes += cost_of(node->attrs[i].value);
    bool ok = wire_inputs(st, f, node, &item);
    ok = name_outputs(st, f, node, &item) && ok;
    if (item.n_out > 0)
        f->prev = item.out[0];
    if (!ok)
        return;
    m->items = mpp_arena_grow(st->r->arena, m->items, &st->cap_items, (size_t)m->n_items + 1, sizeof *m->items);
    m->items[m->n_items++] = item;
}

/* ---- calls ---- */

static struct mpp_block *find_block(struct mpp_reader *r, const char *name)
{
    for (int i = 0; i < r->n_blocks; i++) {
        if (strcmp(r->blocks[i].name, name) == 0)
            return &r->blocks[i];
    }
    return NULL;
}

static const struct mpp_xml *first_op(const struct mpp_block *block)
{
    const struct mpp_xml *c = block->xml->first;
    while (c && strcmp(c->name, "arg") == 0)
        c = c->next;
    return c;
}

/* Evaluate the arguments of a call: given ones where the call stands, defaults where the block does. */
static struct mpp_env *bind_args(struct state *st, struct frame *f, const struct mpp_xml *call,
                                 const struct mpp_block *block)
{
    struct mpp_arena *arena = st->r->arena;
    int n = 0;
    for (const struct mpp_xml *c = block->xml->first; c && strcmp(c->name, "arg") == 0; c = c->next)
        n++;
    struct mpp_binding *bind = mpp_arena_array(arena, n, struct mpp_binding);
    struct mpp_env *env = mpp_arena_array(arena, 1, struct mpp_env);
    *env = (struct mpp_env){.up = st->r->globals, .bind = bind};
    for (const struct mpp_xml *c = block->xml->first; env->n < n; c = c->next) {
        const char *name = mpp_xml_get(c, "name"), *given = mpp_xml_get(call, name);
        st->bytes += 64 + cost_of(given ? given : mpp_xml_get(c, "default"));
        struct mpp_eval ev = given ? at(st, f, call, name) : mpp_reader_attr(st->r, c, env, "default");
        struct mpp_binding *b = &bind[env->n];
        enum mpp_value_type type;
        *b = (struct mpp_binding){.name = name};
        struct mpp_eval type_ev = mpp_reader_attr(st->r, c, NULL, "type");
        if (!mpp_check_type(&type_ev, mpp_xml_get(c, "type"), &type) ||
            !mpp_typed_value(&ev, given ? given : mpp_xml_get(c, "default"), type, &b->value, &b->text))
            return NULL;
        env->n++;
    }
    return env;
}

static bool may_call(struct state *st, struct frame *f, const struct mpp_xml *node, const struct mpp_block *block)
{
    if (!block->active && st->call_depth < MPP_MAX_CALL_DEPTH)
        return true;
    struct mpp_eval ev = at(st, f, node, "block");
    if (block->active)
        mpp_eval_error(&ev, "block \"%s\" is called from within itself; this would not end", block->name);
    else
        mpp_eval_error(&ev, "calls are nested over %d deep", MPP_MAX_CALL_DEPTH);
    return false;
}

static void expand_call(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    const char *name = mpp_xml_get(node, "name");
    struct mpp_block *block = find_block(st->r, mpp_xml_get(node, "block"));
    struct frame body = {.table = st->n_tables++, .outer = f, .call = node};
    if (!may_call(st, f, node, block) || !single_input(st, f, node, &body.x))
        return;
    body.env = bind_args(st, f, node, block);
    if (!body.env)
        return;
    body.prefix = joined(st, f->prefix, name ? name : "");
    body.prev = body.x;
    block->active = true;
    st->call_depth++;
    expand_body(st, &body, first_op(block));
    st->call_depth--;
    block->active = false;
    f->prev = body.prev;
    if (name && *name && body.prev)
        declare(st, f, node, name, body.prev);
}

/* ---- loops ---- */

struct loop {
    const char *name, *index, *x;
    int64_t start, count;
};

static bool read_loop(struct state *st, struct frame *f, const struct mpp_xml *node, struct loop *out)
{
    struct mpp_eval ev = at(st, f, node, "count");
    *out = (struct loop){.name = mpp_xml_get(node, "name"), .index = mpp_xml_get(node, "index")};
    if (!out->name)
        out->name = "";
    bool ok = mpp_eval_int(&ev, mpp_xml_get(node, "count"), 0, MPP_MAX_ITEMS, &out->count);
    const char *start = mpp_xml_get(node, "start");
    ev.what = "start";
    if (start)
        ok = mpp_eval_int(&ev, start, 0, INT32_MAX, &out->start) && ok;
    if (st->repeat_depth >= MPP_MAX_REPEAT_DEPTH) {
        ev.what = NULL;
        mpp_eval_error(&ev, "loops are nested over %d deep", MPP_MAX_REPEAT_DEPTH);
        return false;
    }
    return single_input(st, f, node, &out->x) && ok;
}

static const struct mpp_env *loop_env(struct state *st, struct frame *f, const struct loop *loop, int64_t i)
{
    if (!loop->index)
        return f->env;
    struct mpp_binding *bind = mpp_arena_array(st->r->arena, 1, struct mpp_binding);
    struct mpp_env *env = mpp_arena_array(st->r->arena, 1, struct mpp_env);
    *bind = (struct mpp_binding){.name = loop->index,
                                 .text = mpp_arena_printf(st->r->arena, "%lld", (long long)i),
                                 .value = {.type = MPP_VALUE_INT, .i = i}};
    *env = (struct mpp_env){.up = f->env, .n = 1, .bind = bind};
    return env;
}

static void expand_repeat(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    struct loop loop;
    if (!read_loop(st, f, node, &loop))
        return;
    bool outermost = st->repeat < 0 && loop.count > 0;
    const char *scope = joined(st, f->prefix, loop.name);
    if (outermost) {
        st->repeat = st->r->model->n_repeats++;
        st->repeat_name = *scope ? scope : "repeat";
    }
    st->repeat_depth++;
    for (int64_t k = 0; k < loop.count && !st->stop; k++) {
        const char *number = text(st, "%lld", (long long)(loop.start + k));
        struct frame body = {.up = f, .outer = f, .table = st->n_tables++, .x = loop.x, .prev = loop.x};
        body.prefix = joined(st, scope, number);
        body.env = loop_env(st, f, &loop, loop.start + k);
        if (outermost)
            st->index = (int)k;
        expand_body(st, &body, node->first);
        loop.x = body.prev;
        if (!step(st, f, node))
            break;
        if (loop.x && !mpp_model_names_find(&st->names, MPP_MODEL_NAMES_FULL, body.prefix))
            mpp_model_names_put(&st->names, MPP_MODEL_NAMES_FULL, body.prefix, loop.x, node->loc.line);
    }
    st->repeat_depth--;
    if (outermost) {
        st->repeat = st->index = -1;
        st->repeat_name = NULL;
    }
    f->prev = loop.x;
    if (*loop.name && loop.x)
        declare(st, f, node, loop.name, loop.x);
}

/* ---- bodies ---- */

/* The value of test=; false after a report too. */
static bool holds(struct state *st, struct frame *f, const struct mpp_xml *node, const char *test)
{
    struct mpp_eval ev = at(st, f, node, "test");
    bool wanted = false;
    st->bytes += cost_of(test);
    return mpp_eval_bool(&ev, test, &wanted) && wanted;
}

static void expand_element(struct state *st, struct frame *f, const struct mpp_xml *node)
{
    if (strcmp(node->name, "if") == 0)
        expand_body(st, f, node->first);
    else if (strcmp(node->name, "call") == 0)
        expand_call(st, f, node);
    else if (strcmp(node->name, "repeat") == 0)
        expand_repeat(st, f, node);
    else
        expand_op(st, f, node);
}

static void expand_body(struct state *st, struct frame *f, const struct mpp_xml *first)
{
    st->nesting++;
    for (const struct mpp_xml *c = first; c && step(st, f, c); c = c->next) {
        const char *test = mpp_xml_get(c, "test");
        int before = st->r->faults;
        if (!test || holds(st, f, c, test))
            expand_element(st, f, c);
        if (st->r->faults != before)
            faulty(st, c, true);
    }
    st->nesting--;
}

/* ---- what can be checked before expansion, once per element ---- */

static void check_scope(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_eval ev = mpp_reader_at(r, node, NULL);
    const char *name = mpp_xml_get(node, "name");
    if (name && *name && !good_name(name))
        bad_name(&ev, name);
}

static void check_call(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_eval ev = mpp_reader_at(r, node, NULL);
    const char *name = mpp_xml_get(node, "block");
    mpp_check_leaf(&ev, node);
    check_scope(r, node);
    if (!name) {
        mpp_eval_error(&ev, "<call> needs the attribute \"block\"");
        return;
    }
    const struct mpp_block *block = find_block(r, name);
    if (!block) {
        const char **names = mpp_arena_array(r->arena, r->n_blocks, const char *);
        for (int i = 0; i < r->n_blocks; i++)
            names[i] = r->blocks[i].name;
        if (!r->incomplete)
            mpp_eval_error(&ev, "no block \"%.80s\"%s", name, mpp_diag_hint(r->diag, name, names, r->n_blocks));
        return;
    }
    const char *list = "name block in test";
    for (const struct mpp_xml *a = block->xml->first; a && strcmp(a->name, "arg") == 0; a = a->next) {
        const char *arg = mpp_xml_get(a, "name");
        if (arg)
            list = mpp_arena_printf(r->arena, "%s %s%s", list, arg, mpp_xml_get(a, "default") ? "" : "*");
    }
    mpp_check_attrs(&ev, node, list);
}

static void check_body(struct mpp_reader *r, const struct mpp_xml *first)
{
    for (const struct mpp_xml *c = first; c; c = c->next) {
        struct mpp_eval ev = mpp_reader_at(r, c, NULL);
        if (strcmp(c->name, "call") == 0) {
            check_call(r, c);
        } else if (strcmp(c->name, "repeat") == 0) {
            const char *index = mpp_xml_get(c, "index");
            mpp_check_attrs(&ev, c, "name count* start index in test");
            if (index && !mpp_is_identifier(index))
                mpp_eval_error(&ev, "index=\"%.80s\" is not a name: letters, digits and _", index);
            check_scope(r, c);
            check_body(r, c->first);
        } else if (strcmp(c->name, "if") == 0) {
            mpp_check_attrs(&ev, c, "test*");
            check_body(r, c->first);
        } else if (isupper((unsigned char)c->name[0])) {
            mpp_check_leaf(&ev, c);
        } else if (strcmp(c->name, "arg") == 0) {
            mpp_eval_error(&ev, "<arg> must stand in a block, before its ops");
        } else {
            mpp_unexpected_element(&ev, c, "call repeat if");
            mpp_diag_note(r->diag, "an op's name starts with a capital letter");
        }
    }
}

static void check_block(struct mpp_reader *r, const struct mpp_block *block)
{
    struct mpp_eval whole = mpp_reader_at(r, block->xml, NULL);
    if (!mpp_check_count(&whole, block->xml, "arg", MPP_MAX_ARGS))
        return;
    for (const struct mpp_xml *c = block->xml->first; c && strcmp(c->name, "arg") == 0; c = c->next) {
        struct mpp_eval ev = mpp_reader_at(r, c, NULL);
        const char *name = mpp_xml_get(c, "name"), *type = mpp_xml_get(c, "type");
        enum mpp_value_type unused;
        mpp_check_attrs(&ev, c, "name* type* default");
        mpp_check_leaf(&ev, c);
        ev.what = "type";
        if (type)
            mpp_check_type(&ev, type, &unused);
        if (!name)
            continue;
        if (!mpp_is_identifier(name) || strcmp(name, "name") == 0 || strcmp(name, "block") == 0 ||
            strcmp(name, "in") == 0 || strcmp(name, "test") == 0 || strcmp(name, "true") == 0 ||
            strcmp(name, "false") == 0)
            mpp_eval_error(&ev, "\"%.80s\" can't be an argument's name", name);
        for (const struct mpp_xml *o = block->xml->first; o != c; o = o->next) {
            const char *other = mpp_xml_get(o, "name");
            if (other && strcmp(other, name) == 0)
                mpp_eval_error(&ev, "a second argument \"%s\"", name);
        }
    }
    check_body(r, first_op(block));
}

/* ---- the graph ---- */

static void resolve_loss(struct state *st, struct frame *top, const struct mpp_xml *training)
{
    struct mpp_eval ev = mpp_reader_attr(st->r, training, st->r->globals, "loss");
    const char *loss = mpp_xml_get(training, "loss");
    if (!loss)
        return;
    const char *value = resolve(st, top, &ev, loss);
    if (value && mpp_model_names_get(&st->names, MPP_MODEL_NAMES_INPUTS, loss) == value)
        mpp_eval_error(&ev, "loss=\"%s\" is an input", loss);
    st->r->model->training.loss = value;
}

void mpp_expand_graph(struct mpp_reader *r, const struct mpp_xml *graph, const struct mpp_xml *training)
{
    int before = r->faults;
    struct mpp_eval ev = mpp_reader_at(r, graph, r->globals);
    mpp_check_attrs(&ev, graph, "");
    for (int i = 0; i < r->n_blocks; i++)
        check_block(r, &r->blocks[i]);
    check_body(r, graph->first);
    if (r->faults != before || r->incomplete)
        return;
    struct state st = {.r = r, .names = {.arena = r->arena}, .scratch = {.arena = r->arena},
                       .n_tables = MPP_MODEL_NAMES_FIRST_SCOPE, .repeat = -1, .index = -1};
    for (int i = 0; i < r->model->n_inputs; i++) {
        const struct mpp_model_input *in = &r->model->inputs[i];
        mpp_model_names_put(&st.names, MPP_MODEL_NAMES_INPUTS, in->name, in->name, in->loc.line);
        mpp_model_names_put(&st.names, MPP_MODEL_NAMES_FULL, in->name, in->name, in->loc.line);
    }
    struct frame top = {.table = st.n_tables++, .prefix = "", .env = r->globals};
    expand_body(&st, &top, graph->first);
    if (r->model->n_items == 0 && r->faults == before)
        mpp_eval_error(&ev, "the graph has no op");
    if (training && r->faults == before)
        resolve_loss(&st, &top, training);
}
