"""What the ranks of a scenario left on disk, and what must hold of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from learner_ranks import Scenario

TOLERANCE = 1e-5


class Seen:
    """What the ranks of a scenario left."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.out = Path(scenario.out)
        paths = [self.out / f"rank{rank}.pt" for rank in range(scenario.parallel.num_ranks)]
        self.ranks: list[dict[str, Any]] = [torch.load(path, weights_only=False) for path in paths]

    def whole(self, what: str) -> dict[str, torch.Tensor]:
        """The tensors of all pipeline stages."""
        return {name: tensor for rank in self.ranks for name, tensor in rank[what].items()}

    @property
    def metrics(self) -> list[dict[str, float]]:
        return self.ranks[0]["metrics"]

    def own(self, rank: int, name: str) -> torch.Tensor:
        """The one parameter of a rank with this name, in whichever of its stages."""
        (found,) = (value for key, value in self.ranks[rank]["own"].items() if key.endswith(name))
        return found

    def logprobs(self, what: str = "logprobs") -> list[torch.Tensor]:
        """Of data-parallel index 0's micro-batches; on the last stage alone."""
        parallel = self.scenario.parallel
        return self.ranks[parallel.num_ranks - parallel.num_ranks // parallel.pp][what]


def assert_close(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Every tensor within TOLERANCE of its largest value."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        error = (got[name] - value).abs().max() / value.abs().max()
        assert error <= TOLERANCE, f"{name}: {error:.2e}"


def assert_tied(seen: Seen) -> None:
    """The embedding of the first stage and the output layer of the last are the same, bit for bit."""
    parallel = seen.scenario.parallel
    per_stage = parallel.num_ranks // parallel.pp
    for rank in range(per_stage):
        embedding = seen.own(rank, "embedding.word_embeddings.weight")
        head = seen.own(parallel.num_ranks - per_stage + rank, "output_layer.weight")
        assert torch.equal(embedding, head)


def assert_replicated(seen: Seen) -> None:
    """Norm weights, which every rank of a stage has whole, are the same on all of them, bit for bit."""
    per_stage = seen.scenario.parallel.num_ranks // seen.scenario.parallel.pp
    for rank in range(seen.scenario.parallel.num_ranks):
        first = seen.ranks[rank - rank % per_stage]["own"]
        norms = [name for name in first if "norm" in name]
        assert len(norms) >= 4
        assert all(torch.equal(first[name], seen.ranks[rank]["own"][name]) for name in norms)
