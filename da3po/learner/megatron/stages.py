"""This rank's part of the model: one pipeline stage, or several virtual ones."""

from __future__ import annotations

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from da3po.learner.megatron.backend import Backend
from da3po.learner.megatron.field_values import megatron_values
from da3po.learner.megatron.model import PolicyModel, transformer_config
from da3po.learner.megatron.versions import finalize_gradients
from da3po.learner.megatron.weights import load_hf
from da3po.learner.spec import LearnerSpec
from da3po.models.hf_config import read_model_spec


def build_stages(spec: LearnerSpec, backend: Backend) -> tuple[list[PolicyModel], list[DistributedDataParallel]]:
    """The stages with their weights, in order, and Megatron's gradient buffers around each."""
    model_spec = read_model_spec(spec.model_path)
    config = transformer_config(model_spec, spec.parallel, spec.learner, backend)
    vp_stages = range(spec.parallel.vpp) if spec.parallel.vpp > 1 else (None,)
    models = [PolicyModel(model_spec, config, backend, vp_stage).to(backend.device) for vp_stage in vp_stages]
    for model in models:
        load_hf(model, spec.model_path)
    ddp_fields = {"grad_reduce_in_fp32": True} | megatron_values("ddp", spec.learner.megatron.ddp)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, **ddp_fields)
    # Buckets let communication begin before the backward pass has ended, which only the first stage's end waits for.
    ddps = [
        DistributedDataParallel(config, ddp_config, model, disable_bucketing=number > 0)
        for number, model in enumerate(models)
    ]
    several = len(ddps) > 1
    config.no_sync_func = [ddp.no_sync for ddp in ddps] if several else ddps[0].no_sync
    config.finalize_model_grads_func = finalize_gradients()
    return models, ddps
