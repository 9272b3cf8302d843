/* transport_tcp_file.h - a file that tells where rank 0 is.
 *
 *     code = mpp_tcp_file_write(path, &offer, NULL, &taken, &error);   // rank 0
 *     if (mpp_tcp_file_read(path, &offer, &failure)) connect           // others, again and again
 *     unlink(path);                                                    // rank 0, when all have come */
#ifndef MPP_TRANSPORT_TCP_FILE_H
#define MPP_TRANSPORT_TCP_FILE_H

#include <stdbool.h>

#include "fail.h"
#include "link.h"

/* FAILURE: why rank 0 is nowhere, instead; NULL: it is. The file is there whole or not at all. *TAKEN_OUT: there is one already, and
 * nothing was written. */
int mpp_tcp_file_write(const char *path, const struct mpp_link_offer *offer, const struct mpp_error *failure, bool *taken_out,
                       struct mpp_error *error) MPP_RT_CHECKED;
/* False: it is not there, or not such a file, or, with FAILURE_OUT's code, says that rank 0 has failed. */
bool mpp_tcp_file_read(const char *path, struct mpp_link_offer *offer_out, struct mpp_error *failure_out);
/* Is the folder of PATH there? MPP_EXIT_INPUT: no. *WRITABLE_OUT: may this process write it? If not, ERROR says why. */
int mpp_tcp_file_check(const char *path, bool *writable_out, struct mpp_error *error) MPP_RT_CHECKED;

#endif
