"""From a plain tree of values to the frozen dataclasses of the schema, strictly, and the names of all keys.

Stdlib only, so that a wrong command line is refused before anything heavy is imported.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from da3po.config.schema import Config, ConfigError


def key_of(field_name: str) -> str:
    """The spelling in YAML and overrides: `lambda_` is `lambda`."""
    return field_name.rstrip("_")


@cache
def field_types(section: type) -> dict[str, Any]:
    """Field name -> resolved type of a section."""
    hints = typing.get_type_hints(section)
    return {f.name: hints[f.name] for f in dataclasses.fields(section)}


def to_tree(section: Any) -> dict[str, Any]:
    """A section as nested plain values under their YAML keys: the defaults, or a resolved config to write down."""
    tree = {}
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        tree[key_of(f.name)] = _plain(value)
    return tree


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_tree(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return copy.copy(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf of a tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def walk(section: type = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its type, sections before their leaves."""
    for name, kind in field_types(section).items():
        key = prefix + key_of(name)
        yield key, kind
        if dataclasses.is_dataclass(kind):
            yield from walk(typing.cast(type, kind), key + ".")


def leaves() -> dict[str, Any]:
    """Dotted key -> type, for every option there is."""
    return {key: kind for key, kind in walk() if not dataclasses.is_dataclass(kind)}


def is_list(kind: Any) -> bool:
    """Whether an option of this type is a list of sections."""
    return typing.get_origin(kind) is tuple


def is_text_or_list(kind: Any) -> bool:
    """Whether an option of this type is a string, or a list of sections instead."""
    return typing.get_origin(kind) is types.UnionType and any(is_list(arg) for arg in typing.get_args(kind))


def is_open(kind: Any) -> bool:
    """Whether an option of this type is a section with keys of another library's choice."""
    return typing.get_origin(kind) is dict


def open_section_of(key: str) -> str | None:
    """The open section that `key` lies directly in, if there is one."""
    section, _, name = key.rpartition(".")
    return section if name and is_open(leaves().get(section)) else None


def sections() -> set[str]:
    return {key for key, kind in walk() if dataclasses.is_dataclass(kind) or is_open(kind)}


# What options are called in other systems, by last part.
_CALLED_ELSEWHERE = {
    "learning_rate": "optim.lr",
    "n": "rollout.num_samples",
    "group_size": "rollout.num_samples",
    "batch_size": "rollout.num_prompts",
    "train_batch_size": "rollout.num_prompts",
    "total_training_steps": "train.steps",
    "max_steps": "train.steps",
    "max_new_tokens": "rollout.max_tokens",
    "max_response_length": "rollout.max_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "epsilon": "algo.loss.clip_low",
}


def nearest(key: str) -> str | None:
    """The option that `key` was most likely meant to be: by its name elsewhere, its whole path, or its last part."""
    keys = list(leaves())
    elsewhere = _CALLED_ELSEWHERE.get(key.rpartition(".")[2].lower())
    if elsewhere:
        return elsewhere
    whole = difflib.get_close_matches(key, keys, n=1, cutoff=0.75)
    if whole:
        return whole[0]
    last = key.rpartition(".")[2]
    by_last: dict[str, list[str]] = {}
    for known in keys:
        by_last.setdefault(known.rpartition(".")[2], []).append(known)
    for match in difflib.get_close_matches(last, by_last, n=1, cutoff=0.6):
        return max(by_last[match], key=lambda known: difflib.SequenceMatcher(None, key, known).ratio())
    inside = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    return inside[0] if inside else None


def unknown_key(key: str) -> ConfigError:
    hint = nearest(key)
    return ConfigError(f"there is no option {key!r}" + (f"; did you mean {hint!r}?" if hint else ""))


def build(tree: Mapping[str, Any], section: type = Config, prefix: str = "") -> Any:
    """The dataclass that a tree of plain values describes.

    Raises:
        ConfigError: a key that does not exist, a scalar where a section belongs, or a value of the wrong type.
    """
    kinds = {key_of(name): (name, kind) for name, kind in field_types(section).items()}
    for key in tree:
        if key not in kinds:
            raise unknown_key(prefix + key)
    values = {}
    for key, value in tree.items():
        name, kind = kinds[key]
        where = prefix + key
        values[name] = _open_section(where, value) if is_open(kind) else _convert(where, kind, value)
    return section(**values)


def _convert(key: str, kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            options = ", ".join(f"{key}.{key_of(f.name)}" for f in dataclasses.fields(kind))
            raise ConfigError(f"{key} is a section, not a value (got {value!r}); its options are {options}")
        return build(value, typing.cast(type, kind), key + ".")
    if typing.get_origin(kind) is types.UnionType:
        if value is None:
            return None
        kind = _member(kind, value)
    if is_list(kind):
        return _list(key, typing.get_args(kind)[0], value)
    if isinstance(value, Mapping | list):
        what = "list" if isinstance(value, list) else "section"
        raise ConfigError(f"{key} is a single value, not a {what} (got {value!r})")
    return _scalar(key, kind, value)


def _member(union: Any, value: Any) -> Any:
    """Which of a union's types, None aside, a value is of: the list, if it is one and there is one."""
    kinds = [arg for arg in typing.get_args(union) if arg is not type(None)]
    return next((kind for kind in kinds if is_list(kind) == isinstance(value, list)), kinds[0])


def _scalar(key: str, kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(map(str, choices))}; got {value!r}")
        return value
    return _SCALARS[kind](key, value)


def _open_section(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is a section, not a value (got {value!r}); set {key}.FIELD")
    for name, of_field in value.items():
        values = of_field if isinstance(of_field, list) else [of_field]
        if not all(isinstance(one, bool | int | float | str | None) for one in values):
            raise ConfigError(f"{key}.{name} must be a single value or a list of them, got {of_field!r}")
    return dict(value)


def _list(key: str, item: Any, value: Any) -> tuple[Any, ...]:
    """A string among the items is short for a section with that as its first option."""
    if not isinstance(value, list):
        raise ConfigError(f"{key} must be a list, got {value!r}")
    first = key_of(dataclasses.fields(item)[0].name)
    sections = [{first: one} if isinstance(one, str) else one for one in value]
    return tuple(_item(f"{key}[{number}]", item, section) for number, section in enumerate(sections))


def _item(key: str, item: Any, section: Any) -> Any:
    options = {key_of(f.name): f for f in dataclasses.fields(item)}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{key} must be a section with {', '.join(options)}, got {section!r}")
    for name in section:
        if name not in options:
            raise ConfigError(f"{key} has no option {name!r}; there are {', '.join(options)}")
    for name, f in options.items():
        if name not in section and f.default is dataclasses.MISSING:
            raise ConfigError(f"{key} lacks {name!r}")
    return build(section, item, key + ".")


def _integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} must be a whole number, got {value!r}")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} must be a number, got {value!r}")
    return float(value)


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {value!r}")
    return value


def _string(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} must be a non-empty string, got {value!r}")
    return value


_SCALARS = {int: _integer, float: _number, bool: _boolean, str: _string}
