/* emit_files.c - the Makefile, the runtime's sources, writing files. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/embed.h"
#include "codegen/emit_internal.h"
#include "ir/outfile.h"

static const char *const makefile =
    "# make            builds ./trainer for this machine; it needs a C compiler and a BLAS (OpenBLAS)\n"
    "# make MPI=0      leaves MPI out; it is compiled in where mpicc is found\n"
    "# make OPENMP=    one thread per device; compiled in where the compiler has it\n"
    "# make RUNTIME_BUILD=DIR     shares the compiled runtime between plans\n"
    "# make CC=clang CFLAGS=-O2   and so on\n"
    "BACKEND ?= host\n"
    "MPI     ?= $(if $(shell command -v mpicc 2>/dev/null),1,0)\n"
    "CFLAGS  ?= -O3 -march=native\n"
    "RUNTIME_BUILD ?= build\n"
    "PKG_CONFIG ?= pkg-config\n"
    "ifeq ($(origin OPENMP),undefined)\n"
    "OPENMP := $(shell printf '\\043include <omp.h>\\nint main(void){return omp_get_max_threads()<1;}\\n' | \\\n"
    "                  $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)\n"
    "endif\n"
    "BLAS_CFLAGS ?= $(shell $(PKG_CONFIG) --cflags openblas 2>/dev/null)\n"
    "BLAS_LIBS   ?= $(shell $(PKG_CONFIG) --libs openblas 2>/dev/null || \\\n"
    "                 (for l in -lopenblas '-lcblas -lblas'; do \\\n"
    "                    echo 'int main(void){return 0;}' | $(CC) -x c - $$l -o /dev/null 2>/dev/null && echo \"$$l\" && break; \\\n"
    "                  done))\n"
    "\n"
    "ifeq ($(MPI),1)\n"
    "LINK = mpicc\n"
    "MPI_FLAGS = -DMPP_WITH_MPI\n"
    "export OMPI_CC = $(CC)\n"
    "export MPICH_CC = $(CC)\n"
    "else\n"
    "LINK = $(CC)\n"
    "endif\n"
    "\n"
    "FLAGS = -std=c17 -D_GNU_SOURCE -fno-math-errno -fno-trapping-math $(or $(OPENMP),-fopenmp-simd) -I. -Iruntime $(MPI_FLAGS)\n"
    "STRICT = -Wall -Wextra -Werror\n"
    "PLAN_SOURCES = @SOURCES@\n"
    "RUNTIME_SOURCES = $(wildcard runtime/core/*.c runtime/host/*.c)\n"
    "OBJECTS = $(PLAN_SOURCES:%.c=build/%.o) $(RUNTIME_SOURCES:%.c=$(RUNTIME_BUILD)/%.o)\n"
    "\n"
    "ifneq ($(BACKEND),host)\n"
    "$(error BACKEND=$(BACKEND) is not in this release of mpplan; only BACKEND=host is)\n"
    "endif\n"
    "\n"
    "trainer: $(OBJECTS)\n"
    "\t$(LINK) $(CFLAGS) $(OPENMP) $(LDFLAGS) -o $@ $(OBJECTS) $(BLAS_LIBS) -lpthread -lm\n"
    "\n"
    "# What objects were built with; they are built again when it changes.\n"
    "BUILT_WITH = $(CC) $(LINK) $(CFLAGS) $(FLAGS) $(BLAS_CFLAGS)\n"
    "$(sort build/built-with $(RUNTIME_BUILD)/built-with): FORCE\n"
    "\t@mkdir -p $(@D)\n"
    "\t@echo '$(BUILT_WITH)' | cmp -s - $@ || echo '$(BUILT_WITH)' > $@\n"
    "\n"
    "$(RUNTIME_BUILD)/runtime/%.o: runtime/%.c $(wildcard runtime/*.h runtime/*/*.h) $(RUNTIME_BUILD)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(LINK) $(CFLAGS) $(FLAGS) $(BLAS_CFLAGS) -c $< -o $@\n"
    "\n"
    "build/%.o: %.c $(wildcard *.h runtime/*.h) build/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(CC) $(CFLAGS) $(FLAGS) $(STRICT) -c $< -o $@\n"
    "\n"
    "clean:\n"
    "\trm -rf build trainer\n"
    "\n"
    ".PHONY: clean FORCE\n";

const char *mpp_emit_makefile(struct mpp_arena *arena, const char *sources)
{
    static const char mark[] = "@SOURCES@";
    const char *at = strstr(makefile, mark);
    return mpp_arena_printf(arena, "%.*s%s%s", (int)(at - makefile), makefile, sources, at + strlen(mark));
}

enum mpp_status mpp_emit_write(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                               const char *text, size_t size)
{
    const char *path = mpp_arena_printf(arena, "%s/%s", dir, name);
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (f)
        fwrite(text, 1, size, mpp_outfile_stream(f));
    if (f && mpp_outfile_close(f))
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    return MPP_IO;
}

enum mpp_status mpp_emit_write_script(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                                      const char *text)
{
    const char *path = mpp_arena_printf(arena, "%s/%s", dir, name);
    struct stat st;
    MPP_TRY(mpp_emit_write(diag, arena, dir, name, text, strlen(text)));
    if (stat(path, &st) == 0 && chmod(path, (st.st_mode & 0777) | (st.st_mode & 0444) >> 2) == 0)
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the file a program: %s", strerror(errno));
    return MPP_IO;
}

enum mpp_status mpp_emit_runtime(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir)
{
    static const char *const folders[] = {"runtime", "runtime/core", "runtime/host", "runtime/cuda"};
    for (int i = 0; i < 4; i++) {
        const char *path = mpp_arena_printf(arena, "%s/%s", dir, folders[i]);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the directory: %s", strerror(errno));
            return MPP_IO;
        }
    }
    for (const struct mpp_embedded_source *s = mpp_embedded_runtime; s->path; s++)
        if (strncmp(s->path, "calibrate/", strlen("calibrate/")) != 0)
            MPP_TRY(mpp_emit_write(diag, arena, dir, mpp_arena_printf(arena, "runtime/%s", s->path), s->text, s->size));
    return MPP_OK;
}
