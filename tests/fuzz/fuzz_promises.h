/* fuzz_promises.h - what every reader of the planner promises for its diagnostics. */
#ifndef FUZZ_PROMISES_H
#define FUZZ_PROMISES_H

#include <string.h>

#include "fuzz_file.h"
#include "ir/diag.h"
#include "ir/status.h"

/* Refused means that errors were reported, and the other way round; none is the
 * verifier's of an internal fault, and all are lines of text that a terminal shows. */
static inline void fuzz_promises(enum mpp_status st, const struct mpp_diag *diag)
{
    const char *text = mpp_diag_text(diag);
    fuzz_must(st != MPP_IO, "no failure of the system");
    fuzz_must((st == MPP_OK) == (mpp_diag_errors(diag) == 0), "errors, exactly when refused");
    fuzz_must(st == MPP_OK || strstr(text, "error: ") != NULL, "a refusal says why");
    for (const char *line = text; line != NULL; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        fuzz_must(strncmp(line, "error: internal fault", 21) != 0, "no internal fault");
    for (const char *at = text; *at != '\0'; at++)
        fuzz_must((unsigned char)*at >= 0x20 || *at == '\n', "no control characters in a message");
}

#endif
