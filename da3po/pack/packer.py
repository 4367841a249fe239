"""A step's samples -> the optimizer updates of that step, ready for every data-parallel rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from da3po.config.schema import ConfigError, LossConfig
from da3po.pack.plan import plan
from da3po.pack.tensors import build_micro_batch, check, num_tokens, padded_length
from da3po.pack.weights import TokenWeights, build_token_weights
from da3po.types import MicroBatch, PackedStep, PackedUpdate, StepBatch, StepStats, TrainSample

Bundle = list[TrainSample]
"""The samples of one micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Called with a StepBatch, gives the PackedStep.

    loss: which mean over tokens the weights express.
    dp: data-parallel ranks.
    max_tokens: budget of a micro-batch, padding included; a longer sequence travels alone.
    pad_to_multiple: the tokens of every micro-batch are a multiple of it (sequence parallel needs the TP size).
    sequence_multiple: the tokens of every sequence are a multiple of it (context parallel needs twice the CP size).
    micro_batch_multiple: the micro-batches of a rank are a multiple of it (virtual stages need the PP size).
    equal_lengths: the micro-batches of a rank in an update are padded to the longest (virtual stages need it).
    prompts_per_update: groups of one optimizer update, the last of a step may have fewer; None is one update a step.
    zero_advantage: samples whose gradient is 0, for they have no advantage or no response, stay (learn), get
        micro-batches of their own that do not learn (measure), or are left out (skip). They count in every mean alike,
        and stay where it depends on the split into micro-batches (loss.normalizer=reference).
    """

    loss: LossConfig
    dp: int
    max_tokens: int
    pad_to_multiple: int = 1
    sequence_multiple: int = 1
    micro_batch_multiple: int = 1
    equal_lengths: bool = False
    prompts_per_update: int | None = None
    zero_advantage: Literal["learn", "measure", "skip"] = "learn"

    def __post_init__(self) -> None:
        if self.pad_to_multiple % self.sequence_multiple:
            raise ValueError(f"{self.sequence_multiple} does not divide {self.pad_to_multiple}")
        if self.max_tokens < self.pad_to_multiple:
            raise ConfigError(
                f"learner.max_tokens_per_micro_batch ({self.max_tokens}) is less than the multiple of "
                f"{self.pad_to_multiple} tokens that the parallel layout needs"
            )

    def __call__(self, batch: StepBatch) -> PackedStep:
        """Raises ValueError for a batch without samples, and for a sample that cannot be trained on."""
        for sample in batch.samples:
            check(sample)
        updates = tuple(self._pack(samples) for samples in self._split(batch))
        return PackedStep(step=batch.step, updates=updates, stats=_stats(updates))

    def _split(self, batch: StepBatch) -> Iterator[Sequence[TrainSample]]:
        """The samples of each update; groups are never cut."""
        per_update = self.prompts_per_update or len(batch.group_sizes)
        start = 0
        for first in range(0, len(batch.group_sizes), per_update):
            stop = start + sum(batch.group_sizes[first : first + per_update])
            yield batch.samples[start:stop]
            start = stop

    def _pack(self, samples: Sequence[TrainSample]) -> PackedUpdate:
        counts = [len(sample.response_ids) for sample in samples]
        token_weights = build_token_weights(self.loss, counts)
        planned = self._plan(samples)
        ranks = [[(learns, bundle) for learns, ranks in planned for bundle in ranks[dp]] for dp in range(self.dp)]
        return PackedUpdate(
            micro_batches=tuple(self._build(rank, token_weights) for rank in ranks),
            num_sequences=len(samples),
            num_response_tokens=sum(counts),
            num_packed_tokens=sum(num_tokens(sample) for rank in ranks for _, bundle in rank for sample in bundle),
        )

    def _plan(self, samples: Sequence[TrainSample]) -> list[tuple[bool, list[list[Bundle]]]]:
        """The samples to learn from, at least one, and those to measure only: each shared out among the ranks."""
        learning = [sample for sample in samples if _has_gradient(sample)]
        if not learning or self.zero_advantage == "learn" or self.loss.normalizer == "reference":
            return [(True, self._share_out(samples))]
        kinds = [(True, self._share_out(learning))]
        if self.zero_advantage == "measure" and len(learning) < len(samples):
            kinds.append((False, self._share_out([sample for sample in samples if not _has_gradient(sample)])))
        return kinds

    def _share_out(self, samples: Sequence[TrainSample]) -> list[list[Bundle]]:
        budget = self.max_tokens - self.max_tokens % self.pad_to_multiple
        lengths = [padded_length(sample, self.sequence_multiple) for sample in samples]
        layout = plan(lengths, self.dp, budget, self.micro_batch_multiple)
        return [[[samples[index] for index in indices] for indices in rank] for rank in layout.micro_batches]

    def _build(self, rank: Sequence[tuple[bool, Bundle]], token_weights: TokenWeights) -> tuple[MicroBatch, ...]:
        pad_to = self._pad_to(
            [sum(padded_length(sample, self.sequence_multiple) for sample in bundle) for _, bundle in rank]
        )
        return tuple(
            build_micro_batch(
                bundle,
                token_weights([len(sample.response_ids) for sample in bundle]),
                pad_to,
                self.sequence_multiple,
                learns=learns,
            )
            for learns, bundle in rank
        )

    def _pad_to(self, loads: Sequence[int]) -> int:
        """The multiple that each of a rank's micro-batches is padded to."""
        if not self.equal_lengths:
            return self.pad_to_multiple
        return -(-max(loads) // self.pad_to_multiple) * self.pad_to_multiple or self.pad_to_multiple


def _has_gradient(sample: TrainSample) -> bool:
    return bool(sample.advantage and sample.response_ids)


def _stats(updates: Sequence[PackedUpdate]) -> StepStats:
    """pack/waste: share of padding among all tokens. pack/num_micro_batches: of one rank, over the step.
    pack/num_measured: sequences that nothing is learned from, and that take a forward pass alone. pack/num_tokens: in
    micro-batches, padding excluded.

    pack/imbalance: in every update the ranks wait for the one with the most tokens; the tokens that this costs, as a
    share of the mean rank's.
    """
    loads = [[sum(len(mb.input_ids) for mb in rank) for rank in update.micro_batches] for update in updates]
    num_padded = sum(map(sum, loads))
    num_real = sum(update.num_packed_tokens for update in updates)
    slowest = sum(max(ranks) for ranks in loads)
    mean = sum(sum(ranks) / len(ranks) for ranks in loads)
    return StepStats(
        {
            "pack/num_updates": len(updates),
            "pack/num_micro_batches": sum(len(update.micro_batches[0]) for update in updates),
            "pack/num_sequences": sum(update.num_sequences for update in updates),
            "pack/num_measured": sum(
                mb.num_sequences for update in updates for rank in update.micro_batches for mb in rank if not mb.learns
            ),
            "pack/num_tokens": num_real,
            "pack/num_response_tokens": sum(update.num_response_tokens for update in updates),
            "pack/waste": 1 - num_real / num_padded,
            "pack/imbalance": slowest / mean - 1,
        }
    )
