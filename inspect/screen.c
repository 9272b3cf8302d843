/* screen.c - what a terminal can show, and tables on it. */
#include "inspect/screen.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { WIDTH = 98, NARROWEST = 20, WIDEST = 400, INDENT = 2, LEAST_COLUMN = 10, LAST_COLUMN = 24 };

struct mpp_screen mpp_screen_on(struct mpp_arena *arena, FILE *out)
{
    struct mpp_screen s = {arena, out, WIDTH, false};
    struct winsize size = {0};
    const char *columns = getenv("COLUMNS"), *term = getenv("TERM"), *no = getenv("NO_COLOR");
    int fd = fileno(out);
    if (fd >= 0 && isatty(fd)) {
        s.colour = (!no || !*no) && (!term || strcmp(term, "dumb") != 0);
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
            s.width = size.ws_col;
    } else if (columns && atoi(columns) > 0) {
        s.width = atoi(columns);
    }
    s.width = s.width < NARROWEST ? NARROWEST : s.width > WIDEST ? WIDEST : s.width;
    return s;
}

/* TEXT without what would act on the terminal: names may come from files. */
static const char *shown(struct mpp_arena *arena, const char *text)
{
    char *copy = mpp_arena_strdup(arena, text);
    for (unsigned char *c = (unsigned char *)copy; *c; c++)
        if (*c < 0x20 || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0))
            *c = '?';
        else if (*c >= 0x80 && *c < 0xa0 && c > (unsigned char *)copy && c[-1] == '?')
            *c = '?';
    return copy;
}

static const char *code(const struct mpp_screen *s, enum mpp_style style)
{
    static const char *const codes[] = {"", "\033[1m", "\033[2m", "\033[32m", "\033[31m"};
    return s->colour ? codes[style] : "";
}

static const char *reset(const struct mpp_screen *s, enum mpp_style style)
{
    return s->colour && style != MPP_PLAIN ? "\033[0m" : "";
}

void mpp_screen_paragraph(const struct mpp_screen *s, int indent, enum mpp_style style, const char *words)
{
    int column = 0;
    fputs(code(s, style), s->out);
    for (const char *p = shown(s->arena, words); *p;) {
        int n = (int)strcspn(p, " ");
        if (column > 0 && column + 1 + n > s->width - indent) {
            fputc('\n', s->out);
            column = 0;
        }
        fprintf(s->out, "%*s%.*s", column ? 1 : indent, "", n, p);
        column += n + (column > 0);
        p += n;
        p += strspn(p, " ");
    }
    fprintf(s->out, "%s\n", reset(s, style));
}

/* ---- tables ---- */

struct mpp_table mpp_table_begin(const struct mpp_screen *s, int n_columns, const char *const *titles)
{
    struct mpp_table t = {.screen = s, .n_columns = n_columns};
    for (int c = 0; c < n_columns; c++) {
        t.left[c] = titles[c][0] == '-';
        t.title[c] = titles[c] + t.left[c];
    }
    return t;
}

static struct mpp_table_row *add_row(struct mpp_table *t, const char *const *cells)
{
    t->row = mpp_arena_grow(t->screen->arena, t->row, &t->cap, (size_t)t->n_rows + 1, sizeof *t->row);
    struct mpp_table_row *r = &t->row[t->n_rows++];
    *r = (struct mpp_table_row){.style = MPP_PLAIN};
    for (int c = 0; c < t->n_columns; c++)
        r->cell[c] = shown(t->screen->arena, cells[c] ? cells[c] : "");
    return r;
}

void mpp_table_row(struct mpp_table *t, enum mpp_style style, const char *const *cells)
{
    add_row(t, cells)->style = style;
}

void mpp_table_sum(struct mpp_table *t, const char *const *cells)
{
    struct mpp_table_row *r = add_row(t, cells);
    r->style = MPP_BOLD;
    r->rule = true;
}

/* Characters of TEXT, which is UTF-8; and the bytes of its first N. */
static int characters(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static int bytes_of(const char *text, int n)
{
    const char *at = text;
    while (*at && (n > 0 || ((unsigned char)*at & 0xc0) == 0x80))
        n -= ((unsigned char)*at++ & 0xc0) != 0x80;
    return (int)(at - text);
}

/* Widths of the columns, cut where they may be; returns that of all. */
static int measure(const struct mpp_table *t, int *width)
{
    int all = INDENT;
    for (int c = 0; c < t->n_columns; c++) {
        width[c] = characters(t->title[c]);
        for (int i = 0; i < t->n_rows; i++)
            width[c] = characters(t->row[i].cell[c]) > width[c] ? characters(t->row[i].cell[c]) : width[c];
        all += width[c] + (c ? 2 : 0);
    }
    while (all > t->screen->width) {
        int widest = -1, last = t->n_columns - 1;
        if (t->left[last] && width[last] > LAST_COLUMN) {
            int more = all - t->screen->width, most = width[last] - LAST_COLUMN;
            width[last] -= more < most ? more : most;
            all -= more < most ? more : most;
            continue;
        }
        for (int c = 0; c < t->n_columns; c++)
            if (t->left[c] && width[c] > LEAST_COLUMN && (widest < 0 || width[c] > width[widest]))
                widest = c;
        if (widest < 0)
            break;
        width[widest]--;
        all--;
    }
    return all;
}

static void print_cell(const struct mpp_table *t, int c, int width, const char *text, bool last)
{
    int n = characters(text);
    bool cut = n > width && t->left[c];
    FILE *out = t->screen->out;
    if (c > 0)
        fputs("  ", out);
    if (!t->left[c])
        fprintf(out, "%*s%s", width - n, "", text);
    else if (cut)
        fprintf(out, "%.*s..", bytes_of(text, width - 2), text);
    else
        fprintf(out, "%s%*s", text, last ? 0 : width - n, "");
}

static int last_filled(const struct mpp_table *t, const char *const *cell)
{
    int last = t->n_columns - 1;
    while (last > 0 && !*cell[last])
        last--;
    return last;
}

/* For screens that no line of the table fits on: of each row its first cell, and below it what else there is. */
static void print_rows(const struct mpp_table *t)
{
    if (*t->title[0])
        mpp_screen_paragraph(t->screen, INDENT, MPP_FAINT, t->title[0]);
    for (int i = 0; i < t->n_rows; i++) {
        const struct mpp_table_row *r = &t->row[i];
        mpp_screen_paragraph(t->screen, INDENT, r->style, r->cell[0]);
        for (int c = 1; c < t->n_columns; c++)
            if (*r->cell[c])
                mpp_screen_paragraph(t->screen, 2 * INDENT, r->style, mpp_arena_printf(t->screen->arena, "%s%s%s", t->title[c], *t->title[c] ? ": " : "", r->cell[c]));
    }
}

void mpp_table_print(const struct mpp_table *t)
{
    int width[MPP_TABLE_COLUMNS], all = measure(t, width) - INDENT;
    FILE *out = t->screen->out;
    if (all + INDENT > t->screen->width) {
        print_rows(t);
        return;
    }
    bool titles = false;
    for (int c = 0; c < t->n_columns; c++)
        titles = titles || *t->title[c];
    for (int i = titles ? -1 : 0; i < t->n_rows; i++) {
        const char *const *cell = i < 0 ? t->title : t->row[i].cell;
        enum mpp_style style = i < 0 ? MPP_FAINT : t->row[i].style;
        if (i >= 0 && t->row[i].rule) {
            fprintf(out, "%*s", INDENT, "");
            for (int k = 0; k < all; k++)
                fputc('-', out);
            fputc('\n', out);
        }
        fprintf(out, "%*s%s", INDENT, "", code(t->screen, style));
        int last = last_filled(t, cell);
        for (int c = 0; c <= last; c++)
            print_cell(t, c, width[c], cell[c], c == last);
        fprintf(out, "%s\n", reset(t->screen, style));
    }
}

const char *mpp_screen_bar(struct mpp_arena *arena, double v, double most, int width)
{
    int n = most > 0 ? (int)(v / most * width + 0.5) : 0;
    n = n < 0 ? 0 : n > width ? width : n;
    n = n == 0 && v > 0 ? 1 : n;
    char *bar = mpp_arena_alloc(arena, (size_t)width + 1);
    memset(bar, '#', (size_t)n);
    bar[n] = '\0';
    return bar;
}
