"""Graders by name, and custom ones by dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from da3po.config.schema import ConfigError, RewardConfig
from da3po.types import Grade, Outcome

Grader = Callable[[str, str], Grade]
"""grader(gold, response) -> Grade. The order of the arguments is fixed: the reference answer comes first."""

# Dotted paths, so that naming a grader imports nothing but that grader.
GRADERS: Mapping[str, str] = {
    "math": "da3po.reward.math.grade",
    "dapo_v1": "da3po.reward.dapo_v1.grade",
}


class GraderError(RuntimeError):
    """A grader that cannot be used, or that broke its contract; the message names it. It stops the run."""


def load_grader(name: str) -> Grader:
    """The grader called `name`, or the callable at a dotted path, held to its contract."""
    if name in GRADERS:
        return _import(name, GRADERS[name])
    if "." not in name:
        raise GraderError(
            f"reward.grader: no grader named {name!r}; there are {sorted(GRADERS)}, or give a dotted path"
        )
    return _checked(name, _import(name, name))


def _import(name: str, path: str) -> Callable[[str, str], Any]:
    module, _, attribute = path.rpartition(".")
    try:
        grader: Callable[[str, str], Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise GraderError(f"reward.grader={name}: {error}") from error
    if not callable(grader):
        raise GraderError(f"reward.grader={name}: not callable")
    return grader


def _checked(name: str, grader: Callable[[str, str], Any]) -> Grader:
    """A custom grader may return a Grade or a bool; anything else (None, NaN, a tuple of results) is an error."""

    def grade(gold: str, response: str) -> Grade:
        result = grader(gold, response)
        if isinstance(result, Grade):
            return result
        if isinstance(result, bool):
            return Grade(outcome=Outcome.CORRECT if result else Outcome.WRONG)
        raise GraderError(f"reward.grader={name} must return one Grade or bool, got {result!r}")

    return grade


def check_grader(config: RewardConfig) -> None:
    """Raises ConfigError if reward.grader names no grader, before anything is started."""
    try:
        load_grader(config.grader)
    except GraderError as error:
        raise ConfigError(str(error)) from error
