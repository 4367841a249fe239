"""Memory of a node's host, roughly: what its processes hold beside the GPUs."""

from __future__ import annotations

from da3po.config.schema import Config
from da3po.models.hf_config import ModelSpec
from da3po.plan.hardware import GIB
from da3po.plan.learner import LearnerMemory
from da3po.plan.placement import NodeShare
from da3po.plan.work import MARGIN, Work, wanted_batch

RANK_BYTES = 6 * GIB
"""A learner process: Python, torch, CUDA's and NCCL's host side, Megatron."""
WORKER_BYTES = 8 * GIB
"""An engine's worker: the same with vLLM, its tokenizer and swap space."""
CONTROLLER_BYTES = 4 * GIB
TOKEN_BYTES = 160
"""Of a response token with its log-prob on the controller: two Python objects and their places in tuples, held by the
completion and again by the packed step."""


def host_bytes(spec: ModelSpec, config: Config, work: Work, learner: list[LearnerMemory], node: NodeShare) -> int:
    """Of the node that has `node`'s share; the first also runs the controller and the graders.

    Saving a checkpoint copies a rank's share of weights and optimizer state to the host. Export gathers one pipeline
    stage's weights on its first rank.
    """
    state = max(one.state.weights // (config.parallel.dp * config.parallel.cp) + one.state.optimizer for one in learner)
    total = len(node.ranks) * (RANK_BYTES + state) + sum(node.engines.values()) * WORKER_BYTES
    if 0 in node.ranks:
        graders = config.reward.num_workers * config.reward.memory_mb << 20
        tokens = work.trained_tokens * (1 + MARGIN / wanted_batch(config).keep_rate) * TOKEN_BYTES
        stage = max(one.state.num_parameters for one in learner) * config.parallel.tp * 2
        total += CONTROLLER_BYTES + graders + int(tokens) + stage
    return total
