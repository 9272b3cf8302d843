/* signals.c - the thread that waits for signals. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "progress.h"
#include "signals.h"

static const int numbers[] = {SIGTERM, SIGINT, SIGUSR2, SIGUSR1};
#define N_NUMBERS ((int)(sizeof numbers / sizeof numbers[0]))

struct mpp_signals {
    bool can_save, speaks, started;
    pthread_t thread;
    sigset_t waited, mask_before;
    struct sigaction before[N_NUMBERS];
    atomic_bool begun, ending, failing;
    atomic_int wanted;
    atomic_uint saves;
    pthread_mutex_t lock; /* of what follows */
    void (*tell)(void *user, int number);
    void *user;
};

const char *mpp_signals_name(int number)
{
    static const char *const names[] = {"SIGTERM", "SIGINT", "SIGUSR2", "SIGUSR1"};
    for (int i = 0; i < N_NUMBERS; i++)
        if (numbers[i] == number)
            return names[i];
    return "a signal";
}

/* On a thread older than main (a BLAS may have some): it hears no more of the signal, and another thread takes it. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    (void)info;
    for (int i = 0; i < N_NUMBERS; i++)
        sigaddset(&((ucontext_t *)context)->uc_sigmask, numbers[i]);
    kill(getpid(), number);
    errno = saved;
}

/* As if nobody had caught it, but that others are told. */
static void end_by(struct mpp_signals *s, int number, const char *why)
{
    char line[128];
    int n = snprintf(line, sizeof line, "%sstopped by %s%s\n", isatty(STDOUT_FILENO) ? "\n" : "",
                     mpp_signals_name(number), why);
    if (s->speaks && !atomic_load(&s->failing))
        (void)!write(STDERR_FILENO, line, (size_t)n);
    pthread_mutex_lock(&s->lock);
    if (s->tell != NULL && !atomic_load(&s->failing))
        s->tell(s->user, number);
    pthread_mutex_unlock(&s->lock);
    if (!s->speaks)
        sleep(1); /* mpirun ends a job with its first process: let the line come out */
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    sigaction(number, &plain, NULL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(number);
}

static void *wait_for_signals(void *arg)
{
    struct mpp_signals *s = arg;
    double first_s = 0;
    for (int number; sigwait(&s->waited, &number) == 0 && !atomic_load(&s->ending);) {
        if (number == SIGUSR1) {
            if (s->can_save)
                atomic_fetch_add(&s->saves, 1);
            else if (s->speaks)
                fprintf(stderr, "note: SIGUSR1 saves nothing without --save\n");
        } else if (atomic_load(&s->wanted) == 0) {
            if (!s->can_save || !atomic_load(&s->begun))
                end_by(s, number, s->can_save ? " before the first step" : "; nothing is saved without --save");
            first_s = mpp_clock_s();
            atomic_store(&s->wanted, number);
        } else if (mpp_clock_s() - first_s >= 1) {
            end_by(s, number, " again; nothing more is saved");
        }
    }
    return NULL;
}

static void restore(struct mpp_signals *s)
{
    for (int i = 0; i < N_NUMBERS; i++)
        if (sigismember(&s->waited, numbers[i]))
            sigaction(numbers[i], &s->before[i], NULL);
    pthread_sigmask(SIG_SETMASK, &s->mask_before, NULL);
}

int mpp_signals_start(bool can_save, bool speaks, struct mpp_signals **signals_out, struct mpp_error *error)
{
    struct mpp_signals *s = calloc(1, sizeof *s);
    if (s == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    s->can_save = can_save;
    s->speaks = speaks;
    pthread_mutex_init(&s->lock, NULL);
    sigemptyset(&s->waited);
    for (int i = 0; i < N_NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &s->before[i]) == 0 &&
            ((s->before[i].sa_flags & SA_SIGINFO) || s->before[i].sa_handler != SIG_IGN))
            sigaddset(&s->waited, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &s->waited, &s->mask_before);
    struct sigaction handler = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int i = 0; i < N_NUMBERS; i++)
        if (sigismember(&s->waited, numbers[i]))
            sigaction(numbers[i], &handler, NULL);
    s->started = !sigisemptyset(&s->waited);
    if (s->started && pthread_create(&s->thread, NULL, wait_for_signals, s) != 0) {
        restore(s);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory, or the system gives no more threads");
    }
    *signals_out = s;
    return MPP_EXIT_OK;
}

void mpp_signals_stop(struct mpp_signals *signals)
{
    if (signals == NULL)
        return;
    atomic_store(&signals->ending, true);
    for (int i = 0; signals->started && i < N_NUMBERS; i++)
        if (sigismember(&signals->waited, numbers[i])) {
            pthread_kill(signals->thread, numbers[i]); /* wakes it */
            break;
        }
    if (signals->started)
        pthread_join(signals->thread, NULL);
    static const struct timespec none = {0};
    while (signals->started && sigtimedwait(&signals->waited, NULL, &none) > 0) /* repeats of what was obeyed */
        ;
    restore(signals);
    pthread_mutex_destroy(&signals->lock);
    free(signals);
}

void mpp_signals_tell(struct mpp_signals *signals, void (*tell)(void *user, int number), void *user)
{
    if (signals == NULL)
        return;
    pthread_mutex_lock(&signals->lock);
    signals->tell = tell;
    signals->user = user;
    pthread_mutex_unlock(&signals->lock);
}

void mpp_signals_fail(struct mpp_signals *signals)
{
    if (signals != NULL)
        atomic_store(&signals->failing, true);
}

void mpp_signals_begin(struct mpp_signals *signals)
{
    atomic_store(&signals->begun, true);
}

int mpp_signals_wanted(const struct mpp_signals *signals)
{
    return atomic_load(&signals->wanted);
}

unsigned mpp_signals_saves(const struct mpp_signals *signals)
{
    return atomic_load(&signals->saves);
}
