"""Can a model be laid out over so many ranks? Standard library only, so that a wrong override is refused at once."""

from __future__ import annotations

from da3po.config.schema import ConfigError, ParallelConfig
from da3po.models.hf_config import ModelSpec


def check_layout(spec: ModelSpec, parallel: ParallelConfig) -> None:
    """Raise ConfigError, naming the two numbers that clash and legal ones near by, if the layout cannot hold the model.

    The vocabulary needs no rule: it is padded to a multiple of parallel.tp, and the padding is never seen.
    """
    tp, pp = parallel.tp, parallel.pp
    legal_tp = [size for size in range(1, spec.num_heads + 1) if not _clashes(spec, size)]
    clashes = _clashes(spec, tp)
    if clashes:
        raise ConfigError(f"parallel.tp={tp} does not divide {clashes[0]}; {_neighbours(tp, legal_tp)}")
    if spec.num_layers % pp:
        legal_pp = [size for size in range(1, spec.num_layers + 1) if spec.num_layers % size == 0]
        raise ConfigError(
            f"parallel.pp={pp} does not divide the model's {spec.num_layers} layers; {_neighbours(pp, legal_pp)}"
        )


def _clashes(spec: ModelSpec, tp: int) -> list[str]:
    """What of the model cannot be cut into `tp` equal parts."""
    parts = {
        spec.num_heads: f"the model's {spec.num_heads} attention heads",
        spec.num_kv_heads: f"the model's {spec.num_kv_heads} key/value heads",
        spec.ffn_hidden_size: f"the model's feed-forward width of {spec.ffn_hidden_size}",
        spec.hidden_size: f"the model's hidden size of {spec.hidden_size}",
    }
    return [what for number, what in parts.items() if number % tp]


def _neighbours(size: int, legal: list[int]) -> str:
    below = max((number for number in legal if number < size), default=None)
    above = min((number for number in legal if number > size), default=None)
    near = " or ".join(str(number) for number in (below, above) if number is not None)
    return f"{near} would do"
