"""What one rank holds and does once it has joined the others: model, optimizer, weight channel."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.algo.losses import MAXIMA, SUMS, LossTerms, build_loss, finish_metrics
from da3po.learner.megatron import checkpoint, process_groups
from da3po.learner.megatron.backend import build_backend
from da3po.learner.megatron.context import build_context
from da3po.learner.megatron.export import export_hf
from da3po.learner.megatron.layer_norms import build_layer_norms
from da3po.learner.megatron.optimizer import Optimizer, UpdateResult
from da3po.learner.megatron.stages import build_stages
from da3po.learner.megatron.update import Passes
from da3po.learner.megatron.weights import drain, hf_stream
from da3po.learner.schedule import learning_rate
from da3po.learner.spec import LearnerSpec
from da3po.models.checkpoint_names import COMPANIONS
from da3po.models.companions import read_companions, write_companions
from da3po.runtime.platform import Platform
from da3po.sync.channel import SourceChannel
from da3po.sync.send import send_weights
from da3po.sync.store import ChannelPlan, host_store, join_store
from da3po.types import BucketSum, MicroBatch

if TYPE_CHECKING:
    from da3po.learner.megatron.worker import Rendezvous


class Trainer:
    """Every method is called on all ranks together."""

    def __init__(self, spec: LearnerSpec, platform: Platform, rendezvous: Rendezvous) -> None:
        self.spec = spec
        self.platform = platform
        process_groups.join(
            rendezvous.rank, rendezvous.world_size, rendezvous.address, rendezvous.port, platform.backend
        )
        self.position = process_groups.split(spec.parallel, spec.seed)
        self._context = build_context()
        backend = build_backend(platform.device, self._context)
        self._device = backend.device
        self.models, self.ddps = build_stages(spec, backend)
        self.optimizer = Optimizer(
            self.ddps,
            spec.optim,
            bf16=spec.learner.precision != "fp32",
            gloo_groups=platform.backend == "gloo",
            fields=spec.learner.megatron.optimizer,
            layer_norms=build_layer_norms(spec.optim.layer_grad_norms, self.ddps, self.models),
        )
        self._passes = Passes(self.ddps, self.models, spec.temperature, spec.parallel.dp)
        self._loss = build_loss(spec.loss, self._context.reduce)
        self._store: dist.Store | None = None
        self._channel: SourceChannel | None = None
        self._writing: checkpoint.Writing | None = None
        self._companions = read_companions(Path(spec.model_path)) if dist.get_rank() == 0 else {}

    def step(self, step_number: int, updates: Sequence[Sequence[MicroBatch]]) -> Mapping[str, float]:
        """One training step: an optimizer update for each of `updates`, all against the weights that open the step.

        Those weights' log-probs come from the same forward pass if there is a single update, and are worked out up
        front, for all updates, if there are more. So mismatch with the engine, which the loss measures on them, is that
        of the opening weights for every update.

        Returns the step's metrics, the same on every rank. Errors: TooManySkipped.
        """
        lr = learning_rate(step_number, self.spec.optim, self.spec.train_steps)
        updates = [self._own(batches) for batches in updates]
        seconds = _Seconds("old_logprobs", "forward_backward", "optimizer")
        with seconds.of("old_logprobs"):
            old_logprobs = self._old_logprobs(updates)
        terms: list[LossTerms] = []
        results: list[UpdateResult] = []
        for batches, old in zip(updates, old_logprobs, strict=True):
            with seconds.of("forward_backward"):
                self.optimizer.zero_grad()
                of_update = self._gradient(batches, old)
            with seconds.of("optimizer"):
                results.append(self.optimizer.step(lr, *self._whole(of_update)))
            terms += of_update
        return self._metrics(terms) | _update_metrics(results, lr) | self._time_metrics(seconds)

    def logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        return self._passes.logprobs(self._own(batches))

    def open_channel(self, num_receivers: int, host: str) -> str:
        """Host the channel's store on rank 0, tell every rank its address, and open this stage's end of it.

        A channel that was open before is closed.
        """
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        address = [""]
        sync = self.spec.sync
        if dist.get_rank() == 0:
            backend = self.platform.backend if sync.backend == "auto" else sync.backend
            plan = ChannelPlan(
                backend=backend,
                num_stages=self.spec.parallel.pp,
                num_receivers=num_receivers,
                shared_memory=sync.shared_memory,
            )
            self._store, address[0] = host_store(plan, sync.timeout, host)
        dist.broadcast_object_list(address, src=0)
        if self.position.sends_weights:
            store = self._store or join_store(address[0], sync.timeout)
            self._channel = SourceChannel(store, address[0], self.position.pp, sync.timeout)
        return address[0]

    def publish(self, version: int) -> tuple[BucketSum, ...]:
        """Errors: SyncError if a receiver is gone or silent; the channel is then closed, and all else as before."""
        stream = hf_stream(self.models)
        try:
            if not self.position.sends_weights:
                return ()
            if self._channel is None:
                raise RuntimeError("publish before open_channel")
            sync = self.spec.sync
            return send_weights(self._channel, version, stream, int(sync.bucket_mb * (1 << 20)), sync.verify)
        finally:
            drain(stream)  # also after an error: the other ranks of the stage are in its collectives

    def save(self, path: Path) -> None:
        """Errors: FloatingPointError naming a weight that is not finite; such weights are never written."""
        self._check_finite()
        checkpoint.save(path, self.models, self.optimizer)
        self._keep_companions(path)

    def start_saving(self, path: Path) -> None:
        """Copy what `save` would write and begin to write it; training may go on. Errors: those of `save`."""
        self._check_finite()
        self._writing = checkpoint.Writing(path, self.models, self.optimizer)
        self._keep_companions(path)

    def is_saving(self) -> bool:
        """Whether this rank is still writing."""
        return self._writing is not None and self._writing.is_running

    def finish_saving(self) -> None:
        """Wait for the writing to end, and make the checkpoint whole. Errors: what went wrong in writing."""
        writing, self._writing = self._writing, None
        if writing is None:
            raise RuntimeError("finish_saving without start_saving")
        writing.finish()

    def _keep_companions(self, path: Path) -> None:
        """Beside the weights, so that a checkpoint can be exported when the model that it began from is gone."""
        if dist.get_rank() == 0:
            write_companions(self._companions, path / COMPANIONS)

    def _check_finite(self) -> None:
        for model in self.models:
            for name, weight in model.named_parameters():
                if not torch.isfinite(weight).all():
                    raise FloatingPointError(f"{name} is not finite; nothing is saved")

    def load(self, path: Path) -> None:
        checkpoint.load(path, self.models, self.optimizer)

    def load_weights(self, path: Path) -> None:
        checkpoint.load_weights(path, self.models, self.optimizer)

    def export(self, path: Path) -> None:
        export_hf(self.models, self.position, self._companions, path)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        process_groups.leave()

    def _own(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This rank's part of micro-batches, on its device."""
        return [_on_device(self._context.shard(batch), self._device) for batch in batches]

    def _old_logprobs(self, updates: Sequence[Sequence[MicroBatch]]) -> list[Sequence[Tensor | None]]:
        """Of each micro-batch of each update; None where the forward pass of the update gives them, and before the last
        pipeline stage, which alone has them."""
        unknown: list[Sequence[Tensor | None]] = [[None] * len(batches) for batches in updates]
        if len(updates) == 1:
            return unknown
        known = [self._passes.logprobs(batches) for batches in updates]
        return list(known) if self.position.last_stage else unknown

    def _gradient(self, batches: Sequence[MicroBatch], old_logprobs: Sequence[Tensor | None]) -> list[LossTerms]:
        """Leave the gradient of an update in its buffers; return the loss terms of all its micro-batches."""
        pairs = list(zip(batches, old_logprobs, strict=True))
        learning = [pair for pair in pairs if pair[0].learns]
        measured = [pair for pair in pairs if not pair[0].learns]
        terms = self._passes.measure(*zip(*measured, strict=True), self._loss) if measured else []
        return terms + self._passes.forward_backward(*zip(*learning, strict=True), self._loss)

    def _whole(self, terms: Sequence[LossTerms]) -> tuple[float, float]:
        """The update's loss and response tokens over all micro-batches and data-parallel ranks, on every rank."""
        whole = torch.zeros(2, dtype=torch.float64, device=self._device)
        for term in terms:
            whole[0] += term.loss
            whole[1] += term.sums[SUMS.index("tokens")]
        dist.all_reduce(whole)
        loss, num_tokens = (whole / self.spec.parallel.tp).tolist()
        return loss, num_tokens

    def _metrics(self, terms: Sequence[LossTerms]) -> dict[str, float]:
        """The loss's metrics over all micro-batches and ranks. Ranks of one tensor-parallel group have the same terms,
        and stages before the last have none, so a sum over the world counts everything tp times."""
        device = self._device
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        maxima = torch.zeros(len(MAXIMA), dtype=torch.float64, device=device)
        for term in terms:
            sums += term.sums
            maxima = torch.maximum(maxima, term.maxima)
        dist.all_reduce(sums)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        return finish_metrics(sums / self.spec.parallel.tp, maxima)

    def _time_metrics(self, seconds: _Seconds) -> dict[str, float]:
        """Each phase's seconds on the slowest rank."""
        values = torch.tensor(list(seconds.values.values()), dtype=torch.float64, device=self._device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return {f"time/{name}": value for name, value in zip(seconds.values, values.tolist(), strict=True)}


class _Seconds:
    """Wall time of named phases, in seconds, added up."""

    def __init__(self, *names: str) -> None:
        self.values = dict.fromkeys(names, 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.values[name] += time.perf_counter() - start


def _on_device(batch: MicroBatch, device: torch.device) -> MicroBatch:
    tensors = {
        field.name: value.to(device, non_blocking=True)
        for field in fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    return replace(batch, **tensors)


def _update_metrics(results: Sequence[UpdateResult], lr: float) -> dict[str, float]:
    """actor/grad_norm: mean over the updates that were applied, or over all, and then not finite, if none was.

    grad_norm/...: the same mean of each part of the model, where those are measured.
    """
    counted = [result for result in results if not result.skipped] or list(results)
    parts = dict.fromkeys(part for result in counted for part in result.layer_grad_norms)
    return {
        "actor/grad_norm": _mean([result.grad_norm for result in counted]),
        "actor/lr": lr,
        "actor/skipped_updates": float(sum(result.skipped for result in results)),
        # An update without a token has no gradient, and measures none.
        **{f"grad_norm/{part}": _mean([r.layer_grad_norms.get(part, 0.0) for r in counted]) for part in parts},
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
