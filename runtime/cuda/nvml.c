/* nvml.c - NVML by dlopen: a trainer neither links it nor needs it. Its types are declared here as its documentation has them. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/progress.h"
#include "cuda/nvml.h"

enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, MOST_PROCESSES = 64, MOST_NAMED = 4 };

typedef struct nvml_device *nvml_device;

struct nvml_process { /* nvmlProcessInfo_v2_t, which version 3 of the call fills as well */
    unsigned pid;
    unsigned long long bytes; /* all ones: not known */
    unsigned gpu_instance, compute_instance;
};

struct nvml {
    void *library;
    int (*shutdown)(void);
    int (*by_bus)(const char *bus, nvml_device *out);
    int (*processes)(nvml_device device, unsigned *n, struct nvml_process *out);
    int (*power)(nvml_device device, unsigned *milliwatts_out);
    int (*clock)(nvml_device device, int type, unsigned *mhz_out);
    nvml_device device;
};

/* dlsym's result as a function: ISO C has no such cast. */
static bool find(void *library, const char *name, void *function_out)
{
    void *at = dlsym(library, name);
    memcpy(function_out, &at, sizeof at);
    return at != NULL;
}

static void leave(struct nvml *x)
{
    if (x->library == NULL)
        return;
    if (x->shutdown != NULL)
        (void)x->shutdown();
    (void)dlclose(x->library);
}

/* What is found is leave's, even where the answer is no. GPUs have other numbers there than CUDA_VISIBLE_DEVICES gives them: their
 * place on the bus tells. */
static bool enter(struct nvml *x, int ordinal)
{
    int (*init)(void);
    char bus[32];
    memset(x, 0, sizeof *x);
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    x->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (x->library == NULL || !find(x->library, "nvmlInit_v2", &init) || init() != NVML_SUCCESS)
        return false;
    (void)find(x->library, "nvmlShutdown", &x->shutdown);
    if (!find(x->library, "nvmlDeviceGetComputeRunningProcesses_v3", &x->processes))
        (void)find(x->library, "nvmlDeviceGetComputeRunningProcesses_v2", &x->processes);
    (void)find(x->library, "nvmlDeviceGetPowerUsage", &x->power);
    (void)find(x->library, "nvmlDeviceGetClockInfo", &x->clock);
    return find(x->library, "nvmlDeviceGetHandleByPciBusId_v2", &x->by_bus) && x->by_bus(bus, &x->device) == NVML_SUCCESS;
}

static void add(char *text, size_t n, const char *more)
{
    size_t at = strlen(text);
    (void)snprintf(text + at, n - at, "%s%s", at > 0 ? ", " : "", more);
}

bool mpp_nvml_others(int ordinal, char *text, size_t n)
{
    struct nvml x;
    struct nvml_process list[MOST_PROCESSES];
    unsigned count = MOST_PROCESSES, others = 0;
    text[0] = '\0';
    if (!enter(&x, ordinal) || x.processes == NULL || x.processes(x.device, &count, list) != NVML_SUCCESS || count > MOST_PROCESSES)
        count = 0;
    for (unsigned i = 0; i < count; i++) {
        char bytes[32] = "memory", one[80];
        if (list[i].pid == (unsigned)getpid())
            continue;
        if (list[i].bytes <= (unsigned long long)INT64_MAX)
            mpp_bytes_print((int64_t)list[i].bytes, bytes, sizeof bytes);
        (void)snprintf(one, sizeof one, "pid %u holds %s", list[i].pid, bytes);
        if (others++ < MOST_NAMED)
            add(text, n, one);
    }
    if (others > MOST_NAMED)
        add(text, n, "and others");
    leave(&x);
    return text[0] != '\0';
}

bool mpp_nvml_power(int ordinal, char *text, size_t n)
{
    struct nvml x;
    char one[32];
    unsigned value;
    bool there = enter(&x, ordinal);
    text[0] = '\0';
    if (there && x.power != NULL && x.power(x.device, &value) == NVML_SUCCESS) {
        (void)snprintf(one, sizeof one, "%u W", (value + 500) / 1000);
        add(text, n, one);
    }
    if (there && x.clock != NULL && x.clock(x.device, NVML_CLOCK_SM, &value) == NVML_SUCCESS) {
        (void)snprintf(one, sizeof one, "%u MHz", value);
        add(text, n, one);
    }
    leave(&x);
    return text[0] != '\0';
}
