/* emit_makefile.c - the Makefile of a plan. */
#include <string.h>

#include "codegen/emit_internal.h"

static const char head[] =
    "# make            builds ./trainer for this machine; it needs a C compiler and a BLAS (OpenBLAS)\n"
    "# make MPI=0      leaves MPI out; it is compiled in where mpicc is found\n"
    "# make OPENMP=    one thread per device; compiled in where the compiler has it\n"
    "# make RUNTIME_BUILD=DIR     shares the compiled runtime between plans\n"
    "# make CC=clang CFLAGS=-O2   and so on\n"
    "# make BACKEND=cuda CUDA_ARCH=sm_90       for GPUs (default: as the first one here, or @ARCH@): the CUDA toolkit,\n"
    "#                 11.8 or later, with cuBLAS, and NCCL\n"
    "# make BACKEND=cuda CUDA_HOME=DIR NCCL_HOME=DIR     where they are, if not where nvcc is\n"
    "BACKEND ?= host\n"
    "MPI     ?= $(if $(shell command -v mpicc 2>/dev/null),1,0)\n"
    "CFLAGS  ?= -O3 -march=native\n"
    "PKG_CONFIG ?= pkg-config\n"
    "PLAN_SOURCES = @SOURCES@\n"
    "COMMA := ,\n";

/* GPUs: what is missing is said before anything is built. */
static const char cuda[] =
    "\n"
    "ifeq ($(BACKEND),cuda)\n"
    "OUT = build/$(if $(CUDA_SHIM),shim,cuda)\n"
    "KERNELS = kernels.cu\n"
    "GPU_HERE := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \\\n"
    "              sed -n '1s/^\\([0-9]*\\)\\.\\([0-9]*\\)$$/sm_\\1\\2/p')\n"
    "ifeq ($(GPU_HERE)$(CUDA_ARCH)$(CUDA_SHIM)$(filter clean,$(MAKECMDGOALS)),)\n"
    "$(info BACKEND=cuda: no GPU is here, so it is built for @ARCH@@GPU@; another: CUDA_ARCH=sm_90)\n"
    "endif\n"
    "CUDA_ARCH ?= $(or $(GPU_HERE),@ARCH@)\n"
    "OPENMP =\n"
    "ifeq ($(CUDA_SHIM),)\n"
    "CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc)))\n"
    "NCCL_HOME ?= $(CUDA_HOME)\n"
    "CXX_CUDA = $(CUDA_HOME)/bin/nvcc -std=c++17 -O3 -arch=$(CUDA_ARCH) -Xcompiler -Wall\n"
    "CUDA_LIB = $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib $(CUDA_HOME)/targets/*/lib))\n"
    "NCCL_LIB = $(firstword $(wildcard $(NCCL_HOME)/lib64/libnccl.so* $(NCCL_HOME)/lib/libnccl.so* /usr/lib/*/libnccl.so*))\n"
    "BACKEND_FLAGS = -I$(CUDA_HOME)/include -I$(NCCL_HOME)/include\n"
    "BACKEND_LIBS = -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcublasLt -lcudart $(NCCL_LIB) -Wl,-rpath,$(dir $(NCCL_LIB)) -lstdc++ -ldl\n"
    "ifneq ($(MAKECMDGOALS),clean)\n"
    "ifeq ($(CUDA_HOME),)\n"
    "$(error BACKEND=cuda: nvcc is not here; install the CUDA toolkit, 11.8 or later, or say where it is: CUDA_HOME=DIR)\n"
    "endif\n"
    "CUDA_CODES := $(shell $(CUDA_HOME)/bin/nvcc --list-gpu-code 2>/dev/null)\n"
    "CUDA_NAME := $(shell $(CUDA_HOME)/bin/nvcc --version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/CUDA \\1/p')\n"
    "ifeq ($(CUDA_NAME),)\n"
    "$(error BACKEND=cuda: $(CUDA_HOME)/bin/nvcc does not run; say where the CUDA toolkit is: CUDA_HOME=DIR)\n"
    "endif\n"
    "ifeq ($(filter $(CUDA_ARCH),$(CUDA_CODES)),)\n"
    "OLD = $(filter sm_5% sm_60 sm_61 sm_62 sm_70 sm_72,$(CUDA_ARCH))\n"
    "WANTED = $(if $(OLD),GPUs before sm_75 (P100 is sm_60$(COMMA) V100 sm_70) take a CUDA toolkit from 11.8 to 12.9,name one of these)\n"
    "$(error CUDA_ARCH=$(CUDA_ARCH): $(CUDA_NAME) in $(CUDA_HOME) builds for $(strip $(CUDA_CODES)); $(WANTED): CUDA_HOME=DIR)\n"
    "endif\n"
    "ifeq ($(wildcard $(CUDA_HOME)/include/cublasLt.h),)\n"
    "$(error BACKEND=cuda: cuBLAS (cublasLt.h) is not in $(CUDA_HOME)/include; install the whole CUDA toolkit: CUDA_HOME=DIR)\n"
    "endif\n"
    "ifeq ($(wildcard $(CUDA_LIB)/libcublasLt.so* /usr/lib/*/libcublasLt.so*),)\n"
    "$(error BACKEND=cuda: cuBLAS (libcublasLt.so) is not in $(CUDA_LIB); install the whole CUDA toolkit: CUDA_HOME=DIR)\n"
    "endif\n"
    "ifeq ($(wildcard $(NCCL_HOME)/include/nccl.h /usr/include/nccl.h),)\n"
    "$(error BACKEND=cuda: NCCL (nccl.h) is not here; install libnccl-dev, or say where it is: NCCL_HOME=DIR)\n"
    "endif\n"
    "ifeq ($(NCCL_LIB),)\n"
    "$(error BACKEND=cuda: NCCL (libnccl.so) is not here; install libnccl-dev, or say where it is: NCCL_HOME=DIR)\n"
    "endif\n"
    "endif\n"
    "else\n"
    "# CUDA_SHIM: a folder of sources that run the kernels on processors, for tests.\n"
    "CXX_CUDA = $(CXX) -std=c++17 $(CFLAGS) -Wall -Wextra -Wno-unused-parameter -Werror -x c++\n"
    "BACKEND_FLAGS = -DMPP_CUDA_SHIM -I$(CUDA_SHIM)/include $(BLAS_CFLAGS)\n"
    "BACKEND_LIBS = $(BLAS_LIBS) -lstdc++\n"
    "SHIM_OBJECTS = $(patsubst $(CUDA_SHIM)/%.cpp,$(RUNTIME_BUILD)/shim/%.o,$(wildcard $(CUDA_SHIM)/*.cpp))\n"
    "endif\n"
    "endif\n";

static const char rules[] =
    "\n"
    "ifeq ($(BACKEND),host)\n"
    "OUT = build\n"
    "KERNELS = kernels.c\n"
    "ifeq ($(origin OPENMP),undefined)\n"
    "OPENMP := $(shell printf '\\043include <omp.h>\\nint main(void){return omp_get_max_threads()<1;}\\n' | \\\n"
    "                  $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)\n"
    "endif\n"
    "BACKEND_FLAGS = $(BLAS_CFLAGS)\n"
    "BACKEND_LIBS = $(BLAS_LIBS)\n"
    "endif\n"
    "ifeq ($(OUT),)\n"
    "$(error BACKEND=$(BACKEND): there are host and cuda)\n"
    "endif\n"
    "RUNTIME_BUILD ?= $(OUT)\n"
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
    "SOURCES = $(filter-out kernels.c,$(PLAN_SOURCES)) $(KERNELS)\n"
    "RUNTIME_SOURCES = $(wildcard runtime/core/*.c runtime/$(BACKEND)/*.c runtime/$(BACKEND)/*.cu)\n"
    "OBJECTS = $(addprefix $(OUT)/,$(addsuffix .o,$(basename $(SOURCES)))) \\\n"
    "          $(addprefix $(RUNTIME_BUILD)/,$(addsuffix .o,$(basename $(RUNTIME_SOURCES)))) $(SHIM_OBJECTS)\n"
    "HEADERS = $(wildcard runtime/*.h runtime/*/*.h runtime/*/*.cuh)\n"
    "\n"
    "trainer: $(OBJECTS) build/backend\n"
    "\t$(LINK) $(CFLAGS) $(OPENMP) $(LDFLAGS) -o $@ $(OBJECTS) $(BACKEND_LIBS) -lpthread -lm\n"
    "\n"
    "# What objects were built with; they are built again when it changes.\n"
    "BUILT_WITH = $(CC) $(LINK) $(CFLAGS) $(FLAGS) $(BACKEND_FLAGS) $(CXX_CUDA)\n"
    "# KERNEL_FLAGS: of kernels.cu alone (runtime/cuda/measure.cuh); remove its object where they change.\n"
    "$(sort $(OUT)/built-with $(RUNTIME_BUILD)/built-with): FORCE\n"
    "\t@mkdir -p $(@D)\n"
    "\t@echo '$(BUILT_WITH)' | cmp -s - $@ || echo '$(BUILT_WITH)' > $@\n"
    "build/backend: FORCE\n"
    "\t@mkdir -p $(@D)\n"
    "\t@echo '$(OUT)' | cmp -s - $@ || echo '$(OUT)' > $@\n"
    "\n"
    "$(RUNTIME_BUILD)/runtime/%.o: runtime/%.c $(HEADERS) $(RUNTIME_BUILD)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(LINK) $(CFLAGS) $(FLAGS) $(BACKEND_FLAGS) -c $< -o $@\n"
    "\n"
    "$(RUNTIME_BUILD)/runtime/%.o: runtime/%.cu $(HEADERS) $(RUNTIME_BUILD)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(CXX_CUDA) -D_GNU_SOURCE -I. -Iruntime $(BACKEND_FLAGS) -c $< -o $@\n"
    "\n"
    "$(RUNTIME_BUILD)/shim/%.o: $(CUDA_SHIM)/%.cpp $(wildcard $(CUDA_SHIM)/include/*.h) $(RUNTIME_BUILD)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(CXX_CUDA) -D_GNU_SOURCE -Iruntime $(BACKEND_FLAGS) -c $< -o $@\n"
    "\n"
    "$(OUT)/%.o: %.c $(wildcard *.h runtime/*.h) $(OUT)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(CC) $(CFLAGS) $(FLAGS) $(STRICT) -c $< -o $@\n"
    "\n"
    "build/cuda/kernels.o build/shim/kernels.o: kernels.cu $(wildcard *.h) $(HEADERS) $(OUT)/built-with\n"
    "\t@mkdir -p $(@D)\n"
    "\t$(CXX_CUDA) $(KERNEL_FLAGS) -D_GNU_SOURCE -I. -Iruntime $(BACKEND_FLAGS) -c $< -o $@\n"
    "\n"
    "clean:\n"
    "\trm -rf build trainer\n"
    "\n"
    ".PHONY: clean FORCE\n";

/* TEXT with what stands for each name of the list, {name, value, ..., NULL}. */
static const char *filled(struct mpp_arena *arena, const char *text, const char *const *list)
{
    struct mpp_text out = {.arena = arena};
    while (*text) {
        int k = 0;
        while (list[k] && strncmp(text, list[k], strlen(list[k])) != 0)
            k += 2;
        int n = list[k] ? (int)strlen(list[k]) : 1;
        mpp_text_add(&out, "%.*s", list[k] ? (int)strlen(list[k + 1]) : 1, list[k] ? list[k + 1] : text);
        text += n;
    }
    return mpp_text_string(&out);
}

const char *mpp_emit_makefile(struct mpp_arena *arena, const char *sources, const struct mpp_device *device)
{
    bool known = device && device->arch; /* its name may be anything: only what neither make nor a shell reads is shown */
    const char *name = known ? device->name : "";
    bool plain = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == strlen(name);
    const char *const list[] = {"@SOURCES@", sources, "@ARCH@", known ? device->arch : "sm_80",
                                "@GPU@", known && plain ? mpp_arena_printf(arena, ", the plan's %s", name) : "", NULL};
    return mpp_arena_printf(arena, "%s%s%s", filled(arena, head, list), filled(arena, cuda, list), rules);
}
