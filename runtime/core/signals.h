/* signals.h - what the outside asks of a running trainer.
 *
 *     struct mpp_signals *s;
 *     int code = mpp_signals_start(can_save, speaks, &s, &error);   // before any other thread, one per process
 *     mpp_signals_begin(s);                                         // from here on a stop can wait for the step's end
 *     int wanted = mpp_signals_wanted(s);                           // an enum mpp_request or a signal's number
 *     mpp_signals_stop(s);
 *
 * SIGTERM, SIGINT and SIGUSR2 stop after the running step, SIGUSR1 saves and goes on. A thread waits for them, so that
 * nothing here is global; all other threads have them blocked. A second one of the stopping kind, a second or more
 * after the first (launchers repeat theirs at once), ends the process as the signal does by itself; so does the first
 * where nothing would be saved, or before training has begun. A signal that the process was started to ignore stays
 * ignored. */
#ifndef MPP_SIGNALS_H
#define MPP_SIGNALS_H

#include <stdbool.h>

#include "fail.h"

struct mpp_signals;

/* CAN_SAVE: there is --save. SPEAKS: of several processes, the one that prints. */
int mpp_signals_start(bool can_save, bool speaks, struct mpp_signals **signals_out, struct mpp_error *error)
    MPP_RT_CHECKED;
/* Takes back what start did. SIGNALS may be NULL. */
void mpp_signals_stop(struct mpp_signals *signals);

void mpp_signals_begin(struct mpp_signals *signals);
/* TELL(USER, number) is called before a signal ends the process, from the thread of signals; no more once this has returned with
 * another TELL, or NULL. SIGNALS may be NULL. */
void mpp_signals_tell(struct mpp_signals *signals, void (*tell)(void *user, int number), void *user);
/* The job fails, and has said why: a launcher that now stops this process, too, is no news. SIGNALS may be NULL. Any thread. */
void mpp_signals_fail(struct mpp_signals *signals);
/* The signal that asked to stop, or 0. Any thread. */
int mpp_signals_wanted(const struct mpp_signals *signals);
/* How often a save was asked for. */
unsigned mpp_signals_saves(const struct mpp_signals *signals);
/* "SIGTERM". */
const char *mpp_signals_name(int number);

#endif
