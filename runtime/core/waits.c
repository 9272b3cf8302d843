/* waits.c - what ranks wait in, and who is missing. */
#include <stdio.h>
#include <string.h>

#include "mpp_rt.h"
#include "transport.h"
#include "waits.h"

#define ON_GPU ((uint64_t)1 << 63)
#define MOST_WAITS 4 /* told of */

uint64_t mpp_wait_word(enum mpp_wait kind, int what)
{
    return (uint64_t)kind << 32 | (uint32_t)what;
}

static enum mpp_wait kind_of(uint64_t word)
{
    return (enum mpp_wait)((word & ~ON_GPU) >> 32);
}

static int what_of(uint64_t word)
{
    return (int)(uint32_t)word;
}

uint64_t mpp_wait_of(const struct mpp_rank *r)
{
    return __atomic_load_n(&r->waits, __ATOMIC_RELAXED);
}

static void set(struct mpp_rank *r, uint64_t word)
{
    __atomic_store_n(&r->waits, word, __ATOMIC_RELAXED);
}

void mpp_wait_begin(struct mpp_rank *r, enum mpp_wait kind, int what)
{
    mpp_rank_moves(r);
    set(r, mpp_wait_word(kind, what));
}

void mpp_wait_begin_gpu(struct mpp_rank *r, uint64_t word)
{
    mpp_rank_moves(r);
    set(r, ON_GPU | (word != 0 ? word : mpp_wait_word(MPP_WAIT_GPU, 0)));
}

void mpp_wait_end(struct mpp_rank *r)
{
    set(r, 0);
}

/* Its own work takes that long, of the rank or its GPU. */
static bool works(uint64_t word)
{
    return word == 0 || kind_of(word) == MPP_WAIT_GPU;
}

static bool waits_for_ranks(uint64_t word)
{
    return !works(word) && kind_of(word) != MPP_WAIT_OUTPUT;
}

/* ---- who is waited for ---------------------------------------------------------------------------------------- */

/* Does RANK, which waits in WORD, wait for OTHER too, who waits in OTHERS (0: in nothing)? */
static bool waits_for(const struct mpp_program *p, int rank, uint64_t word, int other, uint64_t others)
{
    int what = what_of(word), stage = mpp_mesh_stage_of(p, other);
    if (other == rank)
        return false;
    switch (kind_of(word)) {
    case MPP_WAIT_SEND:
        return other == what && others != mpp_wait_word(MPP_WAIT_RECEIVE, rank);
    case MPP_WAIT_RECEIVE:
        return other == what && others != mpp_wait_word(MPP_WAIT_SEND, rank);
    case MPP_WAIT_HAND_OVER:
        return stage == p->transfers[what].to && others != mpp_wait_word(MPP_WAIT_TAKE_OVER, what);
    case MPP_WAIT_TAKE_OVER:
        return stage == p->transfers[what].from && others != mpp_wait_word(MPP_WAIT_HAND_OVER, what);
    case MPP_WAIT_GPU:
    case MPP_WAIT_OUTPUT:
        return false;
    default:
        return others != word && mpp_mesh_group_base(p, other, (unsigned)what) == mpp_mesh_group_base(p, rank, (unsigned)what);
    }
}

/* " over data and model (ranks 0, 2)" */
static int print_group(const struct mpp_program *p, int rank, unsigned mask, char *out, int bytes)
{
    const struct mpp_stage *s = p->stages[mpp_mesh_stage_of(p, rank)];
    int n = snprintf(out, (size_t)bytes, mask == MPP_WORLD ? " of all ranks" : "");
    const char *between = " over ";
    for (int a = 0; mask != MPP_WORLD && a < s->n_axes && n < bytes; a++)
        if (mask >> a & 1) {
            n += snprintf(out + n, (size_t)(bytes - n), "%s%s", between, s->axis_name[a] != NULL ? s->axis_name[a] : "an axis");
            between = " and ";
        }
    between = " (ranks ";
    int told = 0;
    for (int i = 0; mask != MPP_WORLD && i < mpp_mesh_ranks(p) && n < bytes && told < 9; i++)
        if (mpp_mesh_group_base(p, i, mask) == mpp_mesh_group_base(p, rank, mask)) {
            n += told++ < 8 ? snprintf(out + n, (size_t)(bytes - n), "%s%d", between, i)
                            : snprintf(out + n, (size_t)(bytes - n), ", ...");
            between = ", ";
        }
    if (told > 0 && n < bytes)
        n += snprintf(out + n, (size_t)(bytes - n), ")");
    return n < bytes ? n : bytes - 1;
}

/* "in an all-reduce over data (ranks 0, 2)" */
static void describe(const struct mpp_program *p, int rank, uint64_t word, char *out, int bytes)
{
    static const char *const names[] = {
        [MPP_WAIT_BARRIER] = "a meeting", [MPP_WAIT_ALL_REDUCE] = "an all-reduce", [MPP_WAIT_ALL_GATHER] = "an all-gather",
        [MPP_WAIT_REDUCE_SCATTER] = "a reduce-scatter", [MPP_WAIT_ALL_TO_ALL] = "an all-to-all",
        [MPP_WAIT_BEGUN] = "sums or gathers that were begun", [MPP_WAIT_COMMUNICATOR] = "the making of a communicator"};
    int what = what_of(word), n = snprintf(out, (size_t)bytes, (word & ON_GPU) != 0 ? "for its GPU" : "");
    enum mpp_wait kind = kind_of(word);
    if (kind == MPP_WAIT_OUTPUT)
        (void)snprintf(out, (size_t)bytes, "for the reader of its output");
    if (kind == MPP_WAIT_GPU || kind == MPP_WAIT_OUTPUT)
        return;
    if (n > 0)
        n += snprintf(out + n, (size_t)(bytes - n), ", which is ");
    if (kind == MPP_WAIT_SEND || kind == MPP_WAIT_RECEIVE) {
        (void)snprintf(out + n, (size_t)(bytes - n), kind == MPP_WAIT_SEND ? "in sending to rank %d" : "for a message of rank %d", what);
    } else if (kind == MPP_WAIT_HAND_OVER || kind == MPP_WAIT_TAKE_OVER) {
        const struct mpp_transfer *t = &p->transfers[what];
        (void)snprintf(out + n, (size_t)(bytes - n), "in %s %s %s stage %d", kind == MPP_WAIT_HAND_OVER ? "sending" : "receiving",
                       t->name != NULL ? t->name : "an array", kind == MPP_WAIT_HAND_OVER ? "to" : "from",
                       kind == MPP_WAIT_HAND_OVER ? t->to : t->from);
    } else {
        n += snprintf(out + n, (size_t)(bytes - n), "in %s", names[kind]);
        (void)print_group(p, rank, (unsigned)what, out + n, bytes - n);
    }
}

static void name_rank(const char *host, int rank, char *out, int bytes)
{
    (void)snprintf(out, (size_t)bytes, "rank %d%s%s", rank, host != NULL ? " on " : "", host != NULL ? host : "");
}

/* The first rank that waits, of those that wait for FOR_RANK where there is one; -1: none. */
static int first_waiting(const struct mpp_program *p, int n, const struct mpp_watched *ranks, int for_rank)
{
    for (int i = 0; i < n; i++)
        if (!ranks[i].absent && ranks[i].idle && waits_for_ranks(ranks[i].waits)
            && (for_rank < 0 || waits_for(p, i, ranks[i].waits, for_rank, ranks[for_rank].waits)))
            return i;
    return for_rank < 0 ? -1 : first_waiting(p, n, ranks, -1);
}

/* "rank 0 waits in ..., ranks 1, 3 wait for ..." of all that wait, those with the same wait together. */
static void list_waits(const struct mpp_program *p, int n, const struct mpp_watched *ranks, char *out, int bytes)
{
    char in[256], others[256];
    int at = 0, told = 0;
    for (int i = 0; i < n; i++) {
        bool before = false;
        int same = 0;
        if (ranks[i].absent)
            continue;
        describe(p, i, ranks[i].waits, in, sizeof in);
        for (int k = 0; k < n && !before; k++) {
            describe(p, k, ranks[k].waits, others, sizeof others);
            bool alike = !ranks[k].absent && strcmp(in, others) == 0;
            before = alike && k < i;
            same += alike;
        }
        if (before || at >= bytes)
            continue;
        if (told++ == MOST_WAITS) {
            (void)snprintf(out + at, (size_t)(bytes - at), ", ...");
            return;
        }
        at += snprintf(out + at, (size_t)(bytes - at), "%srank %d", at > 0 ? ", " : "", i);
        if (same > 1 && at < bytes)
            at += snprintf(out + at, (size_t)(bytes - at), " and %d more", same - 1);
        if (at < bytes)
            at += snprintf(out + at, (size_t)(bytes - at), " %s", in);
    }
}

bool mpp_hang_find(const struct mpp_program *program, int n, const struct mpp_watched *ranks, double timeout_s, int *stuck_out,
                   char *text, int text_bytes)
{
    char who[96], in[512];
    int stuck = -1, present = 0, waiting = 0;
    for (int i = n - 1; i >= 0; i--) {
        if (ranks[i].absent)
            continue;
        present++;
        if (ranks[i].silent || (ranks[i].idle && works(ranks[i].waits)))
            stuck = i;
        else if (ranks[i].idle && waits_for_ranks(ranks[i].waits))
            waiting++;
    }
    *stuck_out = stuck;
    if (waiting == 0 || (stuck < 0 && (waiting < present || present < 2)))
        return false;
    if (stuck < 0) {
        list_waits(program, n, ranks, in, sizeof in);
        (void)snprintf(text, (size_t)text_bytes, "all ranks have waited for each other for %g s (%s): a message was lost; the job ends "
                       "(--timeout sets how long)", timeout_s, in);
        return true;
    }
    int first = first_waiting(program, n, ranks, stuck);
    describe(program, first, ranks[first].waits, in, sizeof in);
    name_rank(ranks[stuck].host, stuck, who, sizeof who);
    (void)snprintf(text, (size_t)text_bytes, "%s has not moved for %g s while others wait for it (rank %d %s): %s; "
                   "the job ends (--timeout sets how long)", who, timeout_s, first, in,
                   ranks[stuck].silent || ranks[stuck].waits == 0 ? "stopped, or stuck" : "its GPU is stuck");
    return true;
}
