/* figures.c - the figures that costs rest on, with where each is from. */
#include <stdbool.h>
#include <string.h>

#include "costmodel/costmodel.h"
#include "costmodel/embed.h"
#include "ir/xml.h"

struct list {
    struct mpp_arena *arena;
    const char *file;
    struct mpp_figure *figure;
    int n;
    size_t cap;
};

/* NODE's attributes in words, but for its name and source. */
static const char *value_of(struct mpp_arena *arena, const struct mpp_xml *node)
{
    const char *text = "";
    for (int i = 0; i < node->n_attrs; i++)
        if (strcmp(node->attrs[i].name, "source") != 0)
            text = mpp_arena_printf(arena, "%s%s%s %s", text, *text ? ", " : "", node->attrs[i].name, node->attrs[i].value);
    return text;
}

static void add_tree(struct list *l, const struct mpp_xml *node, const char *source)
{
    const char *own = mpp_xml_get(node, "source"), *value = value_of(l->arena, node);
    source = own ? own : source;
    if (*value) {
        l->figure = mpp_arena_grow(l->arena, l->figure, &l->cap, (size_t)l->n + 1, sizeof *l->figure);
        l->figure[l->n++] = (struct mpp_figure){l->file, node->loc.line, mpp_arena_strdup(l->arena, node->name), value, source};
    }
    for (const struct mpp_xml *c = node->first; c; c = c->next)
        add_tree(l, c, source);
}

/* The file NAME of FOLDER, among the built-in FILES; it has been read before. */
static void add_builtin(struct list *l, const struct mpp_embedded *files, const char *folder, const char *name)
{
    for (; name && files->name; files++) {
        struct mpp_xml *root;
        if (strcmp(files->name, name) != 0)
            continue;
        l->file = mpp_arena_printf(l->arena, "%s/%s.xml", folder, name);
        if (mpp_xml_parse(l->arena, mpp_diag_in(l->arena, NULL), l->file, files->text, files->size, &root) == MPP_OK)
            add_tree(l, root, NULL);
    }
}

const struct mpp_figure *mpp_cluster_figures(struct mpp_arena *arena, const struct mpp_cluster *cluster, int *out_n)
{
    static const char builtin[] = "builtin:";
    struct list l = {.arena = arena};
    *out_n = 0;
    if (!cluster->root)
        return NULL;
    const char *file = cluster->root->loc.file ? cluster->root->loc.file : "", *slash = strrchr(file, '/');
    bool own = strncmp(file, builtin, strlen(builtin)) != 0;
    l.file = !own ? file + strlen(builtin) : slash ? slash + 1 : file;
    add_tree(&l, cluster->root, NULL);
    add_builtin(&l, mpp_embedded_devices, "devices", mpp_xml_get(cluster->root, "device"));
    add_builtin(&l, mpp_embedded_tunings, "tunings", mpp_xml_get(cluster->root, "tuning"));
    *out_n = l.n;
    return l.figure;
}
