"""Direct Advantage Amplification (Eq. 14), after normalisation and before the advantage is spread over tokens.

A correct sample of a hard group (p_hat < tau) has its advantage multiplied by lambda. Correct means R_acc > 0, as in
Algorithm 1; Eq. 14 writes R_i > 0, which differs only where shaping brings a correct sample's reward to exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from da3po.algo.theory import gamma
from da3po.config.schema import DaaConfig


def amplify(
    advantages: Sequence[float], correct: Sequence[bool], *, factor: float, tau: float, only_positive: bool
) -> list[float]:
    """Eq. 14 on one group.

    advantages, correct: one entry per graded sample, from the group advantage and from the raw outcome.
    factor: lambda >= 1. tau: hard means p_hat < tau, strictly.
    only_positive: leave negative advantages alone; a correct sample has one if it was punished for its length.
    """
    if not sum(correct) / len(correct) < tau:
        return list(advantages)
    return [
        advantage * factor if right and (advantage > 0 or not only_positive) else advantage
        for advantage, right in zip(advantages, correct, strict=True)
    ]


class Daa(Protocol):
    """`observe` sees every graded group once, kept or not; `apply` sees those that are trained on."""

    def observe(self, uid: str, num_correct: int, num_graded: int, /) -> None: ...

    def apply(self, uid: str, advantages: Sequence[float], correct: Sequence[bool], /) -> list[float]: ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold, ready for JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a `state_dict`; what another kind of DAA saved is of no use to this one and is left."""
        ...


class _Stateless:
    def observe(self, uid: str, num_correct: int, num_graded: int, /) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class ConstantDaa(_Stateless):
    """The same lambda for every hard group; 1 changes nothing."""

    def __init__(self, config: DaaConfig, factor: float) -> None:
        self._config = config
        self._factor = factor

    def apply(self, _uid: str, advantages: Sequence[float], correct: Sequence[bool], /) -> list[float]:
        config = self._config
        return amplify(advantages, correct, factor=self._factor, tau=config.tau, only_positive=config.only_positive)


class AdaptiveDaa:
    """lambda = clip(1 / gamma(p, G), 1, lambda_max): undo what dynamic sampling did to this prompt.

    p is the mean of a Beta posterior over all outcomes the prompt has had in this run, the group at hand included,
    since on a first visit there is nothing else. The prior is worth `prior` samples, half of them correct.
    """

    def __init__(self, config: DaaConfig) -> None:
        self._config = config
        self._history: dict[str, tuple[int, int]] = {}  # prompt uid -> (correct, graded)

    def observe(self, uid: str, num_correct: int, num_graded: int, /) -> None:
        correct, graded = self._history.get(uid, (0, 0))
        self._history[uid] = (correct + num_correct, graded + num_graded)

    def factor(self, uid: str, num_samples: int) -> float:
        """lambda for a group of so many graded samples."""
        correct, graded = self._history.get(uid, (0, 0))
        p = (correct + self._config.prior / 2) / (graded + self._config.prior)
        return min(max(1.0 / gamma(p, num_samples), 1.0), self._config.lambda_max)

    def apply(self, uid: str, advantages: Sequence[float], correct: Sequence[bool], /) -> list[float]:
        config = self._config
        factor = self.factor(uid, len(advantages))
        return amplify(advantages, correct, factor=factor, tau=config.tau, only_positive=config.only_positive)

    def state_dict(self) -> dict[str, Any]:
        return {"history": {uid: list(counts) for uid, counts in self._history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history = {uid: (correct, graded) for uid, (correct, graded) in state.get("history", {}).items()}


def build_daa(config: DaaConfig) -> Daa:
    match config.kind:
        case "off":
            return ConstantDaa(config, 1.0)
        case "constant":
            return ConstantDaa(config, config.lambda_)
        case "adaptive":
            return AdaptiveDaa(config)
