/* transport_tcp_file.c - lines of text: a number of the job, a port, and addresses. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport_tcp_file.h"

static const char first_line[] = "mpplan: where rank 0 of a job is\n";

int mpp_tcp_file_check(const char *path, struct mpp_error *error)
{
    struct stat st;
    char *folder = strdup(path);
    int code = MPP_EXIT_OK;
    if (folder == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    *(strrchr(folder, '/') + 1) = '\0';
    if (stat(folder, &st) != 0)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: %s: %s; it is to be a folder that all machines see", folder,
                             strerror(errno));
    free(folder);
    return code;
}

static bool write_text(FILE *f, const struct mpp_link_offer *offer)
{
    bool ok = fprintf(f, "%sjob %016" PRIx64 "\nport %d\n", first_line, offer->nonce, offer->port) > 0;
    for (int i = 0; ok && i < offer->n; i++) {
        char text[INET6_ADDRSTRLEN];
        ok = inet_ntop(offer->address[i].family, offer->address[i].bytes, text, sizeof text) != NULL
             && fprintf(f, "address %s\n", text) > 0;
    }
    return ok && fprintf(f, "end\n") > 0;
}

int mpp_tcp_file_write(const char *path, const struct mpp_link_offer *offer, bool *taken_out, struct mpp_error *error)
{
    size_t n = strlen(path) + 32;
    char *part = malloc(n);
    *taken_out = false;
    if (part == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    (void)snprintf(part, n, "%s.%d.part", path, (int)getpid());
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644), code = MPP_EXIT_OK;
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f != NULL && write_text(f, offer);
    ok = (f == NULL || fclose(f) == 0) && ok;
    if (ok && link(part, path) != 0) {
        *taken_out = errno == EEXIST;
        ok = *taken_out || (access(path, F_OK) != 0 && rename(part, path) == 0); /* some file systems have no links */
    }
    if (!ok)
        code = mpp_error_system(error, path, errno);
    if (fd >= 0)
        (void)unlink(part);
    free(part);
    return code;
}

bool mpp_tcp_file_read(const char *path, struct mpp_link_offer *offer_out)
{
    char line[128];
    struct mpp_link_offer o = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe by now */
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
    if (f == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool ok = fgets(line, sizeof line, f) != NULL && strcmp(line, first_line) == 0 && fscanf(f, "job %" SCNx64 " ", &o.nonce) == 1
              && fscanf(f, "port %d ", &o.port) == 1 && o.port > 0 && o.port <= 65535;
    while (ok && fscanf(f, "address %63s ", line) == 1 && o.n < MPP_LINK_ADDRESSES) {
        struct mpp_link_address *a = &o.address[o.n];
        a->family = strchr(line, ':') != NULL ? AF_INET6 : AF_INET;
        ok = inet_pton(a->family, line, a->bytes) == 1;
        o.n += ok;
    }
    ok = ok && fscanf(f, "%63s", line) == 1 && strcmp(line, "end") == 0;
    fclose(f);
    *offer_out = o;
    return ok;
}
