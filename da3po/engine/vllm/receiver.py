"""Takes weights into a running vLLM worker.

One publication is start -> update -> finish, which the engine calls on all its workers. New weights replace the old in
place, layer by layer (vLLM's layerwise reload, which also redoes what a quantised layer needs), so there is never a
second copy of the model, and a publication that fails half-way leaves a model that must not be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from da3po.sync import SyncError
from da3po.sync.channel import ReceiverChannels
from da3po.sync.receive import receive_weights
from da3po.types import WeightManifest


@dataclass
class ChannelInfo(WeightTransferInitInfo):
    """Where to listen: the channel's address, this engine's first receiver number, and seconds of patience."""

    address: str
    first_receiver: int
    timeout: float


@dataclass
class Publication(WeightTransferUpdateInfo):
    """What to take."""

    version: int


class WeightReceiver(WeightTransferEngine[ChannelInfo, Publication]):
    """da3po's receiver, for gloo and nccl alike; vLLM makes one in every worker."""

    init_info_cls = ChannelInfo
    update_info_cls = Publication

    _channels: ReceiverChannels | None = None
    _manifest: WeightManifest | None = None
    _tied: tuple[nn.Module, ...] = ()

    def init_transfer_engine(self, init_info: ChannelInfo) -> None:
        """Join the channel; a second call leaves the first channel for the new one."""
        self.shutdown()
        receiver = init_info.first_receiver + self.parallel_config.rank
        self._channels = ReceiverChannels(init_info.address, receiver, init_info.timeout)

    def start_weight_update(self) -> None:
        self._manifest = None
        forget_partial_loads(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """vLLM's own ends in torch.accelerator.synchronize, which raises where there is no accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Publication) -> None:
        """Load one publication. Raises SyncError if it was not whole or does not fill the model."""
        if self._channels is None:
            raise SyncError("no weight channel has been opened")
        self._manifest = receive_weights(self._channels, update_info.version, self.model.load_weights)
        loads = LoadState.of(self.model)
        if loads.unfilled:
            raise SyncError(f"version {update_info.version} left layers unfilled: {', '.join(loads.unfilled[:5])}")
        self._tied = loads.tied

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self._tied:
            layer.quant_method.process_weights_after_loading(layer)
        self._tied = ()

    def take_manifest(self) -> WeightManifest:
        """What the last publication brought, once. Raises SyncError if there was none."""
        if self._manifest is None:
            raise SyncError("no publication has been received")
        manifest, self._manifest = self._manifest, None
        return manifest

    def shutdown(self) -> None:
        if self._channels is not None:
            self._channels.close()
            self._channels = None


class ManifestReport:
    """Mixed into vLLM's workers, so that the engine can ask each what it received."""

    weight_transfer_engine: WeightReceiver

    def take_manifest(self) -> WeightManifest:
        return self.weight_transfer_engine.take_manifest()


def forget_partial_loads(model: nn.Module) -> None:
    """Drop what a publication that failed has left waiting in layers, so that the next one starts from nothing."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.load_numel = 0
            info.loaded_weights.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """How a reload stands after all weights have come and before it is finished.

    unfilled: layers that got fewer elements than their parameters have. vLLM would finish them with whatever their
        fresh memory held, or silently keep their old weights.
    tied: layers that got none because they share another's parameters, as an output head does the embedding's. vLLM
        takes them for unloaded and leaves alone what it derived from the old weights (on CPU, a packed copy that the
        head computes with), so they have to be processed again.
    """

    unfilled: tuple[str, ...]
    tied: tuple[nn.Module, ...]

    @classmethod
    def of(cls, model: nn.Module) -> LoadState:
        filled: set[int] = set()
        short: dict[str, nn.Module] = {}
        for name, layer in model.named_modules():
            own = dict(layer.named_parameters(recurse=False))
            if not own or is_deferred_attention_layer(layer):
                continue
            if _is_short(layer, own):
                short[name] = layer
            else:
                filled |= _memory(layer)
        tied = {name for name, layer in short.items() if _memory(layer) and _memory(layer) <= filled}
        return cls(
            unfilled=tuple(name for name in short if name not in tied),
            tied=tuple(layer for name, layer in short.items() if name in tied),
        )


def _is_short(layer: nn.Module, own: dict[str, nn.Parameter]) -> bool:
    info = get_layerwise_info(layer)
    return info.can_load() and info.load_numel < _expected(layer, own)


def _memory(layer: nn.Module) -> set[int]:
    """Where the layer's parameters lie; a layer that has packed them away (on CPU) may keep none."""
    info = get_layerwise_info(layer)
    # While a layer waits for weights its own parameters are placeholders, and the real ones are set aside.
    parameters = info.kernel_tensors[0].values() if info.can_load() else layer.parameters(recurse=False)
    return {parameter.data_ptr() for parameter in parameters if parameter.numel()}


def _expected(layer: nn.Module, own: dict[str, nn.Parameter]) -> int:
    """Elements that a checkpoint has for this layer; the padded rows of a vocabulary are in none."""
    if isinstance(layer, VocabParallelEmbedding):
        return sum(layer.shard_indices.num_org_elements * weight[0].numel() for weight in own.values())
    return sum(weight.numel() for weight in own.values())
