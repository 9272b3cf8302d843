/* emit_testing.h - checks and shell commands of the tests that compile what is emitted. */
#ifndef MPP_EMIT_TESTING_H
#define MPP_EMIT_TESTING_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int passed, failed;
static const char *root = ".";

__attribute__((format(printf, 2, 3))) static bool check(bool ok, const char *fmt, ...)
{
    passed += ok;
    failed += !ok;
    if (!ok) {
        va_list ap;
        va_start(ap, fmt);
        printf("FAILED: ");
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
    }
    return ok;
}

__attribute__((format(printf, 1, 2))) static bool shell(const char *fmt, ...)
{
    char command[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    fflush(stdout);
    return system(command) == 0;
}

#endif
