"""The carriers that travel between rooms.

All are frozen: a batch is never edited in place, and token ids that an engine produced are never decoded and tokenised
again. Token counts are taken once, at packing.

Shape legend: T tokens of a packed micro-batch, S sequences in it, G samples of one prompt.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem, rendered and tokenised, ready for an engine.

    uid: stable identity of the problem (a hash of its source and text); equal problems have equal uids.
    draw: how many prompts the data cursor handed out before this one; it orders groups and seeds samples.
    epoch: how many times the cursor had been through the data set when it handed this one out.
    text: the rendered prompt, exactly what `token_ids` encodes.
    token_ids: the ids that the engine is given and the learner trains on.
    gold: the reference answer, as the data set states it.
    source: name of the data set it came from.
    """

    uid: str
    draw: int
    epoch: int
    text: str
    token_ids: tuple[int, ...]
    gold: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How an engine samples. Every field is set by the caller; nothing comes from a model's generation_config.

    temperature: > 0; log-probs are those of the distribution after temperature, top_p and top_k.
    top_p, top_k: 1.0 and -1 switch them off.
    max_tokens: most response tokens.
    ignore_eos: go on to `max_tokens` past an end-of-sequence token.
    """

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """Ask one engine for all samples of one prompt.

    key: identifies the request in this run (the prompt's draw in training, its row in evaluation).
    seeds: one per sample, so that samples differ and a repeated run draws the same.
    """

    key: int
    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled response.

    token_ids: the sampled ids, the end-of-sequence token included where it was sampled.
    logprobs: log-probability of each sampled id under the processed distribution; same length as `token_ids`.
    text: the ids decoded without special tokens; for graders and people only.
    finish: "stop" (end-of-sequence or stop id), "length" (cut at max_tokens) or "abort" (infrastructure).
    weight_version: version of the weights that produced it, of the oldest if there were several.
    versions: (version, number of tokens) of each stretch, in order, if weights were exchanged while it was sampled;
        empty if `weight_version` produced it all.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: FinishReason
    weight_version: int
    versions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What an engine returns for a `GroupRequest`: completions in the order of its seeds."""

    key: int
    completions: tuple[Completion, ...]


class Outcome(enum.StrEnum):
    """What grading one response came to: CORRECT, WRONG and NO_ANSWER are grades, the rest are failures to grade."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"
    ABORTED = "aborted"

    @property
    def graded(self) -> bool:
        return self in (Outcome.CORRECT, Outcome.WRONG, Outcome.NO_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A grader's word on one response.

    answer: the final answer that was extracted, or None.
    detail: for TIMEOUT and ERROR, what happened.
    """

    outcome: Outcome
    answer: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All samples of one prompt with their grades; `completions[i]` was graded `grades[i]`."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    grades: tuple[Grade, ...]

    @property
    def num_graded(self) -> int:
        return sum(grade.outcome.graded for grade in self.grades)

    @property
    def num_correct(self) -> int:
        return sum(grade.outcome is Outcome.CORRECT for grade in self.grades)

    @property
    def p_hat(self) -> float:
        """Share of correct samples among the graded ones, always from the raw outcome, never from a shaped reward."""
        return self.num_correct / self.num_graded


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGroup:
    """A group that dynamic sampling left out, and its reason in a word."""

    group: Group
    reason: str


class TrainSample(NamedTuple):
    """One response with its learning signal. A named tuple, since a step makes thousands: a frozen dataclass takes five
    times as long.

    behaviour_logprobs: the engine's log-prob of each response token.
    reward: R_acc + R_len (Eq. 7).
    advantage: after DAA; every response token gets it.
    fresh: True if the weights that open this step produced all of it, so that engine and learner must agree on
        log-probs.
    """

    prompt_uid: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    reward: float
    advantage: float
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """All samples of one training step, in a fixed order, with what happened on the way to them.

    step: number of the training step, from 1.
    samples: whole groups one after another; a group's samples are adjacent.
    group_sizes: samples per group, in order; sums to len(samples).
    stats: metrics of the rollout and post-processing stages.
    groups: the groups that the samples came from, for the record; so are the next two.
    plain_advantages: of every sample, before DAA.
    dropped: the groups that were generated and not trained on.
    """

    step: int
    samples: tuple[TrainSample, ...]
    group_sizes: tuple[int, ...]
    stats: StepStats
    groups: tuple[Group, ...] = ()
    plain_advantages: tuple[float, ...] = ()
    dropped: tuple[DroppedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Sequences packed end to end, padded once at the end with a sequence that carries no weight.

    input_ids: [T] int64.
    labels: [T] int64, the next token of the same sequence; 0 where there is none.
    position_ids: [T] int64, from 0 in every sequence.
    cu_seqlens: [S+1] int32, cumulative lengths, padding sequence included.
    max_seqlen: longest sequence, padding included.
    segment_ids: [T] int64, index of each token's sequence, for per-sequence sums.
    loss_mask: [T] bool, True where the label is a response token.
    weights: [T] float32, share of each token in the step's loss; the loss is sum(weights * token loss) over all
        micro-batches of all ranks, so the normaliser is the same for every split. 0 outside `loss_mask`.
    advantages: [T] float32.
    behaviour_logprobs: [T] float32, the engine's.
    fresh: [T] bool, see TrainSample.
    num_sequences: real sequences, padding excluded.
    learns: whether a gradient can come from it; otherwise a forward pass is enough, for the metrics.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    segment_ids: Tensor
    loss_mask: Tensor
    weights: Tensor
    advantages: Tensor
    behaviour_logprobs: Tensor
    fresh: Tensor
    num_sequences: int
    learns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedUpdate:
    """The data of one optimizer update: `micro_batches[d]` goes to data-parallel rank d.

    All ranks have the same number of those that learn, at least one, and of those that do not.

    num_sequences, num_response_tokens: of the update's samples, those that are in no micro-batch included.
    num_packed_tokens: in the micro-batches, padding excluded.
    """

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    num_sequences: int
    num_response_tokens: int
    num_packed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """A training step as the learner takes it: one or more optimizer updates.

    step: number of the training step, from 1; the learning rate is a function of it.
    """

    step: int
    updates: tuple[PackedUpdate, ...]
    stats: StepStats


@dataclass(frozen=True, slots=True)
class StepStats:
    """Metrics of one stage of one step: name -> value, as they are logged."""

    values: Mapping[str, float] = field(default_factory=dict)

    def __or__(self, other: StepStats) -> StepStats:
        """Both together; a name in both is an error, since two rooms would be saying different things under it."""
        twice = self.values.keys() & other.values.keys()
        if twice:
            raise ValueError(f"metrics named twice: {sorted(twice)}")
        return StepStats({**self.values, **other.values})


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSum:
    """Proof of one weight bucket: the names in it, its bytes, and a checksum of them."""

    names: tuple[str, ...]
    num_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """What was sent, or received, under one version: the buckets in order, stage after stage."""

    version: int
    buckets: tuple[BucketSum, ...]

    @property
    def num_bytes(self) -> int:
        return sum(bucket.num_bytes for bucket in self.buckets)
