/* pairwise_form.h - a stage's integer program (solver.h) as a program of costs on nodes and pairs (solver/pairwise.h).
 *
 *     struct mpp_pairwise_form *f = mpp_pairwise_form_new(s, arena);
 *     ... mpp_pairwise_setup(&f->problem, ...), mpp_pairwise_solve(..., answer, &info) ...
 *     mpp_pairwise_form_choice(f, answer, choice);
 *
 * Nodes 0 to n_nodes - 1 are the stage's, with the choices that are alive. A value of one consumer whose copies take no
 * memory is an edge. Else each of its consumers c has a node more, whose states (t, how) say in which form t the consumer
 * reads the value, and how it comes to be there:
 *
 *     native   the producer makes it so:           allowed with the producer's choices of form t
 *     made     it is a copy of c's own:            with those of another form s, at convert[s, t]; takes copy_bytes[t]
 *     as d     it is the copy that an earlier consumer d has made: only where d's state is (t, made)
 *
 * All these are conditions on pairs, so that the form has exactly the choices of the stage and their costs. Two consumers may
 * each make a copy of one form: dearer, and never needed. Times are numbers of memory rows (s->row_time). */
#ifndef MPP_PAIRWISE_FORM_H
#define MPP_PAIRWISE_FORM_H

#include "planner/solver_internal.h"
#include "solver/pairwise.h"

struct mpp_pairwise_form {
    struct mpp_pairwise_problem problem;
    const struct mpp_solver *s;
    int32_t **alive;              /* [s->p->n_nodes] which choices the form's are */
    int32_t *value, *consumer;    /* [problem.n_nodes - s->p->n_nodes] what the nodes of copies stand for */
};

/* What is alive in S, rows built, within its capacity; lives in ARENA. */
struct mpp_pairwise_form *mpp_pairwise_form_new(const struct mpp_solver *s, struct mpp_arena *arena);

/* ANSWER [problem.n_nodes] as CHOICE [s->p->n_nodes]. */
void mpp_pairwise_form_choice(const struct mpp_pairwise_form *f, const int32_t *answer, int32_t *out_choice);

#endif
