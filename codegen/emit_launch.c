/* emit_launch.c - run.sh and run.sbatch: how a trainer is started on one machine, and by Slurm. */
#include "codegen/emit_internal.h"

static int n_devices(const struct mpp_plan *plan)
{
    const struct mpp_stage *last = &plan->stages[plan->n_stages - 1];
    return last->first_device + last->n_devices;
}

const char *mpp_emit_run_sh(struct mpp_emit *e)
{
    int n = n_devices(e->plan);
    return mpp_arena_printf(
        e->arena,
        "#!/bin/sh\n"
        "# Starts the trainer on this machine, its %s; arguments are the trainer's:\n"
        "#     plan/run.sh --data text:book.txt --steps 100\n"
        "# A trainer that is not there yet is built; BACKEND=cuda CUDA_ARCH=sm_80 plan/run.sh ... builds and runs that for GPUs.\n"
        "# As processes, on one machine or several: mpirun -n %d plan/trainer ...; under Slurm: sbatch plan/run.sbatch ...\n"
        "# Without MPI: torchrun --no_python --nproc_per_node %d plan/trainer ..., or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.\n"
        "dir=$(dirname \"$0\")\n"
        "[ -z \"$BACKEND\" ] && [ \"$dir/trainer\" -nt \"$dir/plan.c\" ] || make -s -C \"$dir\" trainer || exit 1\n"
        "exec \"$dir/trainer\" \"$@\"\n",
        n == 1 ? "device this process" : mpp_arena_printf(e->arena, "%d devices threads of one process", n), n, n);
}

/* Cores of one device of a machine whose devices are its cores; 0: not known. */
static int cores_each(const struct mpp_cluster *c, int on_node)
{
    if (c->kind != MPP_LINK_SHARED)
        return 0;
    return c->cores > on_node ? c->cores / on_node : 1;
}

const char *mpp_emit_run_sbatch(struct mpp_emit *e)
{
    const struct mpp_cluster *c = e->cluster;
    int n = n_devices(e->plan), on_node = c->n_nodes > 1 && c->devices_per_node < n ? c->devices_per_node : n;
    int nodes = (n + on_node - 1) / on_node, cores = cores_each(c, on_node);
    struct mpp_text s = {.arena = e->arena};
    mpp_text_add(&s, "#!/bin/sh\n"
                     "# Starts the trainer by Slurm, a process for each device; arguments are the trainer's:\n"
                     "#     sbatch plan/run.sbatch --data text:book.txt --steps 100\n"
                     "# The plan's folder is the script's; PLAN=folder sbatch ... names another. MPIRUN: another command, with its options.\n"
                     "# A trainer that is not there yet is built; BACKEND=cuda CUDA_ARCH=sm_80 sbatch ... builds and runs that for GPUs.\n"
                     "#SBATCH --job-name=%s\n#SBATCH --nodes=%d\n#SBATCH --ntasks=%d\n#SBATCH --ntasks-per-node=%d\n",
                 mpp_emit_identifier(e->arena, e->whole->model->name), nodes, n, on_node);
    if (c->kind != MPP_LINK_SHARED)
        mpp_text_add(&s, "#SBATCH --gpus-per-node=%d\n", on_node);
    if (cores > 0)
        mpp_text_add(&s, "#SBATCH --cpus-per-task=%d\n", cores);
    mpp_text_add(&s, "\n"
                     "script=$(scontrol show job \"$SLURM_JOB_ID\" | sed -n 's/^ *Command=\\(.*run\\.sbatch\\).*/\\1/p')\n"
                     "plan=${PLAN:-$(dirname \"$script\")}\n"
                     "[ -z \"$BACKEND\" ] && [ \"$plan/trainer\" -nt \"$plan/plan.c\" ] || make -s -C \"$plan\" trainer || exit 1\n"
                     "exec ${MPIRUN:-mpirun} -n %d \"$plan/trainer\" \"$@\"\n", n);
    return mpp_text_string(&s);
}
