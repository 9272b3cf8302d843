/* screen.h - tables, paragraphs and colours for a terminal, a pipe or a file.
 *
 *     struct mpp_screen s = mpp_screen_on(arena, stdout);
 *     struct mpp_table t = mpp_table_begin(&s, 3, (const char *[]){"-what", "time", "B - A"});   // "-": left-aligned
 *     mpp_table_row(&t, MPP_PLAIN, (const char *[]){"all-reduce over model (8)", "12.0 ms", "+3.1 ms"});
 *     mpp_table_print(&t);
 *
 * A terminal's width is asked for, and without one the environment's COLUMNS, else it is that of report.txt. Colours are for
 * terminals only, and not where NO_COLOR is set (no-color.org) or TERM is "dumb". */
#ifndef MPP_INSPECT_SCREEN_H
#define MPP_INSPECT_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "ir/arena.h"

enum mpp_style { MPP_PLAIN, MPP_BOLD, MPP_FAINT, MPP_GOOD, MPP_BAD };

struct mpp_screen {
    struct mpp_arena *arena;
    FILE *out;
    int width;
    bool colour;
};

enum { MPP_TABLE_COLUMNS = 12 };

struct mpp_table {
    const struct mpp_screen *screen;
    int n_columns, n_rows;
    const char *title[MPP_TABLE_COLUMNS];
    bool left[MPP_TABLE_COLUMNS];
    struct mpp_table_row {
        enum mpp_style style;
        bool rule;                /* a line above */
        const char *cell[MPP_TABLE_COLUMNS];
    } *row;
    size_t cap;
};

struct mpp_screen mpp_screen_on(struct mpp_arena *arena, FILE *out);

/* WORDS at INDENT, broken at the screen's width; here and in tables control characters are shown as ?. */
void mpp_screen_paragraph(const struct mpp_screen *s, int indent, enum mpp_style style, const char *words);

/* Columns' TITLES; one that begins with "-" is left-aligned. */
struct mpp_table mpp_table_begin(const struct mpp_screen *s, int n_columns, const char *const *titles);
/* A row of cells, whose texts must outlive the table; NULL: empty. */
void mpp_table_row(struct mpp_table *t, enum mpp_style style, const char *const *cells);
/* The same under a line: sums. */
void mpp_table_sum(struct mpp_table *t, const char *const *cells);
/* Print it at an indent of 2. Where the screen is too narrow the last column, if it is left-aligned, is cut, then the widest of those, ending in "..". */
void mpp_table_print(const struct mpp_table *t);

/* # as often as V of MOST is of WIDTH, at least once where V is more than 0. */
const char *mpp_screen_bar(struct mpp_arena *arena, double v, double most, int width);

#endif
