/* words.c - shardings, meshes, times and bytes in words. */
#include "inspect/words.h"

#include <string.h>

#include "codegen/report_internal.h"
#include "inspect/account.h"

struct axis_use {
    const char *what[MPP_MAX_AXES]; /* of each axis; NULL: nothing */
};

static const char *words_of(struct mpp_arena *arena, const struct mpp_mesh *mesh, const struct axis_use *use)
{
    struct mpp_text s = {.arena = arena};
    unsigned done = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        unsigned mask = 0;
        if (!use->what[a] || mesh->size[a] == 1 || (done >> a & 1))
            continue;
        for (int b = a; b < mesh->n_axes; b++)
            mask |= use->what[b] && mesh->size[b] > 1 && strcmp(use->what[a], use->what[b]) == 0 ? 1u << b : 0;
        done |= mask;
        mpp_text_add(&s, "%s%s over %s", s.n ? ", " : "", use->what[a], mpp_account_axes(arena, mesh, mask));
    }
    return s.n ? mpp_text_string(&s) : "whole";
}

const char *mpp_words_split(struct mpp_arena *arena, const struct mpp_group *group, const struct mpp_mesh *mesh, struct mpp_split split)
{
    struct axis_use use = {{NULL}};
    for (int a = 0; a < mesh->n_axes; a++) {
        int f = split.axis[a];
        const char *name = f >= 0 ? group->rule->factor[f].size.name : NULL;
        use.what[a] = f == MPP_PARTIAL ? "partial sums" : f == MPP_WHOLE ? NULL : name ? name : "rows";
    }
    return words_of(arena, mesh, &use);
}

const char *mpp_words_sharding(struct mpp_arena *arena, const struct mpp_gtensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s)
{
    struct axis_use use = {{NULL}};
    for (int a = 0; a < mesh->n_axes; a++) {
        int d = s.axis[a];
        use.what[a] = d == MPP_PARTIAL ? "partial sums" : d == MPP_WHOLE ? NULL
                      : t->dims[d].name ? t->dims[d].name : mpp_arena_printf(arena, "dimension %d", d);
    }
    return words_of(arena, mesh, &use);
}

const char *mpp_words_any_layer(struct mpp_arena *arena, const char *name, const char *repeat, int index)
{
    if (!repeat || index < 0)
        return name;
    const char *part = mpp_arena_printf(arena, "%s.%d", repeat, index), *at = strstr(name, part);
    size_t n = strlen(part);
    if (!at || (at > name && at[-1] != '.') || (at[n] && at[n] != '.'))
        return name;
    return mpp_arena_printf(arena, "%.*s%s.*%s", (int)(at - name), name, repeat, at + n);
}

const char *mpp_words_mesh(struct mpp_arena *arena, const struct mpp_mesh *mesh)
{
    struct mpp_text s = {.arena = arena};
    for (int a = 0; a < mesh->n_axes; a++)
        if (mesh->size[a] > 1)
            mpp_text_add(&s, "%s%s %d", s.n ? " x " : "", mesh->name[a] ? mesh->name[a] : "", mesh->size[a]);
    return s.n ? mpp_text_string(&s) : "one device";
}

const char *mpp_words_time(struct mpp_arena *arena, int64_t ps)
{
    return ps == 0 ? "0" : mpp_report_seconds(arena, (double)ps * 1e-12);
}

const char *mpp_words_signed_time(struct mpp_arena *arena, int64_t ps)
{
    return ps == 0 ? "0" : mpp_arena_printf(arena, "%c%s", ps < 0 ? '-' : '+', mpp_words_time(arena, ps < 0 ? -ps : ps));
}

const char *mpp_words_signed_bytes(struct mpp_arena *arena, int64_t bytes)
{
    return bytes == 0 ? "0" : mpp_arena_printf(arena, "%c%s", bytes < 0 ? '-' : '+', mpp_emit_bytes_text(arena, bytes < 0 ? -bytes : bytes));
}
