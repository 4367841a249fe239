"""From the samples of one micro-batch to its tensors.

Token t of a sequence predicts token t+1, so everything about a response token stands at the position before it.
Shape legend: T tokens of the micro-batch, S sequences in it, the padding sequence included.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from da3po.types import MicroBatch, TrainSample


def num_tokens(sample: TrainSample) -> int:
    """Tokens that the sample takes in a micro-batch: prompt and response."""
    return len(sample.prompt_ids) + len(sample.response_ids)


def check(sample: TrainSample) -> None:
    """Raise ValueError for a sample that cannot be trained on."""
    if not sample.prompt_ids:
        raise ValueError(f"prompt {sample.prompt_uid} has no tokens, so nothing predicts the first of its response")
    if len(sample.behaviour_logprobs) != len(sample.response_ids):
        raise ValueError(
            f"prompt {sample.prompt_uid}: {len(sample.response_ids)} response tokens and "
            f"{len(sample.behaviour_logprobs)} log-probs"
        )


def padded_length(sample: TrainSample, sequence_multiple: int) -> int:
    """Tokens that the sample takes once its end is padded to a multiple of `sequence_multiple`."""
    return -(-num_tokens(sample) // sequence_multiple) * sequence_multiple


def build_micro_batch(
    samples: Sequence[TrainSample],
    weights: Sequence[float],
    pad_to_multiple: int,
    sequence_multiple: int = 1,
    *,
    learns: bool = True,
) -> MicroBatch:
    """Pack samples end to end and pad once, with a sequence without weight, to a multiple of `pad_to_multiple` tokens.

    weights: of each sample's response tokens. Without samples the result is all padding, so that a rank with nothing
    left to do can still take its part in the schedule.
    sequence_multiple: each sample is padded at its end to a multiple of it; it divides `pad_to_multiple`.
    learns: see MicroBatch.
    """
    real_lengths = [num_tokens(sample) for sample in samples]
    lengths = [padded_length(sample, sequence_multiple) for sample in samples]
    num_padding = -sum(lengths) % pad_to_multiple if samples else pad_to_multiple
    ends = [padded - real for padded, real in zip(lengths, real_lengths, strict=True)]
    ids, logprobs = _flatten(samples, ends, num_padding)  # [T], [T]
    if num_padding:
        lengths.append(num_padding)
    segments = _Segments(lengths)
    prompt_lengths = segments.padded([len(sample.prompt_ids) for sample in samples], torch.int64, num_padding)
    whole_lengths = segments.padded(real_lengths, torch.int64, num_padding)
    positions = segments.positions
    loss_mask = (positions >= segments.spread(prompt_lengths) - 1) & (positions < segments.spread(whole_lengths) - 1)

    def on_responses(values: Sequence[float]) -> Tensor:
        per_token = segments.spread(segments.padded(values, torch.float32, 0.0))
        return torch.where(loss_mask, per_token, 0.0)

    fresh = segments.spread(segments.padded([sample.fresh for sample in samples], torch.bool, False))
    return MicroBatch(
        input_ids=ids,
        labels=segments.next_in_sequence(ids),
        position_ids=positions,
        cu_seqlens=segments.boundaries.to(torch.int32),
        max_seqlen=max(lengths),
        segment_ids=segments.ids,
        loss_mask=loss_mask,
        weights=on_responses(weights),
        advantages=on_responses([sample.advantage for sample in samples]),
        behaviour_logprobs=logprobs,
        fresh=fresh,
        num_sequences=len(samples),
        learns=learns,
    )


class _Segments:
    """Where the sequences of a packed micro-batch begin and end."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)  # [S]
        self.boundaries = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])  # [S+1]
        self.ids = torch.repeat_interleave(torch.arange(len(lengths)), self.lengths)  # [T]
        self.positions = torch.arange(int(self.boundaries[-1])) - self.boundaries[self.ids]  # [T]

    def padded(self, values: Sequence[float], dtype: torch.dtype, padding: float) -> Tensor:
        """[S]: a value per sample, and `padding` for the padding sequence where there is one."""
        return torch.tensor([*values, *[padding] * (len(self.lengths) - len(values))], dtype=dtype)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """[S] -> [T]."""
        return per_sequence[self.ids]

    def next_in_sequence(self, ids: Tensor) -> Tensor:
        """[T]: the next token of the same sequence, 0 at its end."""
        labels = ids.roll(-1)
        labels[self.boundaries[1:] - 1] = 0
        return labels


def _flatten(samples: Sequence[TrainSample], ends: Sequence[int], num_padding: int) -> tuple[Tensor, Tensor]:
    """Token ids [T] int64, and the engine's log-prob of the token after each [T] float32, 0 where there is none.

    ends: tokens of padding at the end of each sample.
    Through arrays, which take a Python list several times faster than torch.tensor does.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    for sample, end in zip(samples, ends, strict=True):
        ids.extend(sample.prompt_ids)
        ids.extend(sample.response_ids)
        ids.extend(repeat(0, end))
        logprobs.extend(repeat(0.0, len(sample.prompt_ids) - 1))
        logprobs.extend(sample.behaviour_logprobs)
        logprobs.extend(repeat(0.0, end + 1))
    ids.extend(repeat(0, num_padding))
    logprobs.extend(repeat(0.0, num_padding))
    return (
        torch.frombuffer(array("q", ids), dtype=torch.int64),
        torch.frombuffer(array("f", logprobs), dtype=torch.float32),
    )
