"""Samples in flight: what has been drawn so far, and when a group is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from da3po.engine.protocol import EngineError
from da3po.types import FinishReason, GroupRequest


@dataclass(slots=True)
class Pulse:
    """What an engine has done so far, for those who ask from outside its thread. num_tokens: response tokens drawn."""

    num_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Sample:
    """One response as it grows; the engine appends to it at every step.

    finish: None while it runs.
    ends: (version, tokens drawn until then) of the weights that drew it, oldest first; filled in when they are
        replaced or the sample ends.
    """

    group: GroupInFlight
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """Of a sample that has ended: (version, tokens) of each stretch that has tokens; of the last if none has."""
        starts = [0, *(end for _, end in self.ends)]
        stretches = [(version, end - start) for start, (version, end) in zip(starts, self.ends, strict=False)]
        return tuple(stretch for stretch in stretches if stretch[1]) or (stretches[-1],)


class GroupInFlight:
    """All samples of one request.

    weight_version: of the weights that draw it now, set when it enters the engine and by each swap.
    samples: in the order of the request's seeds.
    """

    def __init__(self, request: GroupRequest, batch: Batch) -> None:
        self.request = request
        self.batch = batch
        self.weight_version = -1
        self.samples = [Sample(group=self) for _ in request.seeds]
        self._num_running = len(self.samples)

    @property
    def whole(self) -> bool:
        return self._num_running == 0

    def swap(self, version: int) -> None:
        """Note that samples that still run go on under weights of `version`."""
        for sample in self.samples:
            if sample.finish is None:
                sample.ends.append((self.weight_version, len(sample.token_ids)))
        self.weight_version = version

    def end_sample(self, sample: Sample, finish: FinishReason) -> None:
        """Note the end of a sample; the last one sends the group on its way."""
        sample.finish = finish
        sample.ends.append((self.weight_version, len(sample.token_ids)))
        self._num_running -= 1
        if self._num_running == 0:
            self.batch.num_running -= 1
            self.batch.deliver(self)


class Batch:
    """The groups of one `generate` call.

    deliver: called in the engine's thread, with each group as it completes, or with the error that ended the engine.
    request_ids: of its samples in the engine, for aborting them.
    num_running: groups that are not complete.
    """

    def __init__(
        self, requests: Sequence[GroupRequest], deliver: Callable[[GroupInFlight | EngineError], None]
    ) -> None:
        self.deliver = deliver
        self.groups = [GroupInFlight(request, self) for request in requests]
        self.request_ids: list[str] = []
        self.num_running = len(self.groups)
