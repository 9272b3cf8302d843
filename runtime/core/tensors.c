/* tensors.c - names of repeated layers; walking a rank's block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensors.h"

static char *name_of(const struct mpp_tensor *t, int instance)
{
    const char *mark = t->count > 0 ? strstr(t->name, "%d") : NULL;
    if (mark == NULL)
        return strdup(t->name);
    char *name;
    if (asprintf(&name, "%.*s%d%s", (int)(mark - t->name), t->name, t->first + instance, mark + 2) < 0)
        return NULL;
    return name;
}

static int count_named(const struct mpp_stage *stage, enum mpp_tensor_kind kind)
{
    int n = 0;
    for (int i = 0; i < stage->n_tensors; i++)
        if (stage->tensors[i].kind == kind)
            n += stage->tensors[i].count > 0 ? stage->tensors[i].count : 1;
    return n;
}

/* Appends to NAMED; false: out of memory. */
static bool add_named(const struct mpp_stage *stage, int index, enum mpp_tensor_kind kind, struct mpp_named *named, int *n)
{
    for (int i = 0; i < stage->n_tensors; i++) {
        const struct mpp_tensor *t = &stage->tensors[i];
        if (t->kind != kind)
            continue;
        int64_t count = 1;
        for (int d = 0; d < t->n_dims; d++)
            count *= t->dims[d];
        for (int k = 0; k < (t->count > 0 ? t->count : 1); k++) {
            named[*n] = (struct mpp_named){t, name_of(t, k), t->offset + k * t->stride, count, index};
            if (named[(*n)++].name == NULL)
                return false;
        }
    }
    return true;
}

static int out_of_memory(struct mpp_named *named, int n, struct mpp_error *error)
{
    mpp_named_free(named, n);
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
}

int mpp_named_list(const struct mpp_stage *stage, enum mpp_tensor_kind kind, struct mpp_named **named_out, int *n_out,
                   struct mpp_error *error)
{
    struct mpp_named *named = calloc((size_t)count_named(stage, kind) + 1, sizeof *named);
    int n = 0;
    if (named == NULL || !add_named(stage, 0, kind, named, &n))
        return out_of_memory(named, n, error);
    *named_out = named;
    *n_out = n;
    return MPP_EXIT_OK;
}

/* By name, then as they stand. */
static int compare_named(const void *a, const void *b)
{
    const struct mpp_named *x = *(const struct mpp_named *const *)a, *y = *(const struct mpp_named *const *)b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x > y) - (x < y);
}

/* Removes all but the first of each name. */
static bool leave_first(struct mpp_named *named, int *n)
{
    struct mpp_named **sorted = calloc((size_t)*n + 1, sizeof *sorted);
    int kept = 0;
    if (sorted == NULL)
        return false;
    for (int i = 0; i < *n; i++)
        sorted[i] = &named[i];
    qsort(sorted, (size_t)*n, sizeof(struct mpp_named *), compare_named);
    for (int i = *n - 1; i > 0; i--) /* from the last, so that the name to compare with is there */
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0) {
            free(sorted[i]->name);
            sorted[i]->name = NULL;
        }
    for (int i = 0; i < *n; i++)
        if (named[i].name != NULL)
            named[kept++] = named[i];
    free(sorted);
    *n = kept;
    return true;
}

int mpp_named_union(const struct mpp_program *program, enum mpp_tensor_kind kind, struct mpp_named **named_out, int *n_out,
                    struct mpp_error *error)
{
    int total = 0, n = 0;
    for (int s = 0; s < program->n_stages; s++)
        total += count_named(program->stages[s], kind);
    struct mpp_named *named = calloc((size_t)total + 1, sizeof *named);
    bool ok = named != NULL;
    for (int s = 0; ok && s < program->n_stages; s++)
        ok = add_named(program->stages[s], s, kind, named, &n);
    if (!ok || (program->n_stages > 1 && !leave_first(named, &n)))
        return out_of_memory(named, n, error);
    *named_out = named;
    *n_out = n;
    return MPP_EXIT_OK;
}

void mpp_named_free(struct mpp_named *named, int n)
{
    for (int i = 0; named != NULL && i < n; i++)
        free(named[i].name);
    free(named);
}

struct mpp_block mpp_block_of(const struct mpp_rank *r, const struct mpp_tensor *tensor)
{
    struct mpp_block b = {.n_dims = tensor->n_dims, .padded_count = 1, .owner = true};
    unsigned splits = 0;
    for (int d = 0; d < tensor->n_dims; d++) {
        b.dim[d] = mpp_extent_of(r, tensor->dims[d], tensor->split[d]);
        b.padded_count *= b.dim[d].padded;
        splits |= tensor->split[d];
    }
    for (int a = 0; a < r->n_axes; a++)
        if (!(splits >> a & 1) && r->coord[a] != 0)
            b.owner = false;
    return b;
}

bool mpp_block_next(const struct mpp_block *block, struct mpp_run *run)
{
    /* Trailing dimensions that are whole here make one run with the last dimension that is not. */
    int inner = block->n_dims;
    int64_t whole = 1;
    while (inner > 0 && block->dim[inner - 1].valid == block->dim[inner - 1].global &&
           block->dim[inner - 1].padded == block->dim[inner - 1].global)
        whole *= block->dim[--inner].global;
    int last = inner - 1; /* the dimension a run lies in; -1: the whole tensor is one run */

    if (!run->started) {
        run->started = true;
        for (int d = 0; d < block->n_dims; d++)
            if (block->dim[d].valid == 0)
                return false;
    } else {
        int d = last - 1;
        while (d >= 0 && ++run->at[d] == block->dim[d].valid)
            run->at[d--] = 0;
        if (d < 0)
            return false;
    }
    run->local = run->global = 0;
    for (int d = 0; d < last; d++) {
        run->local = run->local * block->dim[d].padded + run->at[d];
        run->global = run->global * block->dim[d].global + block->dim[d].offset + run->at[d];
    }
    run->count = whole;
    if (last >= 0) {
        const struct mpp_extent *e = &block->dim[last];
        run->local = run->local * e->padded * whole;
        run->global = (run->global * e->global + e->offset) * whole;
        run->count = e->valid * whole;
    }
    return true;
}
