"""Sample the tiny base and count what it gets right; plain PyTorch, so that making it needs no engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from make_quickstart_data import Problem
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

EOS_ID = 256
MAX_ANSWER_TOKENS = 8


def prompt_ids(text: str) -> list[int]:
    """The prompt of data.template=answer_line, as the byte-level tokenizer encodes it."""
    return list(f"{text}\nAnswer: ".encode())


@torch.inference_mode()
def sample(
    model: Qwen3ForCausalLM, prompt: Sequence[Sequence[int]], num_samples: int, generator: torch.Generator | None
) -> list[list[list[int]]]:
    """`num_samples` responses (without the end token) to each prompt at temperature 1; without a generator, greedy.

    Prompts of one length go through the model together, so that no row needs padding.
    """
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(prompt):
        by_length.setdefault(len(ids), []).append(i)
    responses: list[list[list[int]]] = [[] for _ in prompt]
    for rows in by_length.values():
        tokens = _continue(model, torch.tensor([prompt[i] for i in rows]), num_samples, generator)
        for i, drawn in zip(rows, tokens.view(len(rows), num_samples, -1).tolist(), strict=True):
            responses[i] = [ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids for ids in drawn]
    return responses


def _continue(
    model: Qwen3ForCausalLM, input_ids: Tensor, num_samples: int, generator: torch.Generator | None
) -> Tensor:
    """[P, T] prompts -> [P * num_samples, MAX_ANSWER_TOKENS] sampled ids; what follows an end token is meaningless."""
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    cache.batch_repeat_interleave(num_samples)
    logits = logits.repeat_interleave(num_samples, dim=0)
    drawn: list[Tensor] = []
    for _ in range(MAX_ANSWER_TOKENS):
        if generator is None:
            drawn.append(logits.argmax(dim=-1))
        else:
            drawn.append(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0])
        if len(drawn) < MAX_ANSWER_TOKENS:
            logits = model(input_ids=drawn[-1][:, None], past_key_values=cache, use_cache=True).logits[:, -1]
    return torch.stack(drawn, dim=1)


def count_correct(
    model: Qwen3ForCausalLM, problems: Sequence[Problem], num_samples: int, seed: int | None
) -> list[int]:
    """How many of `num_samples` responses to each problem are exactly its answer; seed None decodes greedily."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    responses = sample(model, [prompt_ids(problem.text) for problem in problems], num_samples, generator)
    return [
        sum(bytes(min(i, 255) for i in ids) == str(problem.answer).encode() for ids in drawn)
        for problem, drawn in zip(problems, responses, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Accuracy on a set of problems.

    num_samples: responses drawn to each problem.
    num_correct: how many of them were right, by problem.
    greedy: whether the greedy response was right, by problem.
    """

    problems: tuple[Problem, ...]
    num_samples: int
    num_correct: tuple[int, ...]
    greedy: tuple[bool, ...]

    def mean(self) -> tuple[float, float]:
        """avg@num_samples and half the width of its 95 % interval, clustered by problem."""
        rates = torch.tensor(self.num_correct, dtype=torch.float64) / self.num_samples
        return rates.mean().item(), 1.96 * rates.std().item() / math.sqrt(len(rates))

    def pass_at(self, k: int) -> float:
        """Unbiased pass@k (Chen et al., 2021)."""
        n = self.num_samples
        misses = (math.comb(n - correct, k) / math.comb(n, k) for correct in self.num_correct)
        return 1 - sum(misses) / len(self.problems)

    def histogram(self) -> list[int]:
        """Number of problems by correct samples, 0 .. num_samples."""
        return [self.num_correct.count(correct) for correct in range(self.num_samples + 1)]

    def by_kind(self) -> list[tuple[str, int, float, float]]:
        """(kind, problems, sampled accuracy, greedy accuracy) of every kind that occurs, by name."""
        rows = []
        for kind in sorted({problem.kind for problem in self.problems}):
            at = [i for i, problem in enumerate(self.problems) if problem.kind == kind]
            sampled = sum(self.num_correct[i] for i in at) / (self.num_samples * len(at))
            rows.append((kind, len(at), sampled, sum(self.greedy[i] for i in at) / len(at)))
        return rows


def score(model: Qwen3ForCausalLM, problems: Sequence[Problem], num_samples: int, seed: int) -> Score:
    return Score(
        problems=tuple(problems),
        num_samples=num_samples,
        num_correct=tuple(count_correct(model, problems, num_samples, seed)),
        greedy=tuple(correct == 1 for correct in count_correct(model, problems, 1, None)),
    )
