/* links: ir */
/* Expressions, lists of sizes, calls and attribute specifications; what is accepted reads back from its normal form. */
#include <stdio.h>
#include <string.h>

#include "fuzz_promises.h"
#include "ir/expr.h"

static const struct mpp_binding names[] = {
    {.name = "batch", .text = "batch", .value = {.type = MPP_VALUE_INT, .i = 8, .batch = MPP_BATCH_LINEAR, .per_batch = 1}},
    {.name = "hidden", .text = "hidden", .value = {.type = MPP_VALUE_INT, .i = 768}},
    {.name = "big", .text = "big", .value = {.type = MPP_VALUE_INT, .i = INT64_MAX}},
    {.name = "small", .text = "small", .value = {.type = MPP_VALUE_INT, .i = INT64_MIN + 1}},
    {.name = "lr", .text = "lr", .value = {.type = MPP_VALUE_FLOAT, .f = 1e-3}},
    {.name = "on", .text = "on", .value = {.type = MPP_VALUE_BOOL, .i = 1}},
    {.name = "kind", .text = "kind", .value = {.type = MPP_VALUE_STRING, .s = "gelu"}},
};

static void read_back(const struct mpp_eval *ev, const char *norm, const struct mpp_value *v)
{
    struct mpp_value again;
    fuzz_must(mpp_eval_value(ev, norm, &again, NULL), "the normal form is an expression");
    fuzz_must(again.type == v->type && again.batch == v->batch, "the normal form has the type");
    if (v->type == MPP_VALUE_INT || v->type == MPP_VALUE_BOOL)
        fuzz_must(again.i == v->i && (v->batch != MPP_BATCH_LINEAR || again.per_batch == v->per_batch),
                  "the normal form has the value");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    const char *text = mpp_arena_strndup(arena, (const char *)data, n), *norm = NULL;
    const struct mpp_env env = {.n = sizeof names / sizeof *names, .bind = names};
    int faults = 0;
    for (int k = 0; k < 8; k++) {
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_eval ev = {.arena = arena, .diag = diag, .env = &env, .loc = {"file", 1}, .what = "attr", .faults = &faults};
        struct mpp_value v;
        struct mpp_size *sizes;
        int64_t i, *ints;
        double f;
        bool b, ok;
        int count;
        const char *called;
        switch (k) {
        case 0:
            ok = mpp_eval_value(&ev, text, &v, &norm);
            if (ok)
                read_back(&ev, norm, &v);
            break;
        case 1:
            ok = mpp_eval_int(&ev, text, -5, 1 << 20, &i);
            fuzz_must(!ok || (i >= -5 && i <= 1 << 20), "a number in its range");
            break;
        case 2:
            ok = mpp_eval_float(&ev, text, &f);
            fuzz_must(!ok || f - f == 0, "a finite number");
            break;
        case 3:
            ok = mpp_eval_bool(&ev, text, &b);
            break;
        case 4:
            ok = mpp_eval_ints(&ev, text, &count, &ints);
            break;
        case 5:
            ok = mpp_eval_sizes(&ev, text, MPP_SIZES_POSITIVE, &count, &sizes);
            for (int d = 0; ok && d < count; d++)
                fuzz_must(sizes[d].size >= 1 && sizes[d].size <= MPP_SIZE_MAX && sizes[d].per_batch >= 0, "a size in its range");
            break;
        case 6:
            ok = mpp_eval_sizes(&ev, text, MPP_SIZES_ANY, &count, &sizes);
            break;
        default:
            ok = mpp_eval_call(&ev, text, &called);
            break;
        }
        fuzz_promises(ok ? MPP_OK : MPP_INVALID, diag);
        mpp_diag_free(diag);
    }
    mpp_arena_free(arena);
    return 0;
}
