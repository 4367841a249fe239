"""From problems to tokenised prompts. This is the only place where prompts are tokenised and where length counts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from da3po.config.schema import DataConfig
from da3po.data.problems import DataError, Problem
from da3po.data.sources import load_problems
from da3po.data.templates import TEMPLATES, Template
from da3po.data.tokenizer import Tokenizer
from da3po.types import Prompt

logger = logging.getLogger(__name__)


def load_prompts(name: str, config: DataConfig, tokenizer: Tokenizer) -> list[Prompt]:
    """Problems of a file (or `package:NAME`) as prompts under config: load, de-duplicate, render, tokenise, filter."""
    problems = load_problems(name, config)
    return build_prompts(problems, TEMPLATES[config.template], tokenizer, config.max_prompt_tokens, name)


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
