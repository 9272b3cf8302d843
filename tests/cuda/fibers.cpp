/* fibers.cpp - the blocks of a kernel, one after the other, their threads as fibers of the calling thread.
 *
 * A block's fibers run in rounds: in each round every fiber that can go on does so until its next barrier, shuffle or end.
 * Warps release their lanes when all have arrived, the block its threads; a round in which nobody moves is a hang, and a
 * thread that ended while others wait at the block's barrier is a fault too (hardware forgives it, sometimes). */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unordered_set>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

__thread struct mpp_shim_now mpp_shim_now;
const bool mpp_shim_counts = getenv("MPP_SHIM_REPORT") != NULL;

namespace {

enum { WARP = 32, MOST_THREADS = 1024, STACK_BYTES = 128 << 10, MOST_SHARED = 48 << 10, MOST_GRID_YZ = 65535 };
enum kind { READ, WRITTEN, READ_AGAIN, PARTS_READ, PARTS_WRITTEN, KINDS };
enum state { CAN_RUN, AT_WARP, AT_BLOCK, ENDED };

/* That was begun and not waited for. */
struct copy {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t group;
};

struct fiber {
    void *stack_pointer; /* where it goes on; NULL: not begun */
    char *stack;
    enum state state;
    unsigned parity;     /* of its shuffles: two of them may be under way */
    uint64_t given[2];
    uint64_t group;      /* of copies that are begun now */
    std::vector<copy> *copies;
};

/* Of one thread of the process. */
struct machine {
    machine *next; /* of those that no thread has */
    fiber fibers[MOST_THREADS];
    int running, n_threads;
    void *scheduler;     /* its stack pointer while a fiber runs */
    void (*body)(const void *);
    const void *arg;
    const char *kernel;
    unsigned char *shared;
    int64_t bytes[KINDS]; /* of this launch */
    std::unordered_set<const void *> *common; /* what mpp_shim_count_common has counted in this launch */
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
#endif
};

__thread machine *the_machine;

void fault(const char *what)
{
    fprintf(stderr, "CUDA shim: %s: %s, in block %u %u %u\n", the_machine ? the_machine->kernel : "", what, mpp_shim_now.block.x,
            mpp_shim_now.block.y, mpp_shim_now.block.z);
    abort();
}

/* ---- switching: callee-saved registers on the stack left, the stack pointer in *SAVE ------------------------ */

#if defined(__x86_64__)
extern "C" void mpp_shim_switch(void **save, void *to);
__asm__(".text\n.globl mpp_shim_switch\n.type mpp_shim_switch, @function\nmpp_shim_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size mpp_shim_switch, . - mpp_shim_switch\n");
enum { SAVED_WORDS = 6 };

void *first_frame(char *top, void (*entry)(void))
{
    void **sp = (void **)top;
    *--sp = NULL; /* keeps the stack aligned as after a call */
    *--sp = (void *)entry;
    for (int i = 0; i < SAVED_WORDS; i++)
        *--sp = NULL;
    return sp;
}
#elif defined(__aarch64__)
extern "C" void mpp_shim_switch(void **save, void *to);
__asm__(".text\n.globl mpp_shim_switch\n.type mpp_shim_switch, %function\nmpp_shim_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n"
        ".size mpp_shim_switch, . - mpp_shim_switch\n");

void *first_frame(char *top, void (*entry)(void))
{
    void **sp = (void **)top - 20;
    memset(sp, 0, 160);
    sp[11] = (void *)entry; /* x30 */
    return sp;
}
#else
#error "the CUDA shim switches stacks on x86-64 and aarch64 only"
#endif

void to_scheduler(machine *m)
{
    fiber *f = &m->fibers[m->running];
#if defined(__SANITIZE_ADDRESS__)
    void *kept = NULL;
    __sanitizer_start_switch_fiber(&kept, m->scheduler_stack, m->scheduler_stack_bytes);
#endif
    mpp_shim_switch(&f->stack_pointer, m->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(kept, &m->scheduler_stack, &m->scheduler_stack_bytes);
#endif
}

void fiber_main(void)
{
    machine *m = the_machine;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &m->scheduler_stack, &m->scheduler_stack_bytes);
#endif
    for (;;) { /* once for each block */
        m->body(m->arg);
        if (m->fibers[m->running].copies != NULL && !m->fibers[m->running].copies->empty())
            fault("a thread ends before copies that it began");
        m->fibers[m->running].state = ENDED;
        to_scheduler(m);
    }
}

void to_fiber(machine *m, int i)
{
    fiber *f = &m->fibers[i];
    const uint3 d = mpp_shim_now.block_dim;
    m->running = i;
    mpp_shim_now.thread = uint3{(unsigned)i % d.x, (unsigned)i / d.x % d.y, (unsigned)i / d.x / d.y};
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&m->fake_stack, f->stack, STACK_BYTES);
#endif
    mpp_shim_switch(&m->scheduler, f->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(m->fake_stack, NULL, NULL);
#endif
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

bool backward(void)
{
    static const bool is = getenv("MPP_SHIM_ORDER") != NULL && strcmp(getenv("MPP_SHIM_ORDER"), "backward") == 0;
    return is;
}

/* Lanes FIRST .. END - 1 until none can go on; did any move? */
bool run_warp(machine *m, int first, int end)
{
    bool moved = false;
    for (bool again = true; again;) {
        int at_warp = 0, alive = 0;
        again = false;
        for (int k = first; k < end; k++) {
            int i = backward() ? first + end - 1 - k : k;
            if (m->fibers[i].state == CAN_RUN) {
                to_fiber(m, i);
                moved = true;
            }
            alive += m->fibers[i].state != ENDED;
            at_warp += m->fibers[i].state == AT_WARP;
        }
        if (at_warp > 0 && at_warp == alive && alive < end - first)
            fault("a warp's lanes exchange values after some have ended");
        for (int i = first; i < end && at_warp > 0 && at_warp == alive; i++) {
            m->fibers[i].state = CAN_RUN;
            again = true;
        }
    }
    return moved;
}

void run_block(machine *m)
{
    int n = m->n_threads, warps = (n + WARP - 1) / WARP;
    for (int i = 0; i < n; i++)
        m->fibers[i].state = CAN_RUN;
    for (;;) {
        bool moved = false;
        int ended = 0, waiting = 0;
        for (int k = 0; k < warps; k++) {
            int w = backward() ? warps - 1 - k : k;
            moved = run_warp(m, w * WARP, w * WARP + WARP < n ? w * WARP + WARP : n) || moved;
        }
        for (int i = 0; i < n; i++) {
            ended += m->fibers[i].state == ENDED;
            waiting += m->fibers[i].state == AT_BLOCK;
        }
        if (ended == n)
            return;
        if (waiting == n)
            for (int i = 0; i < n; i++)
                m->fibers[i].state = CAN_RUN;
        else if (waiting > 0 && waiting + ended == n)
            fault("__syncthreads() waits for threads that have ended");
        else if (!moved)
            fault("threads wait at different barriers");
    }
}

/* ---- machines ------------------------------------------------------------------------------------------- */

pthread_key_t machine_key;
pthread_once_t machine_once = PTHREAD_ONCE_INIT;

/* Of threads that have ended, for those that begin: stacks are dear. */
machine *spare;
pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

void lay_aside(void *arg)
{
    machine *m = (machine *)arg;
    pthread_mutex_lock(&spare_lock);
    m->next = spare;
    spare = m;
    pthread_mutex_unlock(&spare_lock);
}

void make_key(void)
{
    pthread_key_create(&machine_key, lay_aside);
}

machine *machine_here(void)
{
    if (the_machine == NULL) {
        pthread_once(&machine_once, make_key);
        pthread_mutex_lock(&spare_lock);
        the_machine = spare;
        spare = spare ? spare->next : NULL;
        pthread_mutex_unlock(&spare_lock);
        if (the_machine == NULL)
            the_machine = (machine *)calloc(1, sizeof *the_machine);
        if (the_machine == NULL)
            abort();
        pthread_setspecific(machine_key, the_machine);
    }
    return the_machine;
}

void make_stacks(machine *m)
{
    for (int i = 0; i < m->n_threads; i++) {
        fiber *f = &m->fibers[i];
        if (f->stack != NULL)
            continue;
        f->stack = (char *)aligned_alloc(64, STACK_BYTES);
        if (f->stack == NULL)
            fault("out of memory for stacks");
        f->stack_pointer = first_frame(f->stack + STACK_BYTES, fiber_main);
    }
}

/* ---- what kernels did (report.cpp would be a file for forty lines) ------------------------------------------ */

struct row {
    const char *kernel;
    int64_t launches, bytes[KINDS];
};

enum { MOST_ROWS = 512 };
row rows[MOST_ROWS];
int n_rows;
pthread_mutex_t rows_lock = PTHREAD_MUTEX_INITIALIZER;

/* MPP_SHIM_REPORT=FILE: a line for each kernel: launches, bytes of each kind, name. */
void write_report(void)
{
    FILE *f = fopen(getenv("MPP_SHIM_REPORT"), "w");
    for (int i = 0; f != NULL && i < n_rows; i++) {
        fprintf(f, "%lld ", (long long)rows[i].launches);
        for (int k = 0; k < KINDS; k++)
            fprintf(f, "%lld ", (long long)rows[i].bytes[k]);
        fprintf(f, "%s\n", rows[i].kernel);
    }
    if (f != NULL)
        fclose(f);
}

/* BYTES [KINDS]; NULL: none are counted. */
void note(const char *kernel, const int64_t *bytes)
{
    static const bool wanted = mpp_shim_counts && atexit(write_report) == 0;
    if (!wanted)
        return;
    pthread_mutex_lock(&rows_lock);
    int i = 0;
    while (i < n_rows && strcmp(rows[i].kernel, kernel) != 0)
        i++;
    if (i < MOST_ROWS) {
        n_rows = i == n_rows ? n_rows + 1 : n_rows;
        rows[i].kernel = kernel;
        rows[i].launches++;
        for (int k = 0; k < KINDS && bytes != NULL; k++)
            rows[i].bytes[k] += bytes[k];
    }
    pthread_mutex_unlock(&rows_lock);
}

void run_blocks(machine *m, dim3 grid, size_t shared_bytes)
{
    const int64_t n = (int64_t)grid.x * grid.y * grid.z;
    for (int64_t k = 0; k < n; k++) {
        int64_t b = backward() ? n - 1 - k : k;
        mpp_shim_now.block = uint3{(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
        if (shared_bytes > 0)
            memset(m->shared, 0xff, shared_bytes);
        run_block(m);
    }
}

} // namespace

/* ---- what kernels call ------------------------------------------------------------------------------------- */

void mpp_shim_blocks(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void *), const void *arg)
{
    machine *m = machine_here();
    const int64_t threads = (int64_t)block.x * block.y * block.z;
    m->kernel = kernel;
    mpp_shim_now.block = uint3{0, 0, 0};
    if (threads < 1 || threads > MOST_THREADS)
        fault("a block has 1 to 1024 threads");
    if (grid.y > MOST_GRID_YZ || grid.z > MOST_GRID_YZ || grid.x > 0x7fffffffu)
        fault("the grid is too large");
    if (shared_bytes > MOST_SHARED)
        fault("more than 48 KiB of shared memory");
    m->n_threads = (int)threads;
    m->body = body;
    m->arg = arg;
    m->shared = NULL;
    memset(m->bytes, 0, sizeof m->bytes);
    if (m->common != NULL)
        m->common->clear();
    void *shared = NULL;
    if (shared_bytes > 0 && posix_memalign(&shared, 16, shared_bytes) != 0)
        fault("out of memory");
    m->shared = (unsigned char *)shared;
    make_stacks(m);
    mpp_shim_now.block_dim = uint3{block.x, block.y, block.z};
    mpp_shim_now.grid_dim = uint3{grid.x, grid.y, grid.z};
    run_blocks(m, grid, shared_bytes);
    free(shared);
    note(m->kernel, m->bytes);
}

void *mpp_shim_shared(void)
{
    return the_machine->shared;
}

static void wait_as(enum state state)
{
    the_machine->fibers[the_machine->running].state = state;
    to_scheduler(the_machine);
}

void mpp_shim_note(const char *call)
{
    note(call, NULL);
}

void mpp_shim_barrier(void)
{
    wait_as(AT_BLOCK);
}

void mpp_shim_warp_barrier(void)
{
    wait_as(AT_WARP);
}

int mpp_shim_lane(void)
{
    return the_machine->running % WARP;
}

void mpp_shim_exchange(const void *mine, size_t bytes, int source, void *out)
{
    machine *m = the_machine;
    int base = m->running / WARP * WARP, from = base + source % WARP;
    fiber *f = &m->fibers[m->running];
    unsigned parity = f->parity ^= 1;
    if (bytes > sizeof f->given[0] || from >= m->n_threads)
        fault("a shuffle of a value of more than 8 bytes, or from a lane that the block does not have");
    memcpy(&f->given[parity], mine, bytes);
    wait_as(AT_WARP);
    memcpy(out, &m->fibers[from].given[parity], bytes);
}

void mpp_shim_together(void *mine, void (*work)(void *const *lanes))
{
    machine *m = the_machine;
    int base = m->running / WARP * WARP;
    fiber *f = &m->fibers[m->running];
    unsigned parity = f->parity ^= 1;
    void *lanes[WARP];
    if (base + WARP > m->n_threads)
        fault("a warp's instruction in a warp of less than 32 threads");
    f->given[parity] = (uint64_t)(uintptr_t)mine;
    wait_as(AT_WARP);
    if (f->given[parity] == 0) /* done by the lane that went on first */
        return;
    for (int i = 0; i < WARP; i++) {
        if (m->fibers[base + i].parity != parity || m->fibers[base + i].given[parity] == 0)
            fault("a warp's lanes meet at different instructions");
        lanes[i] = (void *)(uintptr_t)m->fibers[base + i].given[parity];
        m->fibers[base + i].given[parity] = 0;
    }
    work(lanes);
}

void mpp_shim_copy_beside(void *to, const void *from, size_t bytes)
{
    fiber *f = &the_machine->fibers[the_machine->running];
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        fault("an access that is not aligned");
    if (f->copies == NULL)
        f->copies = new std::vector<copy>();
    memset(to, 0xff, bytes);
    f->copies->push_back(copy{to, from, bytes, f->group});
}

void mpp_shim_copies_commit(void)
{
    the_machine->fibers[the_machine->running].group++;
}

void mpp_shim_copies_wait(int open)
{
    fiber *f = &the_machine->fibers[the_machine->running];
    size_t kept = 0;
    for (size_t i = 0; f->copies != NULL && i < f->copies->size(); i++) {
        const copy c = (*f->copies)[i];
        if (c.group + (uint64_t)open < f->group)
            memcpy(c.to, c.from, c.bytes);
        else
            (*f->copies)[kept++] = c;
    }
    if (f->copies != NULL)
        f->copies->resize(kept);
}

int mpp_shim_arch(void)
{
    const char *text = getenv("MPP_SHIM_ARCH");
    return text != NULL ? atoi(text) : 80;
}

void mpp_shim_unaligned(void)
{
    fault("an access that is not aligned");
}

void mpp_shim_count(int64_t read_bytes, int64_t written_bytes)
{
    the_machine->bytes[READ] += read_bytes;
    the_machine->bytes[WRITTEN] += written_bytes;
}

void mpp_shim_count_parts(int64_t read_bytes, int64_t written_bytes)
{
    the_machine->bytes[PARTS_READ] += read_bytes;
    the_machine->bytes[PARTS_WRITTEN] += written_bytes;
}

void mpp_shim_count_common(const void *at, int64_t bytes)
{
    machine *m = the_machine;
    if (m->common == NULL)
        m->common = new std::unordered_set<const void *>();
    m->bytes[m->common->insert(at).second ? READ : READ_AGAIN] += bytes;
}
