# shellcheck shell=bash
# What a cluster's site has to say, in one place: sourced by every batch script before anything starts, and
# passed on to all nodes. Variables that
# are set already, in the submitting shell for instance, win. docs/cluster.md explains each.

# --- where the program is -------------------------------------------------------------------------------------------
# With a container image (pyxis and enroot) Python is the image's, otherwise that of .venv beside this folder.
# CONTAINER_IMAGE=nvcr.io#nvidia/pytorch:26.10-py3   CONTAINER_MOUNTS=/lustre/me:/lustre/me
: "${DA3PO_PYTHON:=}"
: "${CONTAINER_IMAGE:=}"
: "${CONTAINER_MOUNTS:=}"

# --- where a job's logs lie, on a file system that all nodes share ---------------------------------------------------
: "${DA3PO_JOB_DIR:=$SLURM_SUBMIT_DIR/runs/slurm/$SLURM_JOB_ID}"

# --- the network -----------------------------------------------------------------------------------------------------
# The interface through which nodes talk; by itself the one that the node's name stands for.
# DA3PO_INTERFACE=bond0
# Ports are derived from the job's number; this sets the first of them.
# DA3PO_PORT_BASE=21000
# Where Ray keeps its files on each node.
# DA3PO_TMP=/tmp

# --- NCCL ------------------------------------------------------------------------------------------------------------
# NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME are set to the interface of Ray's address on each node unless set here.
# NCCL_IB_HCA=mlx5
: "${NCCL_DEBUG:=WARN}"
# A peer that is gone is an error after NCCL's time-out, not a hang.
: "${TORCH_NCCL_ASYNC_ERROR_HANDLING:=1}"
# Megatron-Core overlaps tensor-parallel communication with computation only if kernels start in the order of launch.
: "${CUDA_DEVICE_MAX_CONNECTIONS:=1}"

# --- limits ----------------------------------------------------------------------------------------------------------
# Seconds within which every node's Ray must be up, and times that a job puts itself back into the queue (0: never).
: "${DA3PO_START_TIMEOUT:=180}"
: "${DA3PO_MAX_REQUEUES:=100}"
