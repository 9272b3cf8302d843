/* transport_tcp_file.c - lines of text: a number of the job, a port, and addresses; or why there are none. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport_tcp_file.h"

static const char first_line[] = "mpplan: where rank 0 of a job is\n";

enum { PART_BYTES = 32, PART_TRIES = 8 };

/* A new file, where PATH is written before it has its name. No other process, of any machine or container, has one of this name.
 * PART_OUT [strlen(path) + MPP_HOST_NAME + PART_BYTES]; -1: errno. */
static int open_part(const char *path, char *part_out)
{
    char host[MPP_HOST_NAME] = "";
    uint64_t number;
    int fd = -1;
    (void)gethostname(host, sizeof host - 1);
    for (int i = 0; fd < 0 && i < PART_TRIES && (i == 0 || errno == EEXIST); i++) {
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            return -1;
        (void)sprintf(part_out, "%s.%.*s-%016" PRIx64 ".part", path, (int)strcspn(host, "/"), host, number);
        fd = open(part_out, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    }
    return fd;
}

static char *alloc_part(const char *path)
{
    return malloc(strlen(path) + MPP_HOST_NAME + PART_BYTES);
}

int mpp_tcp_file_check(const char *path, bool *writable_out, struct timespec *now_out, struct mpp_error *error)
{
    struct stat st;
    char *part = alloc_part(path), *folder = strdup(path);
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
    int fd = code == MPP_EXIT_OK ? open_part(path, part) : -1;
    if (fd >= 0) {
        *writable_out = fstat(fd, &st) == 0;
        *now_out = st.st_mtim;
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
        return fprintf(f, "%sfailed %016" PRIx64 " %d %s\n", first_line, offer->nonce, failure->code, failure->text) > 0;
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
    char *part = alloc_part(path);
    *taken_out = false;
    if (part == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int fd = open_part(path, part), code = MPP_EXIT_OK;
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
static bool read_failure(FILE *f, struct mpp_tcp_file *file)
{
    int code;
    char text[sizeof file->failure.text];
    if (fscanf(f, "%" SCNx64 " %d ", &file->offer.nonce, &code) != 2 || code <= 0 || fgets(text, sizeof text, f) == NULL
        || strchr(text, '\n') == NULL)
        return false;
    (void)mpp_error_set(&file->failure, code, "%.*s", (int)strcspn(text, "\n"), text);
    return true;
}

/* The rest of F after "job". */
static bool read_offer(FILE *f, struct mpp_link_offer *o)
{
    char word[64];
    bool ok = fscanf(f, "%" SCNx64 " ", &o->nonce) == 1 && fscanf(f, "port %d ", &o->port) == 1 && o->port > 0 && o->port <= 65535;
    while (ok && fscanf(f, "address %63s ", word) == 1 && o->n < MPP_LINK_ADDRESSES) {
        struct mpp_link_address *a = &o->address[o->n];
        a->family = strchr(word, ':') != NULL ? AF_INET6 : AF_INET;
        ok = inet_pton(a->family, word, a->bytes) == 1;
        o->n += ok;
    }
    return ok && fscanf(f, "%63s", word) == 1 && strcmp(word, "end") == 0;
}

bool mpp_tcp_file_read(const char *path, struct mpp_tcp_file *file_out)
{
    char line[128] = "";
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe by now */
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
    *file_out = (struct mpp_tcp_file){.failure.code = MPP_EXIT_OK};
    if (f == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    file_out->written = st.st_mtim;
    bool ok = fgets(line, sizeof line, f) != NULL && strcmp(line, first_line) == 0 && fscanf(f, "%7s ", line) == 1;
    if (ok && strcmp(line, "failed") == 0)
        ok = read_failure(f, file_out);
    else
        ok = ok && strcmp(line, "job") == 0 && read_offer(f, &file_out->offer);
    fclose(f);
    return ok;
}

void mpp_tcp_file_remove(const char *path, uint64_t nonce)
{
    struct mpp_tcp_file file;
    if (mpp_tcp_file_read(path, &file) && file.offer.nonce == nonce)
        (void)unlink(path);
}
