"""The share of every response token in the loss of an optimizer update: all denominators, counted once.

N sequences in the update over all ranks, |o_i| response tokens of sequence i, and n_m sequences with T_m response
tokens in micro-batch m. The loss is the sum of weight x token loss over the update, with these weights:

| aggregation   | normalizer | weight of a token of sequence i | mean over                                       |
|---------------|------------|---------------------------------|-------------------------------------------------|
| token_mean    | global     | 1 / sum_i |o_i|                 | all tokens (Eq. 9-10)                           |
| sequence_mean | global     | 1 / (N |o_i|)                   | a sequence's tokens, then sequences (Eq. 4)     |
| token_mean    | reference  | n_m / (N T_m)                   | a micro-batch's tokens, then all, by sequences  |
| sequence_mean | reference  | 1 / (N |o_i|)                   | the same as global: a mean of equal parts       |

`reference` is what the 2025 DAPO recipe computes: the mean of each micro-batch, weighted by its share of its rank's
sequences, averaged over ranks that hold equally many sequences. It alone depends on the split. A sequence with an empty
response has no token to weigh and still counts in N and n_m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from da3po.config.schema import LossConfig

TokenWeights = Callable[[Sequence[int]], list[float]]
"""Of the sequences of one micro-batch: response tokens of each -> weight of each one's tokens."""


def build_token_weights(config: LossConfig, num_response_tokens: Sequence[int]) -> TokenWeights:
    """num_response_tokens: of every sequence of the optimizer update."""
    num_sequences, num_tokens = len(num_response_tokens), sum(num_response_tokens)

    def token_mean(counts: Sequence[int]) -> list[float]:
        return [_share(1, num_tokens)] * len(counts)

    def sequence_mean(counts: Sequence[int]) -> list[float]:
        return [_share(1, num_sequences * count) for count in counts]

    def micro_batch_mean(counts: Sequence[int]) -> list[float]:
        return [_share(len(counts), num_sequences * sum(counts))] * len(counts)

    return {
        ("token_mean", "global"): token_mean,
        ("sequence_mean", "global"): sequence_mean,
        ("token_mean", "reference"): micro_batch_mean,
        ("sequence_mean", "reference"): sequence_mean,
    }[config.aggregation, config.normalizer]


def _share(numerator: int, denominator: int) -> float:
    """0 where there is no token to take the share."""
    return numerator / denominator if denominator else 0.0
