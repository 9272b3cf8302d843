#include "ir/xml.h"

#include <libxml/SAX2.h>
#include <libxml/parser.h>
#include <libxml/parserInternals.h>
#include <libxml/xmlerror.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

#include "ir/infile.h"
#include "ir/xml_scan.h"

/* Options that are measured to be safe with libxml2 2.9.14: HUGE would switch its guard against entity
 * bombs off, NOENT and the DTD options would load and expand what the file names. */
enum { PARSE_OPTIONS = XML_PARSE_NONET | XML_PARSE_BIG_LINES };
enum { MAX_FILE_BYTES = 64 << 20, MAX_DEPTH = 256 };

struct reader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *file;
    struct mpp_xml *root, *open; /* open: the element whose end tag has not come */
    struct mpp_xml **tail;       /* where the next child of `open` hangs */
    int depth;
    bool failed, no_memory, well_formed;
};

static struct reader *reader_of(void *ctx)
{
    return ((xmlParserCtxtPtr)ctx)->_private;
}

/* libxml2 must not be left by longjmp, so memory that is out while it calls us is noted and reported later. */
#define GUARDED(ctx, body)                                            \
    do {                                                              \
        struct reader *reader_ = reader_of(ctx);                      \
        jmp_buf here_, *before_ = mpp_arena_catch(reader_->arena, &here_); \
        if (setjmp(here_) == 0)                                       \
            body;                                                     \
        else                                                          \
            stop_without_memory(ctx);                                 \
        mpp_arena_catch(reader_of(ctx)->arena, before_);              \
    } while (0)

static void stop_without_memory(void *ctx)
{
    reader_of(ctx)->failed = reader_of(ctx)->no_memory = true;
    xmlStopParser(ctx);
}

/* Report the first fault and stop; what libxml2 says afterwards only follows from it. */
static void fail(xmlParserCtxtPtr ctxt, int line, const char *what)
{
    struct reader *r = ctxt->_private;
    if (!r->failed)
        mpp_diag_error(r->diag, (struct mpp_loc){r->file, line}, "%s", what);
    r->failed = true;
    xmlStopParser(ctxt);
}

static void take_error(xmlParserCtxtPtr ctxt, const xmlError *err)
{
    struct reader *r = ctxt->_private;
    if (err->code == XML_ERR_NO_MEMORY)
        r->failed = r->no_memory = true;
    if (r->failed || err->level < XML_ERR_ERROR)
        return;
    const char *text = err->message ? err->message : "not well-formed XML";
    size_t len = strlen(text);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' '))
        len--;
    fail(ctxt, err->line, mpp_arena_strndup(r->arena, text, len));
}

static void on_error(void *ctx, xmlErrorPtr err)
{
    GUARDED(ctx, take_error(ctx, err));
}

/* What parts of libxml2 say that know no parser. */
static void on_stray_error(void *reader, xmlErrorPtr err)
{
    struct reader *r = reader;
    r->no_memory = r->no_memory || err->code == XML_ERR_NO_MEMORY;
}

static void on_doctype(void *ctx, const xmlChar *name, const xmlChar *external, const xmlChar *system)
{
    (void)name;
    (void)external;
    (void)system;
    xmlParserCtxtPtr ctxt = ctx;
    GUARDED(ctx, fail(ctxt, ctxt->input ? ctxt->input->line : 0, "a DOCTYPE is not allowed; remove it"));
}

/* The line of the `<` that opens the tag just parsed: libxml2 stands at the tag's end. */
static int tag_line(const xmlParserInput *in)
{
    int line = in->line;
    for (const xmlChar *p = in->cur; p > in->base && *p != '<'; p--)
        line -= p[-1] == '\n';
    return line;
}

/* libxml2 hands over `&` of attribute values as "&#38;" (entities are not replaced): undo it. */
static const char *attribute_value(struct mpp_arena *arena, const xmlChar *begin, const xmlChar *end)
{
    char *value = mpp_arena_strndup(arena, (const char *)begin, (size_t)(end - begin));
    char *to = value;
    for (const char *from = value; *from; to++) {
        bool amp = strncmp(from, "&#38;", 5) == 0;
        *to = amp ? '&' : *from;
        from += amp ? 5 : 1;
    }
    *to = '\0';
    return value;
}

static const char *qualified(struct mpp_arena *arena, const xmlChar *prefix, const xmlChar *local)
{
    return prefix ? mpp_arena_printf(arena, "%s:%s", (const char *)prefix, (const char *)local)
                  : mpp_arena_strdup(arena, (const char *)local);
}

static void take_start(xmlParserCtxtPtr ctxt, const xmlChar *local, const xmlChar *prefix, int n_attrs, const xmlChar **attrs)
{
    struct reader *r = ctxt->_private;
    if (r->failed)
        return;
    int line = tag_line(ctxt->input);
    if (++r->depth > MAX_DEPTH) {
        fail(ctxt, line, mpp_arena_printf(r->arena, "elements are nested over %d deep", MAX_DEPTH));
        return;
    }
    struct mpp_xml *node = mpp_arena_array(r->arena, 1, struct mpp_xml);
    node->name = qualified(r->arena, prefix, local);
    node->loc = (struct mpp_loc){r->file, line};
    node->parent = r->open;
    node->n_attrs = n_attrs;
    node->attrs = mpp_arena_array(r->arena, n_attrs, struct mpp_xml_attr);
    for (int i = 0; i < n_attrs; i++) {
        const xmlChar **a = attrs + 5 * i; /* local name, prefix, URI, value, end of value */
        node->attrs[i].name = qualified(r->arena, a[1], a[0]);
        node->attrs[i].value = attribute_value(r->arena, a[3], a[4]);
    }
    if (!r->root)
        r->root = node;
    else if (r->tail)
        *r->tail = node;
    r->open = node;
    r->tail = &node->first;
}

static void on_start(void *ctx, const xmlChar *local, const xmlChar *prefix, const xmlChar *uri, int n_namespaces,
                     const xmlChar **namespaces, int n_attrs, int n_defaulted, const xmlChar **attrs)
{
    (void)uri;
    (void)n_namespaces;
    (void)namespaces;
    (void)n_defaulted;
    GUARDED(ctx, take_start(ctx, local, prefix, n_attrs, attrs));
}

static void on_end(void *ctx, const xmlChar *local, const xmlChar *prefix, const xmlChar *uri)
{
    (void)local;
    (void)prefix;
    (void)uri;
    struct reader *r = reader_of(ctx);
    if (r->failed || !r->open)
        return;
    r->tail = &r->open->next;
    r->open = r->open->parent;
    r->depth--;
}

static void take_text(xmlParserCtxtPtr ctxt, const xmlChar *text, int len)
{
    struct reader *r = ctxt->_private;
    if (r->failed)
        return;
    int lines = 0, i = 0;
    while (i < len && strchr(" \t\r\n", text[i]))
        i++;
    if (i == len)
        return;
    for (int k = i; k < len; k++)
        lines += text[k] == '\n';
    int n = 0;
    while (i + n < len && n < 24 && !strchr(" \t\r\n", text[i + n]))
        n++;
    while (n > 0 && n < len - i && (text[i + n] & 0xc0) == 0x80) /* not inside a UTF-8 character */
        n--;
    int line = ctxt->input ? ctxt->input->line - lines : 0;
    fail(ctxt, line, mpp_arena_printf(r->arena, "text (\"%.*s\") inside <%s>; values stand in attributes", n,
                                      (const char *)text + i, r->open ? r->open->name : "?"));
}

static void on_text(void *ctx, const xmlChar *text, int len)
{
    GUARDED(ctx, take_text(ctx, text, len));
}

static void take_reference(xmlParserCtxtPtr ctxt, const xmlChar *name)
{
    struct reader *r = ctxt->_private;
    fail(ctxt, ctxt->input ? ctxt->input->line : 0,
         mpp_arena_printf(r->arena, "entity &%s; is not allowed", (const char *)name));
}

static void on_reference(void *ctx, const xmlChar *name)
{
    GUARDED(ctx, take_reference(ctx, name));
}

static xmlParserInputPtr refuse_entity(const char *url, const char *id, xmlParserCtxtPtr ctxt)
{
    (void)url;
    (void)id;
    (void)ctxt;
    return NULL;
}

static void install_handlers(xmlParserCtxtPtr ctxt, struct reader *r)
{
    ctxt->_private = r;
    ctxt->userData = ctxt;
    xmlSAXHandler *sax = ctxt->sax;
    memset(sax, 0, sizeof *sax);
    sax->initialized = XML_SAX2_MAGIC;
    sax->internalSubset = on_doctype;
    sax->externalSubset = on_doctype;
    sax->startElementNs = on_start;
    sax->endElementNs = on_end;
    sax->characters = on_text;
    sax->ignorableWhitespace = on_text;
    sax->cdataBlock = on_text;
    sax->reference = on_reference;
    sax->serror = on_error;
}

/* Nothing in here leaves by longjmp, so libxml2's objects are always freed. */
static void run_parser(struct reader *r, const char *text, int size)
{
    xmlStructuredErrorFunc stray = xmlStructuredError;
    void *stray_info = xmlStructuredErrorContext;
    xmlSetStructuredErrorFunc(r, on_stray_error);
    xmlParserCtxtPtr ctxt = xmlNewParserCtxt();
    if (ctxt) {
        install_handlers(ctxt, r);
        xmlExternalEntityLoader before = xmlGetExternalEntityLoader();
        xmlSetExternalEntityLoader(refuse_entity);
        xmlFreeDoc(xmlCtxtReadMemory(ctxt, text, size, NULL, NULL, PARSE_OPTIONS));
        xmlSetExternalEntityLoader(before);
        r->well_formed = ctxt->wellFormed;
        r->no_memory = r->no_memory || ctxt->errNo == XML_ERR_NO_MEMORY;
        xmlFreeParserCtxt(ctxt);
    }
    r->no_memory = r->no_memory || !ctxt;
    xmlSetStructuredErrorFunc(stray_info, stray);
}

enum mpp_status mpp_xml_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, const char *text,
                              size_t size, struct mpp_xml **out_root)
{
    struct reader r = {.arena = arena, .diag = diag, .file = mpp_arena_strdup(arena, name)};
    *out_root = NULL;
    if (size > MAX_FILE_BYTES) {
        mpp_diag_error(diag, (struct mpp_loc){r.file, 0}, "the file is over %d MiB", MAX_FILE_BYTES >> 20);
        return MPP_INVALID;
    }
    if (size == 0) {
        mpp_diag_error(diag, (struct mpp_loc){r.file, 0}, "the file is empty");
        return MPP_INVALID;
    }
    int line;
    const char *fault = mpp_xml_scan(arena, text, size, &line);
    if (fault) {
        mpp_diag_error(diag, (struct mpp_loc){r.file, line}, "%s", fault);
        return MPP_INVALID;
    }
    run_parser(&r, text, (int)size);
    if (r.no_memory)
        mpp_arena_fail(arena, 0);
    if (!r.failed && (!r.well_formed || !r.root || r.open)) {
        mpp_diag_error(diag, (struct mpp_loc){r.file, 0}, "not well-formed XML");
        r.failed = true;
    }
    *out_root = r.failed ? NULL : r.root;
    return r.failed ? MPP_INVALID : MPP_OK;
}

enum mpp_status mpp_xml_read_at(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_loc loc,
                                struct mpp_xml **out_root)
{
    *out_root = NULL;
    size_t size = 0;
    const char *why = NULL;
    char *text = mpp_infile_read(arena, path, MAX_FILE_BYTES >> 20, &size, &why);
    if (!text) {
        mpp_diag_error(diag, loc, "cannot read %.300s: %s", path, why);
        return MPP_INVALID;
    }
    return mpp_xml_parse(arena, diag, path, text, size, out_root);
}

enum mpp_status mpp_xml_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                             struct mpp_xml **out_root)
{
    return mpp_xml_read_at(arena, diag, path, (struct mpp_loc){NULL, 0}, out_root);
}

const char *mpp_xml_get(const struct mpp_xml *node, const char *name)
{
    for (int i = 0; i < node->n_attrs; i++) {
        if (strcmp(node->attrs[i].name, name) == 0)
            return node->attrs[i].value;
    }
    return NULL;
}
