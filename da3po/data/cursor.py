"""Where training stands in its data. The whole state is one count, so it can be saved at any moment."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from da3po.data.mixture import Mixture
from da3po.data.problems import DataError
from da3po.types import Prompt


class Cursor:
    """Hands out prompts for ever, epoch after epoch, in an order that is a pure function of (seed, epoch).

    A batch may span two epochs. Which prompt is draw number d depends on seed, data and d alone, so a resumed run
    draws what an uninterrupted one would.
    """

    def __init__(
        self, prompts: Sequence[Prompt], seed: int, shuffle: bool, weights: Sequence[float] | None = None
    ) -> None:
        """
        Args:
            weights: how often each prompt comes in an epoch, once if not given (see da3po.data.mixture).
        """
        if not prompts:
            raise DataError("a cursor needs at least one prompt")
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._mixture = Mixture(weights or [1.0] * len(prompts), seed)
        self._identity = {
            "num_prompts": len(prompts),
            "fingerprint": fingerprint(prompts),
            "seed": seed,
            "shuffle": shuffle,
            "weights": self._mixture.describe(),
        }
        self._num_drawn = 0
        self._order_epoch = -1
        self._order: Sequence[int] = ()

    @property
    def num_drawn(self) -> int:
        """Prompts handed out so far; also the draw number of the next one."""
        return self._num_drawn

    def draw(self, n: int) -> list[Prompt]:
        """The next n prompts, `draw` and `epoch` filled in."""
        batch = [self._at(number) for number in range(self._num_drawn, self._num_drawn + n)]
        self._num_drawn += n
        return batch

    def give_back(self, n: int) -> None:
        """Undo the last n draws; those prompts come next, under the same draw numbers."""
        self._num_drawn -= n

    def state_dict(self) -> dict[str, Any]:
        """The count, and what it counts in; cheap, since it is asked for after every batch."""
        return {"num_drawn": self._num_drawn, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Raises DataError if it was saved over other data or another order."""
        for key, here in self._identity.items():
            if state[key] != here:
                raise DataError(
                    f"the saved data position belongs to another {_MEANING[key]} "
                    f"({key} was {state[key]}, is {here}); a run resumes only on the data it started with"
                )
        self._num_drawn = state["num_drawn"]

    def _at(self, number: int) -> Prompt:
        epoch = self._mixture.epoch_of(number)
        if epoch != self._order_epoch:
            members = self._mixture.members(epoch)
            self._order = _shuffled(members, self._seed, epoch) if self._shuffle else members
            self._order_epoch = epoch
        place = number - self._mixture.start(epoch)
        return dataclasses.replace(self._prompts[self._order[place]], draw=number, epoch=epoch)


_MEANING = {
    "fingerprint": "data set, template or tokenizer",
    "num_prompts": "data set",
    "seed": "seed (run.seed)",
    "shuffle": "order (data.shuffle)",
    "weights": "mixture (weights of data.train)",
}


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash of what is trained on, in order: uid, token ids and reference answer of every prompt."""
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(f"{prompt.uid}\x1f{prompt.token_ids}\x1f{prompt.gold}\x1e".encode())
    return digest.hexdigest()


def _shuffled(members: Sequence[int], seed: int, epoch: int) -> list[int]:
    order = list(members)
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
