/* transport_tcp_file.h - a file that tells where rank 0 is.
 *
 *     code = mpp_tcp_file_write(path, &offer, NULL, &taken, &error);           // rank 0
 *     if (mpp_tcp_file_read(path, &file) && file.failure.code == 0) connect    // others, again and again
 *     mpp_tcp_file_remove(path, offer.nonce);                                  // rank 0, when all have come */
#ifndef MPP_TRANSPORT_TCP_FILE_H
#define MPP_TRANSPORT_TCP_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "fail.h"
#include "link.h"
#include "watch.h"

/* What such a file says. */
struct mpp_tcp_file {
    struct mpp_link_offer offer; /* its nonce alone where rank 0 has failed */
    struct mpp_error failure;    /* MPP_EXIT_OK: it has not */
    struct timespec written;     /* by the clock of the folder */
};

/* FAILURE: why rank 0 is nowhere, instead, with OFFER's nonce; NULL: it is. The file is there whole or not at all. *TAKEN_OUT: there is
 * one already, and nothing was written. */
int mpp_tcp_file_write(const char *path, const struct mpp_link_offer *offer, const struct mpp_error *failure, bool *taken_out,
                       struct mpp_error *error) MPP_RT_CHECKED;
/* False: it is not there, or not such a file. */
bool mpp_tcp_file_read(const char *path, struct mpp_tcp_file *file_out);
/* If it is NONCE's: others may have replaced it. */
void mpp_tcp_file_remove(const char *path, uint64_t nonce);
/* Is the folder of PATH there? MPP_EXIT_INPUT: no. *WRITABLE_OUT: may this process write it? If not, ERROR says why; else *NOW_OUT is the
 * time by the clock of the folder, which may not be this machine's. */
int mpp_tcp_file_check(const char *path, bool *writable_out, struct timespec *now_out, struct mpp_error *error) MPP_RT_CHECKED;

#endif
