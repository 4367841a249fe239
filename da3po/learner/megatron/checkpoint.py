"""Training state in Megatron's distributed checkpoint format, which any other layout can load."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from torch.distributed.checkpoint.api import CheckpointException

from da3po.learner.megatron.model import PolicyModel
from da3po.learner.megatron.optimizer import Optimizer
from da3po.learner.megatron.versions import SHARDING, async_save_options
from da3po.models.checkpoint_names import FORMAT
from da3po.models.distributed_io import DistributedReader


def save(path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
    """Write weights, optimizer and random-number state to `path`, an existing empty directory; all ranks together."""
    with _as_error():
        dist_checkpointing.save(_state(models, optimizer, is_loading=False), str(path), content_metadata=SHARDING)


@contextmanager
def _as_error() -> Iterator[None]:
    """Torch tells of a failed write by a BaseException, which would end the process that it is raised in."""
    try:
        yield
    except CheckpointException as exception:
        causes = [str(cause) for cause, _ in exception.failures.values()]
        raise OSError(causes[0] if causes else "another rank could not write its part") from exception


class Writing:
    """A checkpoint that goes to disk beside training: a copy of the state, and a thread that writes it.

    Made on all ranks together. `finish` is called on all ranks together too, for it ends in collectives, which training
    must not be in the middle of.
    """

    def __init__(self, path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
        """Returns when the state is in host memory of its own: what is saved is what it is now."""
        state = _state(models, optimizer, is_loading=False)
        dict_list_map_inplace(_copied, state)
        self._request = dist_checkpointing.save(
            state, str(path), async_sharded_save=True, content_metadata=SHARDING, **async_save_options()
        )
        self._arguments = list(self._request.async_fn_args)
        if self._request.preload_fn is not None:
            self._arguments[1] = self._request.preload_fn()  # from the device to host memory
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            if self._request.async_fn is not None:
                self._request.async_fn(*self._arguments, **self._request.async_fn_kwargs)
        except Exception as error:  # noqa: BLE001 raised by `finish`, where somebody waits for it
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> None:
        """Wait for this rank's files, then for all ranks', and write what makes them one checkpoint."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        with _as_error():
            for finalize in self._request.finalize_fns:
                finalize()


def _copied(value: Any) -> Any:
    """Tensors in host memory are the live ones; those of a device are copied on their way there."""
    if isinstance(value, ShardedTensor | ShardedTensorFactory) and value.data is not None and value.data.is_cpu:
        value.data = value.data.detach().clone()
    return value


def load_weights(path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
    """Take over the weights alone, on any layout; all ranks together. The optimizer's state is left as it is, fresh.

    Errors: ValueError if the checkpoint has another format.
    """
    _check_format(path)
    metadata = _metadata()
    whole = {str(number): model.sharded_state_dict(metadata=metadata) for number, model in enumerate(models)}
    # Beside weights there is what modules keep for themselves: it differs between devices and is nothing to begin from.
    wanted, _ = extract_sharded_tensors_and_factories({"model": whole})
    state = dist_checkpointing.load(wanted, str(path))
    for number, model in enumerate(models):
        left = model.load_state_dict(state["model"][str(number)], strict=False)
        if missing := [name for name in left.missing_keys if not name.endswith("_extra_state")]:
            raise ValueError(f"{path} has no {missing[0]}, which the model needs")
    optimizer.inner.reload_model_params()


def load(path: Path, models: Sequence[PolicyModel], optimizer: Optimizer) -> None:
    """Take over what `save` wrote, on this layout or another; all ranks together.

    Random-number state belongs to a layout: it is restored on the same one, and left alone on another.
    Errors: ValueError if the checkpoint has another format.
    """
    common = _check_format(path)
    wanted = _state(models, optimizer, is_loading=True)
    if common["layout"] != wanted["layout"]:
        del wanted["rng"]
    state = dist_checkpointing.load(wanted, str(path))
    for number, model in enumerate(models):
        model.load_state_dict(state["model"][str(number)])
    optimizer.inner.load_state_dict(state["optimizer"])
    optimizer.num_skipped_in_a_row = state["num_skipped_in_a_row"]
    if "rng" in state:
        _set_random_state(state["rng"])


def _check_format(path: Path) -> dict[str, Any]:
    """What every rank of the checkpoint has in common. Errors: ValueError if its index or format is another."""
    DistributedReader(path)  # before Megatron's reader, which would run any code that an index asks for
    common: dict[str, Any] = dist_checkpointing.load_common_state_dict(str(path))
    if common.get("format") != FORMAT:
        raise ValueError(f"{path}: checkpoint format {common.get('format')}, this version reads {FORMAT}")
    return common


def _metadata() -> dict[str, Any]:
    return SHARDING | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def _state(models: Sequence[PolicyModel], optimizer: Optimizer, is_loading: bool) -> dict[str, Any]:
    metadata = _metadata()
    # What is on disk is named by layer of the whole model: which stage a tensor was in leaves no trace.
    model = {str(number): model.sharded_state_dict(metadata=metadata) for number, model in enumerate(models)}
    return {
        "format": FORMAT,
        "layout": _layout(),
        "num_skipped_in_a_row": optimizer.num_skipped_in_a_row,
        "model": model,
        "optimizer": optimizer.inner.sharded_state_dict(model, is_loading=is_loading, metadata=metadata),
        "rng": _random_state(),
    }


def _layout() -> dict[str, int]:
    return {
        "cp": parallel_state.get_context_parallel_world_size(),
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
    }


def _random_state() -> ShardedObject:
    """This rank's random-number state, one piece of an object that all ranks make up together."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    state = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (dist.get_world_size(),), (dist.get_rank(),), replica_id=0)


def _set_random_state(state: dict[str, Any]) -> None:
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
