#include "ir/arena.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_CHUNK_BYTES = 1 << 14, MAX_CHUNK_BYTES = 1 << 22 };

struct chunk {
    struct chunk *next;
    size_t size, used;
};

struct mpp_arena {
    struct chunk *chunks;
    size_t next_size;
};

static size_t header_size(void)
{
    return (sizeof(struct chunk) + ALIGN - 1) / ALIGN * ALIGN;
}

static void out_of_memory(size_t size)
{
    fprintf(stderr, "error: out of memory (%zu bytes wanted)\n", size);
    exit(3);
}

struct mpp_arena *mpp_arena_new(void)
{
    struct mpp_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        out_of_memory(sizeof *arena);
    arena->next_size = FIRST_CHUNK_BYTES;
    return arena;
}

void mpp_arena_free(struct mpp_arena *arena)
{
    if (!arena)
        return;
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(arena);
}

void *mpp_arena_alloc(struct mpp_arena *arena, size_t size)
{
    if (size > SIZE_MAX / 2)
        out_of_memory(size);
    size_t need = size ? (size + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    struct chunk *c = arena->chunks;
    if (!c || c->size - c->used < need) {
        size_t chunk_size = need > arena->next_size ? need : arena->next_size;
        c = calloc(1, header_size() + chunk_size);
        if (!c)
            out_of_memory(size);
        c->size = chunk_size;
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

void *mpp_arena_calloc(struct mpp_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        out_of_memory(SIZE_MAX);
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

char *mpp_arena_printf(struct mpp_arena *arena, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    assert(len >= 0);
    char *s = mpp_arena_alloc(arena, (size_t)len + 1);
    vsnprintf(s, (size_t)len + 1, fmt, again);
    va_end(again);
    return s;
}

void *mpp_arena_grow(struct mpp_arena *arena, void *ptr, size_t *cap, size_t need, size_t elem_size)
{
    if (need <= *cap)
        return ptr;
    size_t cap_new = *cap ? *cap : 8;
    while (cap_new < need)
        cap_new *= 2;
    void *grown = mpp_arena_calloc(arena, cap_new, elem_size);
    if (*cap)
        memcpy(grown, ptr, *cap * elem_size);
    *cap = cap_new;
    return grown;
}
