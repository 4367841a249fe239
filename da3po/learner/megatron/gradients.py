"""Megatron's hidden factors, undone in one place."""

from __future__ import annotations

from torch import Tensor


def undo_megatron_scaling(loss: Tensor, num_micro_batches: int, dp: int) -> Tensor:
    """A micro-batch's loss, scaled such that the gradient in the buffers is that of the plain sum of all losses.

    Our losses are already shares of the update's whole loss (`MicroBatch.weights`), so they are to be added up over
    micro-batches and data-parallel ranks. What Megatron (0.16 and 0.19, `calculate_per_token_loss=False`) does to them:

    | factor              | where                                                                                   |
    |---------------------|-----------------------------------------------------------------------------------------|
    | / num_micro_batches | pipeline_parallel/schedules.py:forward_step_calc_loss, the branch for a pair of outputs |
    | x cp                | the same branch                                                                         |
    | / (dp x cp)         | distributed/distributed_data_parallel.py: gradient_scaling_factor, applied in           |
    |                     | param_and_grad_buffer.py:start_grad_sync before the sum over the group of dp x cp       |

    Context-parallel ranks hold different tokens of a sequence and are added up like data-parallel ones; the factors of
    cp cancel. What is left to undo is num_micro_batches x dp.
    """
    return loss * (num_micro_batches * dp)
