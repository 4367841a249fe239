"""Stand-ins for the heavy parts, behind the same protocols. They stay: that the loop runs with them proves that it
knows nothing of Megatron or vLLM.

The fake policy answers a one-byte prompt. Its skill is a number that training moves and the weight channel carries, so
a run with fakes learns, and a sample tells which weights made it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from da3po.types import (
    BucketSum,
    Completion,
    Grade,
    Group,
    GroupRequest,
    GroupResult,
    Outcome,
    PackedStep,
    Prompt,
    StepBatch,
    StepStats,
    WeightManifest,
)

RIGHT, WRONG = "right", "wrong"

# (prompt ids, sample seed, skill of the engine's weights) -> response text
Script = Callable[[tuple[int, ...], int, float], str]


def coin_toss(prompt_ids: tuple[int, ...], seed: int, skill: float) -> str:
    """Right with probability `skill`."""
    return RIGHT if random.Random(seed).random() < skill else WRONG


def always(text: str) -> Script:
    return lambda prompt_ids, seed, skill: text


class FakeChannel:
    """What the learner last sent: version and skill."""

    def __init__(self) -> None:
        self.version = -1
        self.skill = 0.0


class FakeEngine:
    """Answers as its script says, in an order that is not the order of the requests."""

    def __init__(self, channel: FakeChannel, script: Script = coin_toss) -> None:
        self.channel = channel
        self.script = script
        self.version = -1
        self.skill = 0.0
        self.requests: list[GroupRequest] = []
        self.name = "fake"
        self.num_aborted_tokens = 0

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        self.requests.extend(requests)
        for request in sorted(requests, key=lambda request: request.seeds[0]):
            yield GroupResult(key=request.key, completions=tuple(self._answer(request, s) for s in request.seeds))

    def _answer(self, request: GroupRequest, seed: int) -> Completion:
        text = self.script(request.prompt_ids, seed, self.skill)
        ids = tuple(text.encode())
        return Completion(
            token_ids=ids, logprobs=(-0.5,) * len(ids), text=text, finish="stop", weight_version=self.version
        )

    async def open_channel(self, address: str, rank: int) -> None:
        pass

    async def receive(self, version: int) -> WeightManifest:
        self.version, self.skill = self.channel.version, self.channel.skill
        return manifest(version)

    async def heartbeat(self) -> int:
        return 0

    async def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


class FakeLearner:
    """Becomes more skilled by a fixed amount a step, if it is given anything to learn from."""

    def __init__(self, channel: FakeChannel, skill: float = 0.4, gain: float = 0.1) -> None:
        self.channel = channel
        self.skill = skill
        self.gain = gain
        self.batches: list[PackedStep] = []

    async def step(self, batch: PackedStep) -> StepStats:
        self.batches.append(batch)
        self.skill = min(1.0, self.skill + self.gain)
        return StepStats(
            {"loss/policy": -self.skill, "actor/grad_norm": 1.0, "actor/lr": 1e-6, "mismatch/num_tokens": 0.0}
        )

    async def open_channel(self, num_receivers: int) -> str:
        return "fake"

    async def publish(self, version: int) -> WeightManifest:
        self.channel.version, self.channel.skill = version, self.skill
        return manifest(version)

    async def save(self, path: Path) -> None:
        (path / "skill.txt").write_text(repr(self.skill))

    async def load(self, path: Path) -> None:
        self.skill = float((path / "skill.txt").read_text())


def manifest(version: int) -> WeightManifest:
    return WeightManifest(version=version, buckets=(BucketSum(names=("skill",), num_bytes=8, checksum="0"),))


async def grade_text(gold: str, responses: Sequence[str]) -> list[Grade]:
    """Correct if the response is the gold answer."""
    return [Grade(outcome=Outcome.CORRECT if text == gold else Outcome.WRONG, answer=text) for text in responses]


class FakeRecorder:
    """Keeps what a recorder is given."""

    def __init__(self) -> None:
        self.steps: list[tuple[StepBatch, dict[str, float]]] = []
        self.events: list[str] = []

    def step(self, samples: StepBatch, stats: StepStats) -> None:
        self.steps.append((samples, dict(stats.values)))

    def event(self, message: str) -> None:
        self.events.append(message)


class Never:
    """An evaluator, or checkpoints, for which nothing is ever due."""

    async def opening(self, step: int) -> None:
        pass

    async def after(self, step: int) -> None:
        pass


def prompts(count: int) -> list[Prompt]:
    return [
        Prompt(uid=f"p{i}", draw=i, epoch=0, text=chr(65 + i), token_ids=(65 + i,), gold=RIGHT, source="fake")
        for i in range(count)
    ]


def groups_of(batch: StepBatch) -> list[Group]:
    return list(batch.groups)
