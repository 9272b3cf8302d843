/* glpk_env.c - begin and end GLPK's environment; its errors leave by longjmp. */
#include "solver/glpk_env.h"

#include <glpk.h>

static void on_error(void *escape)
{
    longjmp(*(jmp_buf *)escape, 1);
}

static int keep_silent(void *info, const char *text)
{
    (void)info;
    (void)text;
    return 1; /* glp_error switches the terminal on for its message */
}

static void end_environment(void *unused)
{
    (void)unused;
    glp_free_env();
}

bool mpp_glpk_begin(struct mpp_arena *scratch, jmp_buf *escape)
{
    if (glp_init_env() > 1) /* glp_anything() would abort instead */
        return false;
    mpp_arena_defer(scratch, end_environment, NULL);
    glp_term_out(GLP_OFF);
    glp_term_hook(keep_silent, NULL);
    glp_error_hook(on_error, escape);
    return true;
}
