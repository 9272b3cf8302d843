/* arena.h - memory that is freed all at once.
 *
 *     struct mpp_arena *a = mpp_arena_new();
 *     int64_t *v = mpp_arena_array(a, n, int64_t);   // zeroed; never NULL
 *     char *s = mpp_arena_printf(a, "%s.%d", scope, i);
 *     mpp_arena_free(a);
 *
 * When the system has no memory left, the arena prints one line to stderr and ends the process
 * with status 3: a planner that cannot allocate has nothing better to do. Not thread safe. */
#ifndef MPP_ARENA_H
#define MPP_ARENA_H

#include <stddef.h>

struct mpp_arena;

/* A new, empty arena; the caller owns it. */
struct mpp_arena *mpp_arena_new(void);

/* Free ARENA and everything allocated from it. NULL is allowed. */
void mpp_arena_free(struct mpp_arena *arena);

/* SIZE zeroed bytes, aligned to 16. A size of 0 gives a valid, unique pointer. */
void *mpp_arena_alloc(struct mpp_arena *arena, size_t size);

/* COUNT * SIZE zeroed bytes; an overflow of the product counts as out of memory. */
void *mpp_arena_calloc(struct mpp_arena *arena, size_t count, size_t size);

/* A zeroed array of COUNT elements of TYPE. */
#define mpp_arena_array(arena, count, type) ((type *)mpp_arena_calloc((arena), (size_t)(count), sizeof(type)))

/* Copies: of a string, of its first LEN bytes (terminated), of SIZE bytes; a formatted string. */
char *mpp_arena_strdup(struct mpp_arena *arena, const char *s);
char *mpp_arena_strndup(struct mpp_arena *arena, const char *s, size_t len);
void *mpp_arena_memdup(struct mpp_arena *arena, const void *p, size_t size);
char *mpp_arena_printf(struct mpp_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Grow the array *PTR of *CAP elements of ELEM_SIZE so that it holds NEED; returns the (new)
 * array, whose first *CAP elements are kept. The old block stays in the arena. */
void *mpp_arena_grow(struct mpp_arena *arena, void *ptr, size_t *cap, size_t need, size_t elem_size);

#endif
