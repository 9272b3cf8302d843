/* threads.c - cores of a rank, the BLAS on one thread, scratch memory of a team. */
#include "team.h"
#include "threads.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Present where the BLAS is OpenBLAS, MKL or BLIS. */
extern void openblas_set_num_threads(int n) __attribute__((weak));
extern void MKL_Set_Num_Threads(int n) __attribute__((weak));
extern void bli_thread_set_num_threads(int64_t n) __attribute__((weak));

void mpp_blas_alone(void)
{
    if (openblas_set_num_threads != NULL)
        openblas_set_num_threads(1);
    if (MKL_Set_Num_Threads != NULL)
        MKL_Set_Num_Threads(1);
    if (bli_thread_set_num_threads != NULL)
        bli_thread_set_num_threads(1);
}

bool mpp_threads_built(void)
{
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
}

/* ---- cores ------------------------------------------------------------------------------------------- */

enum { MAX_CPUS = 8192 };

/* First CPU of the core that CPU belongs to; CPU itself where the system does not say. */
static int first_of_core(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return cpu;
    if (fscanf(f, "%d", &first) != 1 || first < 0 || first > cpu)
        first = cpu;
    fclose(f);
    return first;
}

/* Cores in the affinity of process PID: CPUs that are threads of one core count once. 0: unknown. */
static int affine_cores(pid_t pid)
{
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    unsigned char *seen = calloc(MAX_CPUS, 1);
    int n = 0;
    if (set != NULL && seen != NULL && sched_getaffinity(pid, bytes, set) == 0)
        for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
            if (!CPU_ISSET_S((size_t)cpu, bytes, set))
                continue;
            int core = first_of_core(cpu);
            n += !seen[core];
            seen[core] = 1;
        }
    if (set != NULL)
        CPU_FREE(set);
    free(seen);
    return n;
}

/* The first two numbers of a file; how many there are. */
static int read_numbers(const char *folder, const char *name, double out[2])
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return 0;
    int n = fscanf(f, "%lf %lf", &out[0], &out[1]);
    fclose(f);
    return n > 0 ? n : 0;
}

/* CPUs' worth of time that a control group gets: "200000 100000" or "max 100000" in version 2, two files in
 * version 1, where -1 is no limit. */
static double quota_in(const char *folder)
{
    double quota[2], period[2];
    if (read_numbers(folder, "cpu.max", quota) == 2 && quota[1] > 0)
        return quota[0] / quota[1];
    if (read_numbers(folder, "cpu.cfs_quota_us", quota) > 0 && read_numbers(folder, "cpu.cfs_period_us", period) > 0 &&
        quota[0] > 0 && period[0] > 0)
        return quota[0] / period[0];
    return INFINITY;
}

/* The least quota of GROUP under ROOT and all groups it lies in. */
static double quota_along(const char *root, const char *group)
{
    char folder[PATH_MAX];
    double least = INFINITY;
    snprintf(folder, sizeof folder, "%s%s", root, group);
    for (;;) {
        double quota = quota_in(folder);
        least = quota < least ? quota : least;
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= strlen(root))
            return least;
        *slash = '\0';
    }
}

/* Of the control groups this process is in, one a line: "0::/path", or "4:cpu,cpuacct:/path". */
static double quota_cpus(void)
{
    char line[PATH_MAX];
    double least = INFINITY;
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        bool second = names[1] == '\0';
        if (!second && strstr(names + 1, "cpu") == NULL)
            continue;
        double quota = quota_along(second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", group);
        least = quota < least ? quota : least;
    }
    if (f != NULL)
        fclose(f);
    return least;
}

static int clamp_threads(double n)
{
    return n < 1 ? 1 : n > MPP_MAX_THREADS ? MPP_MAX_THREADS : (int)n;
}

int mpp_threads_share(int ranks_here, bool under_mpi)
{
    if (!mpp_threads_built())
        return 1;
    const char *asked = getenv("OMP_NUM_THREADS");
    long n = asked != NULL ? strtol(asked, NULL, 10) : 0;
    if (n > 0)
        return clamp_threads((double)n);
    double own = affine_cores(0), quota = quota_cpus(), all = own;
    int launcher = under_mpi ? affine_cores(getppid()) : 0;
    if (launcher > 0)
        all = launcher; /* which is not bound as its ranks may be */
    all = quota < all ? quota : all;
    double share = all / (ranks_here > 0 ? ranks_here : 1);
    return clamp_threads(share < own ? share : own);
}

/* ---- a rank's team ------------------------------------------------------------------------------------ */

bool mpp_threads_begin(struct mpp_rank *r, int n, int beside)
{
    void *scratch = NULL;
    if (n > 1 && posix_memalign(&scratch, 64, (size_t)(n - 1) * MPP_SCRATCH_BYTES) != 0)
        return false;
    r->scratch = scratch;
    r->n_threads = n;
    if (n > 1)
        r->team = mpp_team_new(n, n * beside <= affine_cores(0));
    return n <= 1 || r->team != NULL;
}

void mpp_threads_end(struct mpp_rank *r)
{
    mpp_team_free(r->team);
    free(r->scratch);
    r->team = NULL;
    r->scratch = NULL;
    r->n_threads = 1;
}
