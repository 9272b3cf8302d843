/* xml.h - untrusted XML as a small tree; the only user of libxml2.
 *
 *     struct mpp_xml *root;
 *     MPP_TRY(mpp_xml_read(arena, diag, "gpt.xml", &root));
 *     for (const struct mpp_xml *c = root->first; c; c = c->next) ...
 *
 * Refuses DOCTYPE, entities beyond the five predefined ones, network access, files over 64 MiB, encodings other
 * than UTF-8, elements of over 1000 attributes and nesting over 256; comments and white space are dropped; text inside elements is an error
 * (no format here uses it). Lines are exact. */
#ifndef MPP_XML_H
#define MPP_XML_H

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"

struct mpp_xml_attr {
    const char *name, *value;
};

struct mpp_xml {
    const char *name;
    struct mpp_loc loc;                /* file as given, line of the start tag */
    int n_attrs;
    struct mpp_xml_attr *attrs;        /* in document order */
    struct mpp_xml *first, *next, *parent;
};

/* Read the file at PATH into a tree in ARENA; *OUT_ROOT is its root element. MPP_INVALID
 * after one diagnostic at the first fault (PATH:line). */
enum mpp_status mpp_xml_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                             struct mpp_xml **out_root) MPP_CHECKED;

/* As above, for a file that is named at LOC, which is blamed when it cannot be read. */
enum mpp_status mpp_xml_read_at(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_loc loc,
                                struct mpp_xml **out_root) MPP_CHECKED;

/* As above, from SIZE bytes of memory; NAME stands in messages. */
enum mpp_status mpp_xml_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, const char *text,
                              size_t size, struct mpp_xml **out_root) MPP_CHECKED;

/* The value of attribute NAME of NODE, or NULL. */
const char *mpp_xml_get(const struct mpp_xml *node, const char *name);

#endif
