/* links: ir */
/* Printed graphs (docs/ir.md): what is accepted prints to a text that gives the same text again. */
#include <stdio.h>
#include <string.h>

#include "fuzz_promises.h"
#include "ir/graph.h"

static char *printed(const struct mpp_graph *g, size_t *out_n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, out_n);
    mpp_graph_print(g, f);
    fclose(f);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_graph *g = NULL, *again = NULL;
    enum mpp_status st = mpp_graph_parse(arena, diag, "file", (const char *)data, n, &g);
    if (st == MPP_OK) {
        size_t n_first, n_second;
        char *first = printed(g, &n_first);
        fuzz_must(mpp_graph_parse(arena, diag, "printed", first, n_first, &again) == MPP_OK, "what is printed parses");
        char *second = printed(again, &n_second);
        fuzz_must(strcmp(first, second) == 0, "and prints the same");
        free(first);
        free(second);
    } else {
        fuzz_must(strstr(mpp_diag_text(diag), "error: ") != NULL, "a refusal says why");
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
