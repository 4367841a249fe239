"""From problems to tokenised prompts. This is the only place where prompts are tokenised and where length counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from da3po.config.schema import DataConfig
from da3po.data.difficulty import select
from da3po.data.problems import DataError, Problem
from da3po.data.sources import load_problems
from da3po.data.templates import TEMPLATES, Template
from da3po.data.tokenizer import Tokenizer
from da3po.types import Prompt

logger = logging.getLogger(__name__)


GoldCheck = Callable[[str], str | None]
"""Why a reference answer cannot be used, or None if it can: the grader's word."""
_NUM_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet:
    """The prompts of all sources, one source after another; `weights[i]` is how often prompt i comes in an epoch."""

    prompts: Sequence[Prompt]
    weights: Sequence[float]


def load_training_set(config: DataConfig, tokenizer: Tokenizer, check_gold: GoldCheck) -> TrainingSet:
    """Every source of data.train, chosen by difficulty; where sources share a problem, its first copy stays."""
    prompts: list[Prompt] = []
    weights: list[float] = []
    seen: set[str] = set()
    for source in config.sources:
        problems = select(load_problems(source.path, config), config.difficulty, source.path)
        loaded = _prompts(source.path, problems, config, tokenizer, check_gold)
        own = [prompt for prompt in loaded if not (config.dedup and prompt.uid in seen)]
        if len(own) < len(loaded):
            logger.info("%s: %d prompts left out, an earlier source has them", source.path, len(loaded) - len(own))
        seen |= {prompt.uid for prompt in own}
        prompts += own
        weights += [source.weight] * len(own)
    return TrainingSet(prompts=prompts, weights=weights)


def load_prompts(name: str, config: DataConfig, tokenizer: Tokenizer, check_gold: GoldCheck) -> list[Prompt]:
    """Problems of one source as prompts under config: load, de-duplicate, render, tokenise, filter."""
    return _prompts(name, load_problems(name, config), config, tokenizer, check_gold)


def _prompts(
    name: str, problems: Sequence[Problem], config: DataConfig, tokenizer: Tokenizer, check_gold: GoldCheck
) -> list[Prompt]:
    report_golds(problems, check_gold, name)
    return build_prompts(problems, TEMPLATES[config.template], tokenizer, config.max_prompt_tokens, name)


def report_golds(problems: Sequence[Problem], check_gold: GoldCheck, name: str) -> None:
    """Warn of reference answers that the grader cannot read: only the very same text would be right."""
    reasons = {gold: check_gold(gold) for gold in dict.fromkeys(problem.gold for problem in problems)}
    bad = [f"row {problem.row}: {reasons[problem.gold]}" for problem in problems if reasons[problem.gold]]
    if bad:
        named = "; ".join(bad[:_NUM_NAMED]) + (" ..." if len(bad) > _NUM_NAMED else "")
        logger.warning("%s: %d reference answers that the grader cannot read: %s", name, len(bad), named)


def build_prompts(
    problems: Sequence[Problem], template: Template, tokenizer: Tokenizer, max_tokens: int, name: str
) -> list[Prompt]:
    """One prompt per problem, in order; those of more than `max_tokens` tokens are left out, counted and logged.

    `draw` of each is its place in the list and `epoch` is 0; a cursor hands out copies with its own.
    """
    texts = [template.render(problem, tokenizer) for problem in problems]
    token_ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    kept = [
        (problem, text, ids)
        for problem, text, ids in zip(problems, texts, token_ids, strict=True)
        if len(ids) <= max_tokens
    ]
    if not kept:
        lengths = [len(ids) for ids in token_ids]
        raise DataError(
            f"{name}: all {len(lengths)} prompts are longer than data.max_prompt_tokens={max_tokens} "
            f"(shortest {min(lengths)}, longest {max(lengths)} tokens)"
        )
    num_filtered = len(texts) - len(kept)
    logger.info("%s: %d prompts, %d filtered (longer than %d tokens)", name, len(kept), num_filtered, max_tokens)
    return [
        Prompt(
            uid=problem.uid,
            draw=place,
            epoch=0,
            text=text,
            token_ids=tuple(ids),
            gold=problem.gold,
            source=problem.source,
        )
        for place, (problem, text, ids) in enumerate(kept)
    ]
