# shellcheck shell=bash
# What the batch scripts share. Sourced by them, on the first node of the job.

set -uo pipefail

# Exit code of a run that saved a checkpoint because it was asked to by SIGUSR1: 128 + 10.
readonly CHECKPOINTED=138

fail() { printf 'da3po: %s\n' "$*" >&2; exit 1; }

# srun with one process on each of the first $1 nodes, in the container if there is one. Replaces the shell.
on_nodes() {
    local nodes=$1 && shift
    local options=(
        --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$CPUS"
        # The first node that fails ends the others, and Slurm's line names it. Nodes leave soon after the run ends.
        --kill-on-bad-exit=1 --wait=60
    )
    if [ -n "$CONTAINER_IMAGE" ]; then
        options+=(--container-image="$CONTAINER_IMAGE" --container-workdir="$PWD" --no-container-mount-home
            --container-mounts="$PWD:$PWD,$DA3PO_JOB_DIR:$DA3PO_JOB_DIR,$DA3PO_HOME:$DA3PO_HOME${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}")
    fi
    exec srun "${options[@]}" "$@"
}

# Run a command of da3po that needs no Ray on the first node; ends the script with the command's exit code.
run_on_one_node() {
    on_nodes 1 "$PYTHON" -m da3po.cli "$@"
}

# Run a command of da3po on a Ray cluster of this job's nodes; ends the script with the command's exit code.
run_on_cluster() {
    local folder="$DA3PO_JOB_DIR/${SLURM_RESTART_COUNT:-0}"
    # In an array job %a is the task's index: `run.seed=%a run.name=seed-%a` makes a run of each.
    set -- "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}"
    mkdir -p "$folder" || fail "$folder cannot be made; set DA3PO_JOB_DIR"
    # Whoever can reach the ports of a Ray without a token can run code on it.
    RAY_AUTH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    DA3PO_NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' ')
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN DA3PO_NODES
    on_nodes "$SLURM_JOB_NUM_NODES" "$PYTHON" -m da3po.cluster.node "$folder" "$PYTHON" -m da3po.cli "$@" cluster.kind=existing &
    watch_step $! "$folder"
}

# Wait for the step, pass SIGUSR1 on to it, and end as the run in it did.
watch_step() {
    local step=$1 folder=$2 told=1 status code=1
    trap 'told=1; kill -USR1 "$step" 2>/dev/null' USR1
    # A trapped signal ends `wait` with a status of its own; 127 is that of a step whose status was had before.
    while [ -n "$told" ]; do
        told=
        wait "$step"; status=$?
        [ "$status" = 127 ] || code=$status
    done
    trap '' USR1
    # The run's own code, unless a node failed before it had one.
    if [ -s "$folder/ended" ]; then code=$(cat "$folder/ended"); fi
    if [ "$code" = "$CHECKPOINTED" ]; then requeue; fi
    exit "$code"
}

# Back into the queue: the same command goes on from the checkpoint.
requeue() {
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$DA3PO_MAX_REQUEUES" ]; then
        printf 'da3po: not requeued: DA3PO_MAX_REQUEUES=%s\n' "$DA3PO_MAX_REQUEUES" >&2
        return
    fi
    printf 'da3po: saved; job %s goes back into the queue\n' "$SLURM_JOB_ID" >&2
    scontrol requeue "$SLURM_JOB_ID" || printf 'da3po: not requeued; submit the same command again\n' >&2
}

# What it sets reaches the nodes too.
set -a
# shellcheck source-path=SCRIPTDIR source=environment.sh
. "$DA3PO_HOME/slurm/environment.sh"
set +a
PYTHON=$DA3PO_PYTHON
if [ -z "$PYTHON" ]; then
    if [ -n "$CONTAINER_IMAGE" ]; then PYTHON=python; else PYTHON=$DA3PO_HOME/.venv/bin/python; fi
fi
if [ -z "$CONTAINER_IMAGE" ] && ! command -v "$PYTHON" >/dev/null; then
    fail "there is no $PYTHON: install da3po there, or set DA3PO_PYTHON or CONTAINER_IMAGE (docs/cluster.md)"
fi
# Of this node's cores, those that the job was given: srun does not take the job's own --cpus-per-task over.
CPUS=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
