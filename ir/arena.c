#include "ir/arena.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_CHUNK_BYTES = 1 << 14, MAX_CHUNK_BYTES = 1 << 22 };

struct chunk {
    struct chunk *next;
    size_t size, used;
};

struct deferred {
    struct deferred *next;
    void (*fn)(void *);
    void *p;
};

struct mpp_arena {
    struct mpp_guard *guard;
    struct mpp_arena *newer, *older; /* of its guard */
    struct chunk *chunks;
    struct deferred *deferred;       /* the latest first */
    size_t next_size;
};

static size_t header_size(void)
{
    return (sizeof(struct chunk) + ALIGN - 1) / ALIGN * ALIGN;
}

_Noreturn static void leave(struct mpp_guard *guard, size_t wanted_bytes)
{
    assert(guard && "out of memory, and the arena has no guard");
    guard->wanted_bytes = wanted_bytes;
    longjmp(guard->caught ? *guard->caught : guard->escape, 1);
}

struct mpp_arena *mpp_arena_guarded(struct mpp_guard *guard)
{
    struct mpp_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        leave(guard, sizeof *arena);
    arena->next_size = FIRST_CHUNK_BYTES;
    arena->guard = guard;
    if (guard) {
        arena->older = guard->newest;
        if (guard->newest)
            guard->newest->newer = arena;
        guard->newest = arena;
    }
    return arena;
}

struct mpp_arena *mpp_arena_new(void)
{
    return mpp_arena_guarded(NULL);
}

struct mpp_arena *mpp_arena_scratch(const struct mpp_arena *other)
{
    return mpp_arena_guarded(other ? other->guard : NULL);
}

static void count_bytes(struct mpp_guard *guard, size_t more, size_t less)
{
    if (!guard)
        return;
    guard->bytes = guard->bytes + more - less;
    guard->most_bytes = guard->bytes > guard->most_bytes ? guard->bytes : guard->most_bytes;
}

void mpp_arena_free(struct mpp_arena *arena)
{
    if (!arena)
        return;
    for (struct deferred *d; (d = arena->deferred);) {
        arena->deferred = d->next;
        d->fn(d->p);
    }
    if (arena->newer)
        arena->newer->older = arena->older;
    else if (arena->guard)
        arena->guard->newest = arena->older;
    if (arena->older)
        arena->older->newer = arena->newer;
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        count_bytes(arena->guard, 0, c->size);
        free(c);
    }
    free(arena);
}

void mpp_guard_free(struct mpp_guard *guard)
{
    while (guard->newest)
        mpp_arena_free(guard->newest);
}

void mpp_arena_fail(struct mpp_arena *arena, size_t wanted_bytes)
{
    leave(arena->guard, wanted_bytes);
}

jmp_buf *mpp_arena_catch(struct mpp_arena *arena, jmp_buf *here)
{
    jmp_buf *before = arena->guard ? arena->guard->caught : NULL;
    if (arena->guard)
        arena->guard->caught = here;
    return before;
}

/* SIZE zeroed bytes, or NULL. */
static void *try_alloc(struct mpp_arena *arena, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size_t need = size ? (size + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    struct chunk *c = arena->chunks;
    if (!c || c->size - c->used < need) {
        size_t chunk_size = need > arena->next_size ? need : arena->next_size;
        c = calloc(1, header_size() + chunk_size);
        if (!c)
            return NULL;
        c->size = chunk_size;
        count_bytes(arena->guard, chunk_size, 0);
        if (arena->chunks && need > arena->next_size) {
            /* A large block of its own goes behind the current chunk, which still has room. */
            c->next = arena->chunks->next;
            arena->chunks->next = c;
        } else {
            c->next = arena->chunks;
            arena->chunks = c;
        }
        if (arena->next_size < MAX_CHUNK_BYTES)
            arena->next_size *= 2;
    }
    void *p = (char *)c + header_size() + c->used;
    c->used += need;
    return p;
}

void *mpp_arena_alloc(struct mpp_arena *arena, size_t size)
{
    void *p = try_alloc(arena, size);
    if (!p)
        leave(arena->guard, size);
    return p;
}

void mpp_arena_defer(struct mpp_arena *arena, void (*fn)(void *), void *p)
{
    struct deferred *d = try_alloc(arena, sizeof *d);
    if (!d) {
        fn(p);
        leave(arena->guard, sizeof *d);
    }
    *d = (struct deferred){arena->deferred, fn, p};
    arena->deferred = d;
}

void *mpp_arena_calloc(struct mpp_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        leave(arena->guard, SIZE_MAX);
    return mpp_arena_alloc(arena, bytes);
}

char *mpp_arena_strndup(struct mpp_arena *arena, const char *s, size_t len)
{
    char *copy = mpp_arena_alloc(arena, len + 1);
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *mpp_arena_strdup(struct mpp_arena *arena, const char *s)
{
    return mpp_arena_strndup(arena, s, strlen(s));
}

void *mpp_arena_memdup(struct mpp_arena *arena, const void *p, size_t size)
{
    void *copy = mpp_arena_alloc(arena, size);
    if (size)
        memcpy(copy, p, size);
    return copy;
}

char *mpp_arena_vprintf(struct mpp_arena *arena, const char *fmt, va_list ap)
{
    char some[256];
    va_list again;
    va_copy(again, ap);
    int len = vsnprintf(some, sizeof some, fmt, ap);
    char *s = len < 0 ? NULL : try_alloc(arena, (size_t)len + 1);
    if (s && len < (int)sizeof some)
        memcpy(s, some, (size_t)len + 1);
    else if (s)
        len = vsnprintf(s, (size_t)len + 1, fmt, again);
    va_end(again);
    if (!s || len < 0)            /* libc's own memory for wide numbers counts as well */
        leave(arena->guard, len < 0 ? 0 : (size_t)len + 1);
    return s;
}

char *mpp_arena_printf(struct mpp_arena *arena, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = mpp_arena_vprintf(arena, fmt, ap);
    va_end(ap);
    return s;
}

void *mpp_arena_grow(struct mpp_arena *arena, void *ptr, size_t *cap, size_t need, size_t elem_size)
{
    if (need <= *cap)
        return ptr;
    size_t cap_new = *cap ? *cap : 8;
    if (need > SIZE_MAX / 4)
        leave(arena->guard, need);
    while (cap_new < need)
        cap_new *= 2;
    void *grown = mpp_arena_calloc(arena, cap_new, elem_size);
    if (*cap)
        memcpy(grown, ptr, *cap * elem_size);
    *cap = cap_new;
    return grown;
}
