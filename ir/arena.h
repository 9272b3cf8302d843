/* arena.h - memory that is freed all at once, and what happens when there is none left.
 *
 *     struct mpp_guard guard = {0};                      // of one run; outlives the frame that calls setjmp
 *     if (setjmp(guard.escape) == 0) {
 *         struct mpp_arena *a = mpp_arena_guarded(&guard);
 *         int64_t *v = mpp_arena_array(a, n, int64_t);   // zeroed; never NULL
 *         char *s = mpp_arena_printf(a, "%s.%d", scope, i);
 *         struct mpp_arena *tmp = mpp_arena_scratch(a);  // of the same run
 *         ...
 *     } else ...                                         // out of memory: guard.wanted_bytes more were wanted
 *     mpp_guard_free(&guard);                            // every arena of the run that is not freed yet
 *
 * Where memory is out, an arena leaves by longjmp to its guard, so callers need not check. Frames between are left as
 * they are: what they hold besides arenas (a file, an object of a library, a temporary folder) is handed to
 * mpp_arena_defer first. An arena without a guard is for programs with nothing to clean up, such as tests: there, running
 * out of memory is a failed assertion. Guards share nothing; each belongs to one thread at a time, with its arenas. */
#ifndef MPP_ARENA_H
#define MPP_ARENA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

struct mpp_arena;

/* One run's arenas. All zero at first; escape is set by the caller's setjmp. */
struct mpp_guard {
    jmp_buf escape;
    struct mpp_arena *newest;      /* the list of its arenas */
    size_t bytes, most_bytes;      /* its arenas hold now; held at most */
    size_t wanted_bytes;           /* what could not be had; 0: a library did not say */
    jmp_buf *caught;               /* see mpp_arena_catch */
};

/* Free all arenas of GUARD, the newest first. */
void mpp_guard_free(struct mpp_guard *guard);

/* A new, empty arena, which the caller owns: without a guard, under GUARD, or of the same run as OTHER (under its guard if
 * it has one; NULL: without). */
struct mpp_arena *mpp_arena_new(void);
struct mpp_arena *mpp_arena_guarded(struct mpp_guard *guard);
struct mpp_arena *mpp_arena_scratch(const struct mpp_arena *other);

/* Run what was deferred, the latest first, then free ARENA and everything allocated from it. NULL is allowed. */
void mpp_arena_free(struct mpp_arena *arena);

/* Call FN(P) when ARENA is freed. P belongs to the arena from here on: with no memory to note it, FN(P) runs at once. */
void mpp_arena_defer(struct mpp_arena *arena, void (*fn)(void *), void *p);

/* Leave as for a failed allocation, of WANTED_BYTES or (0) of a library that does not say. */
_Noreturn void mpp_arena_fail(struct mpp_arena *arena, size_t wanted_bytes);

/* From here on a failure of ARENA's run leaves to HERE instead (NULL: to the guard); returns what was before. For code
 * called by a library that must not be left by longjmp:
 *
 *     jmp_buf here, *before = mpp_arena_catch(arena, &here);
 *     if (setjmp(here) == 0) body(); else failed = true;
 *     mpp_arena_catch(arena, before);                      // and mpp_arena_fail later, out of the library */
jmp_buf *mpp_arena_catch(struct mpp_arena *arena, jmp_buf *here);

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
char *mpp_arena_vprintf(struct mpp_arena *arena, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* Grow the array *PTR of *CAP elements of ELEM_SIZE so that it holds NEED; returns the (new)
 * array, whose first *CAP elements are kept. The old block stays in the arena. */
void *mpp_arena_grow(struct mpp_arena *arena, void *ptr, size_t *cap, size_t need, size_t elem_size);

#endif
