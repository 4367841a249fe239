"""Let the distributed optimizer save and load its state when it runs on torch's AdamW.

Targets: megatron-core 0.16.x and 0.19.x without Transformer Engine and Apex, `distrib_optimizer.DistributedOptimizer`.
Symptoms: `AssertionError` in `state_dict` before the first step, so that a fresh process cannot load a checkpoint;
    `KeyError: 'step'` from `load_parameter_state_from_fully_reshardable`; and after a load every parameter's step count
    goes up by the number of parameters at each step, which spoils Adam's bias correction without a word.
Cause: torch's AdamW keeps a step count for each parameter, in its state, which is empty before the first step. Megatron
    expects a count to be there, leaves it out when it copies loaded state, and gives all parameters one tensor for it.
Cure: the state exists from the start, with count 0; the count is kept when loaded state is copied; and each parameter
    gets a count of its own after a load.
"""

from __future__ import annotations

from typing import Any

import torch

_MARK = "_da3po_torch_adam"


def apply() -> None:
    """Patch the class. A second call does nothing, and so does one with Transformer Engine or Apex at hand."""
    from megatron.core.optimizer import distrib_optimizer

    cls = distrib_optimizer.DistributedOptimizer
    if distrib_optimizer.HAVE_APEX_OR_TE or getattr(cls, _MARK, False):
        return
    make, load, set_state = cls.__init__, cls.load_state_dict, cls._set_main_param_and_optimizer_states

    def make_with_state(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        _start_state(self.optimizer)

    def load_own_steps(self: Any, state_dict: dict[str, Any]) -> None:
        load(self, state_dict)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    def set_state_with_step(self: Any, model_param: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        main_param = self.optimizer.param_groups[group]["params"][order]
        set_state(self, model_param, {**tensors, "step": self.optimizer.state[main_param]["step"]})

    cls.__init__ = make_with_state
    cls.load_state_dict = load_own_steps
    cls._set_main_param_and_optimizer_states = set_state_with_step
    setattr(cls, _MARK, True)


def _start_state(optimizer: torch.optim.Optimizer) -> None:
    """What torch's AdamW makes at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
