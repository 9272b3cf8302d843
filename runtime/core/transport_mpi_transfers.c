/* transport_mpi_transfers.c - rings of messages that leave without being waited for. */
#ifdef MPP_WITH_MPI

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "transfers.h"
#include "transport.h"
#include "transport_mpi_transfers.h"

/* A stretch of a part that one message carries. */
struct message {
    int peer;
    MPI_Datatype type; /* of the whole local array, from its beginning */
};

struct flow {
    int tag, depth;
    int64_t bytes;         /* of the sender's local array */
    int64_t done;          /* messages sent or received */
    int n, max;
    struct message *messages;
    MPI_Request *requests; /* sender: [depth * n]; receiver: [n] */
    int n_requests;
    bool sends, under_way; /* some of it may not have left */
};

struct mpp_mpi_transfers {
    MPI_Comm comm;
    int n_flows;
    struct flow *flows; /* per transfer; without messages where this rank has no part in it */
};

/* ---- messages of a part ------------------------------------------------------------------------------- */

static bool add_message(struct flow *q, int peer, MPI_Datatype type)
{
    if (q->n == q->max) {
        int max = q->max > 0 ? 2 * q->max : 8;
        struct message *more = realloc(q->messages, (size_t)max * sizeof *more);
        if (more == NULL)
            return false;
        q->messages = more;
        q->max = max;
    }
    q->messages[q->n++] = (struct message){peer, type};
    return true;
}

/* The box N at AT of a local array DIMS. */
static int add_box(struct flow *q, const struct mpp_part *part, int64_t bytes, const int64_t *n, const int64_t *offset,
                   struct mpp_error *error)
{
    const int64_t *dims = q->sends ? part->from_dims : part->to_dims;
    MPI_Datatype element = bytes == 2 ? MPI_INT16_T : MPI_INT32_T, type;
    int sizes[MPP_MAX_DIMS + 1], counts[MPP_MAX_DIMS + 1], starts[MPP_MAX_DIMS + 1];
    sizes[0] = counts[0] = 1; /* a scalar has a dimension too */
    starts[0] = 0;
    for (int d = 0; d < part->n_dims; d++) {
        if (dims[d] > INT_MAX)
            return mpp_error_set(error, MPP_EXIT_SYSTEM, "a transfer has an extent of %lld, more than MPI counts",
                                 (long long)dims[d]);
        sizes[d + 1] = (int)dims[d];
        counts[d + 1] = (int)n[d];
        starts[d + 1] = (int)offset[d];
    }
    int rc = MPI_Type_create_subarray(part->n_dims + 1, sizes, counts, starts, MPI_ORDER_C, element, &type);
    if (rc == MPI_SUCCESS && MPI_Type_commit(&type) == MPI_SUCCESS && add_message(q, part->peer, type))
        return MPP_EXIT_OK;
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory for the messages between stages");
}

/* Cuts PART into boxes of at most LIMIT elements, in order: the outermost dimension that is larger alone is walked, and rows
 * of the one before are taken together. Sender and receiver cut alike. */
static int add_part(struct flow *q, const struct mpp_part *part, int64_t bytes, int64_t limit, struct mpp_error *error)
{
    const int64_t *begin = q->sends ? part->from_at : part->to_at;
    int64_t n[MPP_MAX_DIMS], at[MPP_MAX_DIMS], done[MPP_MAX_DIMS] = {0}, inner = 1;
    int cut = part->n_dims; /* dimensions from here on are taken whole */
    while (cut > 0 && inner * part->n[cut - 1] <= limit)
        inner *= part->n[--cut];
    int64_t rows = limit / inner;
    for (;;) {
        int last = cut - 1;
        for (int d = 0; d < part->n_dims; d++) {
            int64_t left = part->n[d] - done[d];
            n[d] = d < last ? 1 : d > last ? part->n[d] : left < rows ? left : rows;
            at[d] = begin[d] + done[d];
        }
        int code = add_box(q, part, bytes, n, at, error);
        if (code != MPP_EXIT_OK)
            return code;
        int d = last;
        for (; d >= 0; d--) {
            done[d] += d == last ? rows : 1;
            if (done[d] < part->n[d])
                break;
            done[d] = 0;
        }
        if (d < 0)
            return MPP_EXIT_OK;
    }
}

/* ---- life --------------------------------------------------------------------------------------------- */

static int make_flow(struct flow *q, const struct mpp_program *program, int index, int rank, int64_t limit,
                     struct mpp_error *error)
{
    const struct mpp_transfer *t = &program->transfers[index];
    int stage = mpp_mesh_stage_of(program, rank), n;
    struct mpp_part *parts;
    *q = (struct flow){.tag = index, .depth = t->depth, .sends = stage == t->from};
    if (stage != t->from && stage != t->to)
        return MPP_EXIT_OK;
    q->bytes = mpp_transfer_bytes(program, t);
    int code = mpp_transfer_parts(program, t, rank, &parts, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    for (int i = 0; code == MPP_EXIT_OK && i < n; i++)
        code = add_part(q, &parts[i], mpp_type_bytes(t->type), limit, error);
    free(parts);
    q->n_requests = q->n * (q->sends ? q->depth : 1);
    q->requests = calloc((size_t)q->n_requests + 1, sizeof *q->requests);
    if (q->requests == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", rank);
    for (int i = 0; i < q->n_requests; i++)
        q->requests[i] = MPI_REQUEST_NULL;
    return code;
}

int mpp_mpi_transfers_new(const struct mpp_program *program, int rank, int64_t call_elements,
                          struct mpp_mpi_transfers **out, struct mpp_error *error)
{
    struct mpp_mpi_transfers *t = calloc(1, sizeof *t);
    int *most_tags, found = 0, code = MPP_EXIT_OK;
    *out = t;
    if (t == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &t->comm);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tags, &found);
    if (found && program->n_transfers > *most_tags)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "%d tensors go from stage to stage, but this MPI has %d tags only",
                             program->n_transfers, *most_tags);
    t->flows = calloc((size_t)program->n_transfers + 1, sizeof *t->flows);
    if (t->flows == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", rank);
    t->n_flows = program->n_transfers;
    for (int i = 0; code == MPP_EXIT_OK && i < t->n_flows; i++)
        code = make_flow(&t->flows[i], program, i, rank, call_elements, error);
    return code;
}

void mpp_mpi_transfers_free(struct mpp_mpi_transfers *t)
{
    if (t == NULL)
        return;
    for (int i = 0; t->flows != NULL && i < t->n_flows; i++) {
        struct flow *q = &t->flows[i];
        for (int m = 0; m < q->n; m++)
            MPI_Type_free(&q->messages[m].type);
        free(q->messages);
        free(q->requests);
    }
    free(t->flows);
    MPI_Comm_free(&t->comm);
    free(t);
}

/* ---- sending and receiving ------------------------------------------------------------------------------ */

static MPI_Request *next_requests(const struct flow *q)
{
    return q->requests + (q->sends ? q->done % q->depth * q->n : 0);
}

bool mpp_mpi_transfers_busy(struct mpp_mpi_transfers *t, int transfer)
{
    struct flow *q = &t->flows[transfer];
    int left = 0;
    return MPI_Testall(q->n, next_requests(q), &left, MPI_STATUSES_IGNORE) != MPI_SUCCESS || !left;
}

int mpp_mpi_transfers_send(struct mpp_mpi_transfers *t, struct mpp_rank *r, int transfer, const void *x)
{
    struct flow *q = &t->flows[transfer];
    const struct mpp_transfer *p = &r->program->transfers[transfer];
    MPI_Request *requests = next_requests(q);
    char *place = r->arena + p->offset + q->done % q->depth * p->stride;
    int rc = MPI_Waitall(q->n, requests, MPI_STATUSES_IGNORE);
    if (rc == MPI_SUCCESS)
        memcpy(place, x, (size_t)q->bytes);
    for (int m = 0; rc == MPI_SUCCESS && m < q->n; m++)
        rc = MPI_Isend(place, 1, q->messages[m].type, q->messages[m].peer, q->tag, t->comm, &requests[m]);
    q->done++;
    q->under_way = q->n > 0;
    return rc;
}

int mpp_mpi_transfers_receive(struct mpp_mpi_transfers *t, int transfer, void *x)
{
    struct flow *q = &t->flows[transfer];
    int rc = MPI_SUCCESS;
    for (int m = 0; rc == MPI_SUCCESS && m < q->n; m++)
        rc = MPI_Irecv(x, 1, q->messages[m].type, q->messages[m].peer, q->tag, t->comm, &q->requests[m]);
    q->done++;
    return rc == MPI_SUCCESS ? MPI_Waitall(q->n, q->requests, MPI_STATUSES_IGNORE) : rc;
}

int mpp_mpi_transfers_look(struct mpp_mpi_transfers *t, int *pending_out)
{
    int rc = MPI_SUCCESS;
    *pending_out = 0;
    for (int i = 0; rc == MPI_SUCCESS && i < t->n_flows; i++) {
        int left = 1;
        if (!t->flows[i].under_way)
            continue;
        rc = MPI_Testall(t->flows[i].n_requests, t->flows[i].requests, &left, MPI_STATUSES_IGNORE);
        t->flows[i].under_way = !left;
        *pending_out += !left;
    }
    return rc;
}

void mpp_mpi_transfers_drain(struct mpp_mpi_transfers *t)
{
    for (int i = 0; i < t->n_flows; i++)
        if (t->flows[i].sends)
            (void)MPI_Waitall(t->flows[i].n_requests, t->flows[i].requests, MPI_STATUSES_IGNORE);
}

#else
typedef int mpp_transport_mpi_transfers_is_empty;
#endif
