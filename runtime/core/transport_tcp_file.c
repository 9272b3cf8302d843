/* transport_tcp_file.c - lines of text: a number of the job, a port, and addresses; or why there are none. */
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

/* Where PATH is written before it has its name; NULL: out of memory. The caller frees it. */
static char *part_of(const char *path)
{
    size_t n = strlen(path) + 32;
    char *part = malloc(n);
    if (part != NULL)
        (void)snprintf(part, n, "%s.%d.part", path, (int)getpid());
    return part;
}

int mpp_tcp_file_check(const char *path, bool *writable_out, struct mpp_error *error)
{
    struct stat st;
    char *part = part_of(path), *folder = strdup(path);
    int code = MPP_EXIT_OK;
    *writable_out = false;
    if (part == NULL || folder == NULL) {
        free(part);
        free(folder);
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    }
    *(strrchr(folder, '/') + 1) = '\0';
    if (stat(folder, &st) != 0)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: %s: %s; it is to be a folder that all machines see", folder,
                             strerror(errno));
    int fd = code == MPP_EXIT_OK ? open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) {
        *writable_out = true;
        close(fd);
        (void)unlink(part);
    } else if (code == MPP_EXIT_OK) {
        (void)mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: %s cannot be written: %s", path, strerror(errno));
    }
    free(part);
    free(folder);
    return code;
}

static bool write_text(FILE *f, const struct mpp_link_offer *offer, const struct mpp_error *failure)
{
    if (failure != NULL)
        return fprintf(f, "%sfailed %d %s\n", first_line, failure->code, failure->text) > 0;
    bool ok = fprintf(f, "%sjob %016" PRIx64 "\nport %d\n", first_line, offer->nonce, offer->port) > 0;
    for (int i = 0; ok && i < offer->n; i++) {
        char text[INET6_ADDRSTRLEN];
        ok = inet_ntop(offer->address[i].family, offer->address[i].bytes, text, sizeof text) != NULL
             && fprintf(f, "address %s\n", text) > 0;
    }
    return ok && fprintf(f, "end\n") > 0;
}

int mpp_tcp_file_write(const char *path, const struct mpp_link_offer *offer, const struct mpp_error *failure, bool *taken_out,
                       struct mpp_error *error)
{
    char *part = part_of(path);
    *taken_out = false;
    if (part == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644), code = MPP_EXIT_OK;
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f != NULL && write_text(f, offer, failure);
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

/* The rest of F after "failed". */
static void read_failure(FILE *f, struct mpp_error *failure_out)
{
    int code;
    char text[sizeof failure_out->text];
    if (fscanf(f, "%d ", &code) == 1 && code > 0 && fgets(text, sizeof text, f) != NULL && strchr(text, '\n') != NULL)
        (void)mpp_error_set(failure_out, code, "%.*s", (int)strcspn(text, "\n"), text);
}

bool mpp_tcp_file_read(const char *path, struct mpp_link_offer *offer_out, struct mpp_error *failure_out)
{
    char line[128] = "";
    struct mpp_link_offer o = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe by now */
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
    failure_out->code = MPP_EXIT_OK;
    if (f == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool ok = fgets(line, sizeof line, f) != NULL && strcmp(line, first_line) == 0 && fscanf(f, "%7s ", line) == 1;
    if (ok && strcmp(line, "failed") == 0)
        read_failure(f, failure_out);
    ok = ok && strcmp(line, "job") == 0 && fscanf(f, "%" SCNx64 " ", &o.nonce) == 1 && fscanf(f, "port %d ", &o.port) == 1 && o.port > 0
         && o.port <= 65535;
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
