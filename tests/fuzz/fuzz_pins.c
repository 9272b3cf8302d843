/* links: ir costmodel planner */
/* Values of --fix, one a line, for models/mlp.xml on four devices, as far as what they allow for each mesh. What is accepted
 * gives the same pins again when it is written as text. */
#include "fuzz_planned.h"
#include "planner/pins.h"

static void resolve_all(struct mpp_arena *arena, const struct mpp_pins *pins)
{
    struct mpp_candidate *c;
    int n = mpp_pins_candidates(arena, 4, true, pins, &c);
    for (int i = 0; i < n; i++) {
        struct mpp_pin_rules *rules;
        const char *reason = NULL;
        fuzz_must(c[i].mesh.size[0] * c[i].mesh.size[1] * c[i].mesh.size[2] == 4, "a mesh of all devices");
        if (!mpp_pins_resolve(arena, fuzz_graph, &c[i], pins, &rules, &reason)) {
            fuzz_must(reason && *reason, "pins that cannot hold say why");
            continue;
        }
        struct mpp_split whole = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
        for (int k = 0; k < fuzz_graph->n_groups; k++) {
            if (!mpp_pins_allow_split(rules, &fuzz_graph->groups[k], whole))
                fuzz_must(*mpp_pins_explain(arena, rules, &fuzz_graph->groups[k]), "a reason");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_set_up("models/mlp.xml", 4);
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_pins pins = mpp_pins_none(), again = mpp_pins_none();
    char *text = mpp_arena_strndup(arena, (const char *)data, n), *save = NULL;
    enum mpp_status st = MPP_OK;
    for (char *line = strtok_r(text, "\n", &save); line && st == MPP_OK; line = strtok_r(NULL, "\n", &save))
        st = mpp_pins_parse(arena, diag, line, &pins);
    if (st == MPP_OK) {
        const char *normal = mpp_pins_text(arena, &pins);
        if (*normal)
            fuzz_must(mpp_pins_parse(arena, diag, normal, &again) == MPP_OK, "the normal form parses");
        fuzz_must(strcmp(normal, mpp_pins_text(arena, &again)) == 0, "and says the same");
        st = mpp_pins_check(diag, fuzz_graph, 4, &pins);
    }
    if (st == MPP_OK)
        resolve_all(arena, &pins);
    fuzz_promises(st, diag);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
