"""Weights, gradients and optimizer state that each learner rank holds, to the byte.

Megatron-Core lays the parameters of a model out in one flat buffer, in reverse order, with a copy of it for gradients;
the distributed optimizer gives each data-parallel rank an equal share of every bucket of that buffer. Source:
`_ParamAndGradBuffer` and `DistributedOptimizer` of Megatron-Core, and Rajbhandari et al. 2020 (ZeRO, stage 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from da3po.config.schema import ConfigError, LearnerConfig, ParallelConfig
from da3po.models.families import Stage, Weight, stage_weights
from da3po.models.hf_config import ModelSpec
from da3po.models.layouts import Replicated, VocabularyRows, padded_vocab_size
from da3po.plan.layout import rank_layers

PARAMETER_ALIGNMENT = 64
"""Elements that the start of each parameter in the buffer is a multiple of."""
BUCKET_ALIGNMENT = 128
BUSY_BUCKET_ALIGNMENT = 1 << 16
"""Elements that the length of each bucket is a multiple of; the larger with ddp.pad_buckets_for_high_nccl_busbw."""
DEFAULT_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What one learner rank holds between steps.

    num_parameters: of its part of the model, vocabulary padding included.
    num_buffer: the same with the padding of the buffer, of weights and of gradients each.
    num_owned: parameters whose optimizer state is here.
    weights, gradients, optimizer: bytes. optimizer: two moments and, if the weights are no fp32, main weights.
    """

    num_parameters: int
    num_buffer: int
    num_owned: int
    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A part of the buffer. start, end: elements, padding included. parameters: (start, end) of each one in it."""

    start: int
    end: int
    parameters: tuple[tuple[int, int], ...]

    def num_owned(self, index: int, size: int) -> int:
        """Parameters in the share of data-parallel rank `index` of `size`."""
        share = (self.end - self.start) // size
        first, last = self.start + index * share, self.start + (index + 1) * share
        return sum(max(0, min(end, last) - max(start, first)) for start, end in self.parameters)


def pipeline_stages(num_layers: int, parallel: ParallelConfig, pp: int) -> list[Stage]:
    """The stages of pipeline rank `pp`: one, or with virtual stages several. Layers are counted within the rank."""
    shares = rank_layers(num_layers, parallel)
    if shares is None:
        raise ConfigError(f"{num_layers} layers cannot be shared out over parallel.pp={parallel.pp} ranks")
    last = parallel.pp - 1, parallel.vpp - 1
    each = shares[pp] // parallel.vpp
    return [
        Stage(first_layer=0, num_layers=each, embedding=(pp, number) == (0, 0), head=(pp, number) == last)
        for number in range(parallel.vpp)
    ]


def shard_elements(weight: Weight, tp: int) -> int:
    """Elements of a Megatron parameter on one tensor-parallel rank."""
    elements = sum(math.prod(shape) for shape in weight.hf.values())
    if isinstance(weight.layout, Replicated):
        return elements
    if isinstance(weight.layout, VocabularyRows):
        rows = weight.layout.vocab_size
        return elements // rows * padded_vocab_size(rows, tp) // tp
    return elements // tp


def shard_parameters(spec: ModelSpec, stage: Stage, tp: int) -> int:
    """Parameters of a stage on one of `tp` tensor-parallel ranks."""
    return sum(shard_elements(weight, tp) for weight in stage_weights(spec, stage))


def rank_state(spec: ModelSpec, parallel: ParallelConfig, learner: LearnerConfig, *, pp: int, dp: int) -> RankState:
    """Of the rank at pipeline index `pp` and at index `dp` among the parallel.dp x cp ranks that share the optimizer
    (cp fastest)."""
    size = parallel.dp * parallel.cp
    buffers = [
        lay_out(spec, stage, parallel, learner.megatron.ddp, bucketed=pp == 0 and number == 0)
        for number, stage in enumerate(pipeline_stages(spec.num_layers, parallel, pp))
    ]
    buckets = [bucket for buffer in buffers for bucket in buffer]
    num_parameters = sum(end - start for bucket in buckets for start, end in bucket.parameters)
    num_buffer = sum(buffer[-1].end for buffer in buffers)
    num_owned = sum(bucket.num_owned(dp, size) for bucket in buckets)
    half = learner.precision != "fp32"
    gradient_bytes = 4 if learner.megatron.ddp.get("grad_reduce_in_fp32", True) else (2 if half else 4)
    return RankState(
        num_parameters=num_parameters,
        num_buffer=num_buffer,
        num_owned=num_owned,
        weights=num_buffer * (2 if half else 4),
        gradients=num_buffer * gradient_bytes,
        optimizer=num_owned * (12 if half else 8),
    )


def lay_out(
    spec: ModelSpec, stage: Stage, parallel: ParallelConfig, ddp: Mapping[str, Any], *, bucketed: bool
) -> Sequence[Bucket]:
    """The buckets of one stage's buffer, in order."""
    size = parallel.dp * parallel.cp
    divisor = math.lcm(size, BUCKET_ALIGNMENT)
    if ddp.get("pad_buckets_for_high_nccl_busbw"):
        divisor = math.lcm(divisor, BUSY_BUCKET_ALIGNMENT)
    full = None
    if bucketed and ddp.get("overlap_grad_reduce"):
        full = ddp.get("bucket_size") or max(DEFAULT_BUCKET, BUCKET_PER_RANK * size)
    filling = _Filling(divisor)
    for weight in reversed(list(_in_model_order(stage_weights(spec, stage)))):
        # A copy of the embedding on the last stage must be shared out like the first stage's: each has its own bucket.
        alone = spec.tied and parallel.pp > 1 and isinstance(weight.layout, VocabularyRows)
        filling.add(shard_elements(weight, parallel.tp), alone=alone, full=full)
    return filling.finish()


def _in_model_order(weights: Iterator[Weight]) -> list[Weight]:
    """Megatron makes an attention's output projection before its input projection."""
    ordered: list[Weight] = []
    for weight in weights:
        if weight.megatron.endswith("linear_proj.weight"):
            qkv = next(i for i in range(len(ordered) - 1, -1, -1) if "linear_qkv.weight" in ordered[i].megatron)
            ordered.insert(qkv, weight)
        else:
            ordered.append(weight)
    return ordered


class _Filling:
    """Buckets being filled from the front."""

    def __init__(self, divisor: int) -> None:
        self._divisor = divisor
        self._buckets: list[Bucket] = []
        self._start = self._end = 0
        self._parameters: list[tuple[int, int]] = []

    def add(self, elements: int, *, alone: bool, full: int | None) -> None:
        """alone: the parameter has a bucket to itself. full: elements at which a bucket is closed."""
        begin = _up(self._end, PARAMETER_ALIGNMENT)
        if alone and self._parameters:
            self._end = begin
            self._close()
            begin = self._start
        self._parameters.append((begin, begin + elements))
        self._end = begin + elements
        if alone or (full is not None and self._end - self._start >= full):
            self._close()

    def _close(self) -> None:
        end = _up(self._end, self._divisor)
        self._buckets.append(Bucket(start=self._start, end=end, parameters=tuple(self._parameters)))
        self._start = self._end = end
        self._parameters = []

    def finish(self) -> Sequence[Bucket]:
        if self._parameters:
            self._close()
        return self._buckets


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
