"""Can a model be laid out over so many ranks, and what does a layout ask of packing? Standard library only, so that a
wrong override is refused at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from da3po.config.schema import ConfigError, ParallelConfig, Precision
from da3po.models.hf_config import ModelSpec

FP8_ALIGNMENT: dict[str, int] = {"fp8_delayed": 16, "fp8_tensorwise": 16, "fp8_blockwise": 128, "mxfp8": 32}
"""Rows that a rank's matrix products must be a multiple of: what the matrix units take, or the recipe's block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiples:
    """What packing has to round up to.

    tokens: of a micro-batch. sequence: tokens of each sequence in it. micro_batches: of a rank in an optimizer update.
    equal_lengths: all of those have the same number of tokens.
    """

    tokens: int
    sequence: int
    micro_batches: int
    equal_lengths: bool


def pack_multiples(parallel: ParallelConfig, precision: Precision) -> Multiples:
    """Sequence and context parallelism share out the tokens equally, and every rank's share meets fp8's alignment.

    Context-parallel ranks take two chunks of each sequence. Virtual stages need whole rounds of micro-batches, all of
    one length: with two pipeline ranks Megatron mixes up the lengths that they tell each other, as both directions have
    the same partner.
    """
    sequence = 2 * parallel.cp if parallel.cp > 1 else 1
    share = FP8_ALIGNMENT.get(precision, 1) * (parallel.tp if parallel.sequence_parallel else 1)
    return Multiples(
        tokens=math.lcm(sequence, share * parallel.cp),
        sequence=sequence,
        micro_batches=parallel.pp if parallel.vpp > 1 else 1,
        equal_lengths=parallel.vpp > 1,
    )


def check_layout(spec: ModelSpec, parallel: ParallelConfig) -> None:
    """Raise ConfigError, naming the two numbers that clash and legal ones near by, if the layout cannot hold the model.

    The vocabulary needs no rule: it is padded to a multiple of parallel.tp, and the padding is never seen.
    """
    clash = _tp_clash(spec, parallel.tp)
    if clash:
        legal = (size for size in range(1, spec.num_heads + 1) if not _tp_clash(spec, size))
        raise ConfigError(f"parallel.tp={parallel.tp} {clash}; {_neighbours(parallel.tp, legal)}")
    # Whatever else is given is taken as meant, and the option that was added last is named.
    chosen = next((name for name in _SPLITS if getattr(parallel, name) is not None), "pp")
    for name in (chosen, "vpp"):
        clash = _stage_clash(spec.num_layers, parallel, name)
        if clash:
            raise ConfigError(f"parallel.{name}={getattr(parallel, name)} {clash}")


_SPLITS = ("last_stage_layers", "first_stage_layers")


def rank_layers(num_layers: int, parallel: ParallelConfig) -> list[int] | None:
    """Layers of each pipeline rank, or None if those that are not given cannot be shared out equally."""
    first, last = parallel.first_stage_layers, parallel.last_stage_layers
    num_free = parallel.pp - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    if num_free == 0:
        return [first or 0, last or 0] if left == 0 else None
    if left < num_free or left % num_free:
        return None
    shares = [left // num_free] * num_free
    return [*([first] if first else []), *shares, *([last] if last else [])]


def _stage_clash(num_layers: int, parallel: ParallelConfig, name: str) -> str | None:
    """What is wrong with the pipeline, in words about its option `name`, and which values of that would do."""
    what = _vpp_clash(num_layers, parallel) if name == "vpp" else _share_clash(num_layers, parallel)
    if what is None:
        return None
    find = _vpp_clash if name == "vpp" else _share_clash
    sizes = range(2 if name == "pp" and parallel.vpp > 1 else 1, num_layers + 1)
    legal = [size for size in sizes if not find(num_layers, _with(parallel, name, size))]
    return f"{what}; {_neighbours(getattr(parallel, name), legal)}"


def _with(parallel: ParallelConfig, name: str, size: int) -> ParallelConfig:
    changed: dict[str, Any] = {name: size}
    return replace(parallel, **changed)


def _share_clash(num_layers: int, parallel: ParallelConfig) -> str | None:
    if rank_layers(num_layers, parallel) is not None:
        return None
    given = [count for name in _SPLITS if (count := getattr(parallel, name)) is not None]
    if not given:
        return f"does not divide the model's {num_layers} layers"
    left, num_free = num_layers - sum(given), parallel.pp - len(given)
    return f"leaves {left} of the model's {num_layers} layers to {num_free} other pipeline ranks"


def _vpp_clash(num_layers: int, parallel: ParallelConfig) -> str | None:
    uneven = next((count for count in rank_layers(num_layers, parallel) or () if count % parallel.vpp), None)
    return None if uneven is None else f"does not divide the {uneven} layers of a pipeline rank"


def _tp_clash(spec: ModelSpec, tp: int) -> str | None:
    """What of the model cannot be cut into `tp` equal parts. Fewer key/value heads than ranks are shared by ranks."""
    parts = {
        f"the model's {spec.num_heads} attention heads": spec.num_heads,
        f"the model's feed-forward width of {spec.ffn_hidden_size}": spec.ffn_hidden_size,
        f"the model's hidden size of {spec.hidden_size}": spec.hidden_size,
    }
    for what, number in parts.items():
        if number % tp:
            return f"does not divide {what}"
    if spec.num_kv_heads % tp and tp % spec.num_kv_heads:
        return f"neither divides the model's {spec.num_kv_heads} key/value heads nor is a multiple of them"
    rows = 2 * spec.num_kv_heads * spec.head_dim
    return f"does not divide the {rows} rows of the key and value projections" if rows % tp else None


def _neighbours(size: int, legal: Iterable[int]) -> str:
    numbers = list(legal)
    below = max((number for number in numbers if number < size), default=None)
    above = min((number for number in numbers if number > size), default=None)
    near = " or ".join(str(number) for number in (below, above) if number is not None)
    return f"{near} would do" if near else "no other value would do"
