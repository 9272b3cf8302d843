/* transport_tcp_place.c - the variables of the environment that launchers set. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "transport_tcp_place.h"

#define MOST_RANKS 4096
#define FILE_SCHEME "file://"

static const char how[] = "each process is to get RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them";

static const char *get(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool mpp_tcp_started(bool by_mpi)
{
    if (get("MPP_RENDEZVOUS") != NULL)
        return true;
    if (by_mpi && get("TORCHELASTIC_RUN_ID") == NULL)
        return false;
    const char *size = get("WORLD_SIZE");
    return size != NULL ? strcmp(size, "1") != 0 : get("RANK") != NULL; /* one alone is a mistake, which mpp_tcp_place_read tells */
}

/* The whole number in variable NAME, from LEAST to MOST. */
static int read_number(const char *name, long least, long most, int *out, struct mpp_error *error)
{
    const char *value = get(name);
    char *end = NULL;
    if (value == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s is not set; %s", name, how);
    long x = strtol(value, &end, 10);
    if (end == value || *end != '\0' || x < least || x > most)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s is to be a whole number from %ld to %ld, not \"%s\"", name, least, most, value);
    *out = (int)x;
    return MPP_EXIT_OK;
}

/* The same where it may be missing. */
static int read_optional(const char *name, long least, long most, int *out, struct mpp_error *error)
{
    return get(name) == NULL ? MPP_EXIT_OK : read_number(name, least, most, out, error);
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; text != NULL && *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static bool is_loopback(const char *address)
{
    struct in6_addr v6;
    return strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0
        || (inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

/* Where rank 0 is. torchrun's agent keeps MASTER_PORT for itself, so the ports after it are taken. */
static int read_meeting(struct mpp_tcp_place *p, struct mpp_error *error)
{
    const char *file = get("MPP_RENDEZVOUS"), *agent = get("TORCHELASTIC_USE_AGENT_STORE");
    p->one_machine = p->local_size == p->size;
    if (file != NULL) {
        size_t n = strlen(FILE_SCHEME);
        if (strncmp(file, FILE_SCHEME, n) != 0 || file[n] != '/' || file[n + 1] == '\0')
            return mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS is to be file:///PATH, a file that all machines see, not \"%s\"",
                                 file);
        p->file = file + n;
        struct stat st;
        if (stat(p->file, &st) == 0 && !S_ISREG(st.st_mode))
            return mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: %s is no regular file; name one that is not there yet", p->file);
        return MPP_EXIT_OK;
    }
    p->address = get("MASTER_ADDR");
    if (p->address == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "MASTER_ADDR is not set; give the address of rank 0's machine and a port that is "
                             "free there, MASTER_PORT, or MPP_RENDEZVOUS=file:///PATH");
    p->one_machine = p->one_machine || is_loopback(p->address);
    p->job = get("TORCHELASTIC_RUN_ID") != NULL ? hash_of(get("TORCHELASTIC_RUN_ID")) + hash_of(get("TORCHELASTIC_RESTART_COUNT")) : 0;
    p->n_ports = 1;
    int code = read_number("MASTER_PORT", 1, 65535, &p->port, error);
    if (code == MPP_EXIT_OK && agent != NULL && strcmp(agent, "True") == 0) {
        p->n_ports = MPP_TCP_AGENT_PORTS;
        p->port = p->port + p->n_ports <= 65535 ? p->port + 1 : p->port - p->n_ports;
    }
    return code;
}

int mpp_tcp_place_read(struct mpp_tcp_place *place_out, struct mpp_error *error)
{
    struct mpp_tcp_place p = {.local_rank = -1};
    int code = read_number("WORLD_SIZE", 1, MOST_RANKS, &p.size, error);
    if (code == MPP_EXIT_OK)
        code = read_number("RANK", 0, MOST_RANKS - 1, &p.rank, error);
    if (code == MPP_EXIT_OK && p.rank >= p.size)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "RANK is %d where WORLD_SIZE is %d; ranks are 0 to %d", p.rank, p.size, p.size - 1);
    if (code == MPP_EXIT_OK)
        code = read_optional("LOCAL_WORLD_SIZE", 1, p.size, &p.local_size, error);
    if (code == MPP_EXIT_OK)
        code = read_optional("LOCAL_RANK", 0, p.local_size > 0 ? p.local_size - 1 : MOST_RANKS - 1, &p.local_rank, error);
    if (code == MPP_EXIT_OK)
        code = read_meeting(&p, error);
    *place_out = p;
    return code;
}
