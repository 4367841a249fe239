"""Muon (Jordan et al., 2024): momentum made orthogonal, in float32.

torch.optim.Muon orthogonalises in bfloat16, which is hundreds of times slower than float32 on CPUs without bf16 units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

# Quintic Newton-Schulz iteration of the original: drives every singular value into about 0.7 .. 1.2 within five rounds.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """[N, R, C] with R <= C -> N matrices with the same singular vectors and all singular values near 1."""
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled to the RMS of an AdamW update (0.2), with decoupled weight decay."""

    def __init__(
        self, params: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """One update. Matrices of one shape (up to transposition) are orthogonalised together."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
            for param in group["params"]:
                by_shape.setdefault(tuple(sorted(param.shape)), []).append(param)
            for (rows, cols), params in by_shape.items():
                momenta = torch.stack([self._momentum(p, group["momentum"]) for p in params])
                scale = 0.2 * max(rows, cols) ** 0.5
                for param, update in zip(params, orthogonalize(momenta), strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"])
                    param.sub_(update if param.shape[0] == rows else update.T, alpha=group["lr"] * scale)

    def _momentum(self, param: torch.nn.Parameter, momentum: float) -> Tensor:
        """Nesterov momentum of one parameter, laid out with fewer rows than columns."""
        assert param.grad is not None
        buffer = self.state[param].setdefault("momentum", torch.zeros_like(param))
        buffer.lerp_(param.grad, 1 - momentum)
        nesterov = param.grad.lerp(buffer, momentum)
        return nesterov if param.shape[0] <= param.shape[1] else nesterov.T
