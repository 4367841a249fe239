"""A forward pass of a model whose weights do not fit into memory: each module has its own while it computes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from torch import Tensor, nn


@contextmanager
def filled(module: nn.Module, prefix: str, read: Callable[[str], Tensor]) -> Iterator[None]:
    """Give every parameter of `module` what `read` returns for its name in the whole model, and take it away again."""
    parameters = dict(module.named_parameters())
    try:
        for name, parameter in parameters.items():
            parameter.data = read(f"{prefix}.{name}")
        yield
    finally:
        for parameter in parameters.values():
            parameter.data = parameter.data.new_empty(0)
        _return_freed_memory()


def _return_freed_memory() -> None:
    """To the system: glibc keeps the memory of smaller tensors for the next ones, and so of many layers in the end."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def stream_weights(model: nn.Module, modules: Sequence[str], read: Callable[[str], Tensor]) -> None:
    """Have the named modules of `model` read their parameters before they compute and forget them afterwards.

    read: parameter's name -> its value. No other parameter of the model has a value from now on.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0, device="cpu")
    for name in modules:
        _Stay(model.get_submodule(name), name, read)


class _Stay:
    """Hooks of one module."""

    def __init__(self, module: nn.Module, name: str, read: Callable[[str], Tensor]) -> None:
        self._module, self._name, self._read = module, name, read
        module.register_forward_pre_hook(self._enter)
        module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, *_: object) -> None:
        self._stay = filled(self._module, self._name, self._read)
        self._stay.__enter__()

    def _leave(self, *_: object) -> None:
        self._stay.__exit__(None, None, None)
