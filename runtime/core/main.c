/* main.c - mpp_main: options, checkpoint, data, then the ranks, as threads here or as processes over MPI or TCP. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "alike.h"
#include "checkpoint.h"
#include "device.h"
#include "guard.h"
#include "job.h"
#include "mpp_rt.h"
#include "options.h"
#include "signals.h"
#include "start.h"
#include "trainer.h"
#include "transport.h"
#include "transport_tcp_place.h"

/* Address space of a rank's thread beside its arena: OpenBLAS takes 128 MB, malloc 64 MB. */
#define THREAD_SPACE_BYTES ((int64_t)200 << 20)

/* How this process was started. */
struct launch {
    enum { LAUNCH_ALONE, LAUNCH_MPI, LAUNCH_TCP } by;
    bool first;                /* it speaks before the ranks know each other */
    struct mpp_tcp_place place;
};

static const char *first_env(const char *a, const char *b)
{
    return getenv(a) != NULL ? getenv(a) : getenv(b);
}

/* Ranks on this machine. */
static int ranks_here(const struct mpp_program *program, const struct launch *launch)
{
    const struct mpp_tcp_place *place = &launch->place;
    if (launch->by == LAUNCH_TCP)
        return place->local_size > 0 ? place->local_size : place->one_machine ? place->size : 1;
    const char *size = first_env("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"); /* Open MPI, MPICH */
    if (size == NULL)
        size = getenv("SLURM_STEP_TASKS_PER_NODE");
    return launch->by == LAUNCH_ALONE ? mpp_mesh_ranks(program) : size != NULL && atoi(size) > 0 ? atoi(size) : 1;
}

static bool is_limited(int resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

static bool space_is_limited(void)
{
    return is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA);
}

/* How many threads each rank gets, where the command line does not say; one where address space is scarce. */
static int choose_threads(const struct mpp_program *program, const struct mpp_options *o, const struct launch *launch)
{
    if (o->threads > 0)
        return (int)o->threads;
    return space_is_limited() ? 1 : mpp_device_threads(ranks_here(program, launch), launch->by != LAUNCH_ALONE);
}

/* Bytes of the arenas of a process with so many ranks: all, or one of a stage that is not yet known. */
static int64_t arenas_here(const struct mpp_program *program, int local_ranks)
{
    int64_t all = 0, largest = 0;
    for (int s = 0; s < program->n_stages; s++) {
        int64_t bytes = program->stages[s]->arena_bytes;
        all += mpp_mesh_stage_ranks(program->stages[s]) * bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return local_ranks == mpp_mesh_ranks(program) ? all : largest;
}

/* Under `ulimit -v` or `-d` OpenBLAS would ask for its buffers again and again, forever: ask once, before it does. */
static int check_space(const struct mpp_program *program, int local_ranks, int64_t threads, struct mpp_error *error)
{
    if (!space_is_limited())
        return MPP_EXIT_OK;
    size_t bytes = (size_t)arenas_here(program, local_ranks) + (size_t)(local_ranks * threads * THREAD_SPACE_BYTES);
    int access = is_limited(RLIMIT_DATA) ? PROT_READ | PROT_WRITE : PROT_NONE; /* data is what can be written */
    void *room = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "%d device%s about %zu MB of address space, more than "
                             "`ulimit -%c` leaves", local_ranks, local_ranks == 1 ? " takes" : "s take", bytes >> 20,
                             is_limited(RLIMIT_DATA) ? 'd' : 'v');
    munmap(room, bytes);
    return MPP_EXIT_OK;
}

static void set_rank(struct mpp_rank *r, struct mpp_local *local, struct mpp_job *job, int rank)
{
    const struct mpp_program *p = job->program;
    *local = (struct mpp_local){.job = job};
    *r = (struct mpp_rank){
        .micro_batches = p->micro_batches,
        .seed = job->seed,
        .hyper = p->hyper,
        .training = true,
        .transport = job->transport,
        .impl = local,
    };
    mpp_mesh_place(r, p, rank);
}

/* The watch ends this process: USER is where a rank of it is, or will be; its thread may be anywhere. */
static void leave_process(void *user, int code)
{
    struct mpp_rank *r = atomic_load((_Atomic(struct mpp_rank *) *)user);
    if (r != NULL)
        mpp_checkpoint_discard(r);
    _exit(code);
}

static void tell_stopped(void *user, int number)
{
    struct mpp_rank *r = user;
    r->transport->ops->stopped(r, number);
}

static void *rank_main(void *arg)
{
    mpp_trainer_rank(arg);
    return NULL;
}

/* All ranks as threads; the first failure's code. */
static int run_threads(struct mpp_job *job, struct mpp_error *error)
{
    int n = mpp_mesh_ranks(job->program), started = 0, code = MPP_EXIT_OK;
    struct mpp_rank *ranks = calloc((size_t)n, sizeof *ranks);
    struct mpp_local *locals = calloc((size_t)n, sizeof *locals);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    struct mpp_guard *guard = NULL;
    _Atomic(struct mpp_rank *) first = ranks;
    if (ranks == NULL || locals == NULL || threads == NULL)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (int i = 0; code == MPP_EXIT_OK && i < n; i++)
        set_rank(&ranks[i], &locals[i], job, i);
    if (code == MPP_EXIT_OK)
        code = mpp_guard_new(ranks, n, (double)job->options->timeout_s, leave_process, &first, &guard, error);
    for (; code == MPP_EXIT_OK && started < n; started++)
        if (pthread_create(&threads[started], NULL, rank_main, &ranks[started]) != 0) {
            code = MPP_EXIT_SYSTEM; /* the others wait for this one: release them */
            job->transport->ops->abort(&ranks[0], code, "out of memory, or the system gives no more threads");
            break;
        }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++) {
        mpp_trainer_clean(&ranks[i]);
        if (code == MPP_EXIT_OK)
            code = locals[i].exit_code;
    }
    mpp_guard_free(guard); /* a device may be stuck */
    free(ranks);
    free(locals);
    free(threads);
    return code;
}

#define SILENCE_S 15.0 /* of a host that acknowledges nothing */
#define REFUSED_S 60.0 /* for the others to come and be told of it */

static int run_process(struct mpp_job *job, const struct launch *launch, struct mpp_error *error)
{
    struct mpp_rank r = {0};
    _Atomic(struct mpp_rank *) own = NULL;
    struct mpp_local local;
    uint64_t mark[MPP_ALIKE_PARTS];
    mpp_alike_mark(job, mark);
    struct mpp_transport_settings settings = {
        .mark = mark,
        .watch = {.timeout_s = (double)job->options->timeout_s, .silence_s = SILENCE_S, .first = launch->first,
                  .leave = leave_process, .user = &own},
    };
    int rank = launch->place.rank;
    job->local_ranks = 1;
    if (launch->by == LAUNCH_TCP) {
        job->place_here = launch->place.local_rank;
        if (job->prepare_code != MPP_EXIT_OK && settings.watch.timeout_s <= 0) /* of options that were refused */
            settings.watch.timeout_s = REFUSED_S;
        job->transport = mpp_transport_tcp_new(job->program, &settings, &launch->place, error);
    }
#ifdef MPP_WITH_MPI
    else {
        job->transport = mpp_transport_mpi_new(job->program, &settings, &rank, error);
    }
#endif
    if (job->transport == NULL)
        return error->code;
    set_rank(&r, &local, job, rank);
    atomic_store(&own, &r);
    job->transport->ops->follow(&r);
    mpp_signals_tell(job->signals, tell_stopped, &r);
    mpp_trainer_rank(&r);
    mpp_trainer_clean(&r);
    mpp_signals_tell(job->signals, NULL, NULL);
    job->transport->ops->free(job->transport);
    return local.exit_code;
}

/* Started by mpirun or srun (Open MPI's, PMI's or PMIx's variables), or to meet others over TCP: this process is one rank of
 * many. */
static int find_launch(struct launch *launch_out, struct mpp_error *error)
{
    const char *rank = first_env("OMPI_COMM_WORLD_RANK", "PMI_RANK");
    if (rank == NULL)
        rank = getenv("PMIX_RANK");
    bool mpi = rank != NULL || first_env("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") != NULL;
    *launch_out = (struct launch){.by = mpi ? LAUNCH_MPI : LAUNCH_ALONE, .first = rank == NULL || atoi(rank) == 0};
#ifdef MPP_WITH_MPI
    bool by_mpi = mpi;
#else
    bool by_mpi = false;
#endif
    if (!mpp_tcp_started(by_mpi))
        return MPP_EXIT_OK;
    launch_out->by = LAUNCH_TCP;
    int code = mpp_tcp_place_read(&launch_out->place, error);
    launch_out->first = code != MPP_EXIT_OK || launch_out->place.rank == 0;
    return code;
}

static int run_job(struct mpp_job *job, const struct launch *launch, struct mpp_error *error)
{
    int code = MPP_EXIT_INPUT;
    if (launch->by == LAUNCH_TCP)
        return run_process(job, launch, error);
#ifdef MPP_WITH_MPI
    if (launch->by == LAUNCH_MPI)
        return run_process(job, launch, error);
#else
    const char *size = first_env("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    if (size == NULL)
        size = getenv("SLURM_NTASKS");
    if (launch->by == LAUNCH_MPI && size != NULL && atoi(size) > 1)
        return mpp_error_set(error, code, "started as %s processes, but this trainer was built without MPI; "
                             "install MPI and build again, start it alone, or by torchrun", size);
#endif
    job->local_ranks = mpp_mesh_ranks(job->program);
    job->transport = mpp_transport_threads_new(job->program, error);
    if (job->transport == NULL)
        return MPP_EXIT_SYSTEM;
    code = run_threads(job, error);
    job->transport->ops->free(job->transport);
    return code;
}

static void wait_for_end(int signal_number)
{
    (void)signal_number;
    for (;;)
        pause();
}

/* A mapped file that becomes shorter is known only by this signal. */
static void on_bus_error(int signal_number)
{
    static const char text[] = "error: bus error: a file of data or weights was cut short while it was read, or the "
                               "system ran out of shared memory\n";
    struct sigaction wait = {.sa_handler = wait_for_end}, before;
    sigaction(signal_number, &wait, &before);
    if (before.sa_handler == wait_for_end) /* another thread met it first, and ends the process */
        wait_for_end(signal_number);
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(MPP_EXIT_SYSTEM);
}

/* Of many processes that met it, the first speaks, and mpirun ends the others. */
static void on_bus_error_beside(int signal_number)
{
    sleep(4);
    on_bus_error(signal_number);
}

static void set_signals(bool first)
{
    struct sigaction bus = {.sa_handler = first ? on_bus_error : on_bus_error_beside};
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file past the limit is an error of write */
}

/* The whole run. The job's prepare_code is that of the options. */
static int run_all(struct mpp_job *job, const struct launch *launch, struct mpp_error *error)
{
    int code = job->prepare_code;
    bool alone = launch->by == LAUNCH_ALONE, first = launch->first;
    if (code == MPP_EXIT_OK) /* before there are threads */
        code = mpp_signals_start(job->options->save != NULL, first, &job->signals, error);
    if (code == MPP_EXIT_OK)
        code = check_space(job->program, alone ? mpp_mesh_ranks(job->program) : 1,
                           job->options->threads, error);
    if (code == MPP_EXIT_OK)
        code = mpp_start_prepare(job, first, error);
    if (code == MPP_EXIT_OK || !alone) { /* the ranks agree on a failure first: none may end before it is told */
        job->prepare_code = code;
        job->prepare_error = *error;
        error->text[0] = '\0';
        code = run_job(job, launch, error);
    }
    mpp_signals_stop(job->signals);
    mpp_start_clean(job);
    return code;
}

/* Was all of standard output written? What fails on the way shows here. */
static int check_output(struct mpp_error *error)
{
    bool failed = ferror(stdout);
    errno = 0;
    clearerr(stdout);
    if (failed)                   /* its reason is long gone: fail once more to learn it */
        putchar('\n');
    if (fflush(stdout) == 0 && !failed)
        return MPP_EXIT_OK;
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "cannot write to standard output: %s", strerror(errno ? errno : EIO));
}

int mpp_main(int argc, char **argv, const struct mpp_program *program)
{
    struct mpp_error error = {0};
    struct mpp_options options = {0};
    struct mpp_job job = {.program = program, .options = &options, .place_here = -1};
    struct launch launch;
    int launch_code = find_launch(&launch, &error);
    bool unlike = launch.by == LAUNCH_TCP && launch.place.size != mpp_mesh_ranks(program); /* rank 0 may know nothing of it */
    bool first = launch.first || unlike;
    if (launch_code != MPP_EXIT_OK) {
        fprintf(stderr, "error: %s\n", error.text);
        return launch_code;
    }
    int code = mpp_options_parse(argc, argv, program, &options, &error);
    if (code == MPP_EXIT_OK && options.help) {
        if (first)
            mpp_options_usage(stdout, argv[0], program);
        code = check_output(&error);
        if (code != MPP_EXIT_OK)
            fprintf(stderr, "error: %s\n", error.text);
        return code;
    }
    set_signals(first);
    mpp_device_prepare();
    options.threads = choose_threads(program, &options, &launch);
    if (code == MPP_EXIT_OK || launch.by != LAUNCH_ALONE) {
        job.prepare_code = code;
        code = run_all(&job, &launch, &error);
    }
    if (code == MPP_EXIT_OK)
        code = check_output(&error);
    if (code != MPP_EXIT_OK && error.text[0] != '\0') {
        if (first)
            fprintf(stderr, "error: %s\n", error.text);
        else
            usleep(500000); /* mpirun ends a job with its first process; let the message come out */
    }
    if (code != MPP_EXIT_OK && space_is_limited()) { /* OpenBLAS's threads may never end */
        fflush(NULL);
        _exit(code);
    }
    return code;
}
