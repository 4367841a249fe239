"""Fields of Megatron-Core's config classes that a run may set itself (`learner.megatron.<section>.<field>`).

The names and types are read from the source of the installed Megatron-Core without importing it, so that a wrong field
is refused before any process starts. Nothing here imports Megatron.

| type of the field                               | value                                          |
|-------------------------------------------------|------------------------------------------------|
| bool, int, float, str, Literal, List, Optional  | itself                                         |
| Tuple                                           | a list                                         |
| an enumeration of Megatron's                    | a member's name (attention_backend=flash)      |
| torch.dtype                                     | its name (float32 for torch.float32)           |
| a function, a context manager, another class    | none: no text can name it, so the field is refused |
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from da3po.config.schema import ConfigError, MegatronConfig
from da3po.learner.megatron.owned_fields import OWNED

CLASSES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "transformer": (
            ("transformer/transformer_config.py", "TransformerConfig"),
            ("model_parallel_config.py", "ModelParallelConfig"),
        ),
        "ddp": (("distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
        "optimizer": (("optimizer/optimizer_config.py", "OptimizerConfig"),),
    }
)
"""Section -> the file in megatron/core and the name of its class, then of its bases."""

ENUMS = "transformer/enums.py"
"""The file in megatron/core with the enumerations that fields are of."""

NOT_ON_CPU: Mapping[str, Any] = MappingProxyType(
    {"attention_dropout": 0.0, "window_size": None, "softmax_type": "vanilla", "attention_backend": "auto"}
)
"""Field of TransformerConfig -> the one value that the packed attention on CPU knows."""

_SIMPLE: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "None": (type(None),)}
)

DTYPES = ("float32", "bfloat16", "float16", "uint8")
"""Number formats that a field of type torch.dtype takes, by name."""


def check_fields(config: MegatronConfig) -> None:
    """Raise ConfigError for a field that Megatron does not have, that something else decides, or of a wrong type."""
    for section in CLASSES:
        for name, value in getattr(config, section).items():
            _check(section, name, value)


def _check(section: str, name: str, value: Any) -> None:
    key, known = f"learner.megatron.{section}.{name}", field_types(section)
    if name in OWNED[section]:
        raise ConfigError(f"{key} is decided by {OWNED[section][name]}")
    if name not in known:
        near = difflib.get_close_matches(name, [field for field in known if field not in OWNED[section]], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{key}: Megatron-Core's {CLASSES[section][0][1]} has no field {name!r}{hint}")
    if not _accepts(known[name], value):
        raise ConfigError(f"{key} {_wanted(known[name])}, got {value!r}")


def check_device_fields(config: MegatronConfig, device: str) -> None:
    """Raise ConfigError for a field that this kind of device would leave without effect."""
    if device != "cpu":
        return
    for name, neutral in NOT_ON_CPU.items():
        value = config.transformer.get(name, neutral)
        if value != neutral:
            raise ConfigError(f"learner.megatron.transformer.{name}={value}: the attention on CPU has only {neutral}")


@cache
def field_types(section: str) -> dict[str, ast.expr]:
    """Field -> annotation, of a section's class and its bases, as the installed Megatron-Core has them."""
    types: dict[str, ast.expr] = {}
    for file, class_name in CLASSES[section]:
        module = ast.parse((_megatron_core() / file).read_text(encoding="utf-8"))
        (found,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == class_name)
        for statement in found.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                types.setdefault(statement.target.id, statement.annotation)
    return types


def _megatron_core() -> Path:
    package = importlib.util.find_spec("megatron")
    for location in (package and package.submodule_search_locations) or ():
        if (Path(location) / "core").is_dir():
            return Path(location) / "core"
    raise ConfigError("learner.megatron: Megatron-Core is not installed here, so its fields cannot be checked")


@cache
def enum_members(name: str) -> tuple[str, ...]:
    """Names of the members of an enumeration of Megatron's; none if it has no such enumeration."""
    module = ast.parse((_megatron_core() / ENUMS).read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            targets = (target for line in node.body if isinstance(line, ast.Assign) for target in line.targets)
            return tuple(target.id for target in targets if isinstance(target, ast.Name))
    return ()


def leaf_types(annotation: ast.expr) -> set[str]:
    """The types without parts of their own in an annotation: Optional[List[int]] has int."""
    match annotation:
        case ast.BinOp():
            return leaf_types(annotation.left) | leaf_types(annotation.right)
        case ast.Subscript():
            inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            if _generic(annotation) in _CONTAINERS:
                return {leaf for part in inside for leaf in leaf_types(part)}
            return {_generic(annotation)}
    return {ast.unparse(annotation)}


def is_settable(annotation: ast.expr) -> bool:
    """Whether there is a value for a field of this type, besides none at all."""
    return any(
        leaf in _SIMPLE or leaf in ("torch.dtype", "Literal") or enum_members(leaf)
        for leaf in leaf_types(annotation) - {"None"}
    )


_CONTAINERS = ("Optional", "Union", "List", "list", "Tuple", "tuple")


def _wanted(annotation: ast.expr) -> str:
    if not is_settable(annotation):
        return f"takes a {ast.unparse(annotation)}, which no value of an option can be"
    leaves = leaf_types(annotation)
    names = [name for leaf in sorted(leaves) for name in enum_members(leaf)] + [*DTYPES] * ("torch.dtype" in leaves)
    if names and "str" not in leaves:
        return f"must be one of {', '.join(names)}"
    return f"must be of type {ast.unparse(annotation)}"


def _accepts(annotation: ast.expr, value: Any) -> bool:
    """Whether a value fits."""
    if isinstance(annotation, ast.BinOp):
        return _accepts(annotation.left, value) or _accepts(annotation.right, value)
    if isinstance(annotation, ast.Subscript):
        return _accepts_generic(_generic(annotation), annotation.slice, value)
    name = ast.unparse(annotation)
    if name == "torch.dtype":
        return value in DTYPES
    if isinstance(value, str) and value in enum_members(name):
        return True
    allowed = _SIMPLE.get(name, ())
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))


def _accepts_generic(name: str, inside: ast.expr, value: Any) -> bool:
    arguments = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    match name:
        case "Optional":
            return value is None or _accepts(inside, value)
        case "Union":
            return any(_accepts(argument, value) for argument in arguments)
        case "Literal":
            return value in [ast.literal_eval(argument) for argument in arguments]
        case "List" | "list":
            return isinstance(value, list) and all(_accepts(inside, one) for one in value)
        case "Tuple" | "tuple":
            return isinstance(value, list) and _accepts_tuple(arguments, value)
    return False


def _accepts_tuple(arguments: list[ast.expr], values: list[Any]) -> bool:
    if ast.unparse(arguments[-1]) in ("...", "Ellipsis"):
        return all(_accepts(arguments[0], value) for value in values)
    return len(values) == len(arguments) and all(map(_accepts, arguments, values))


def _generic(annotation: ast.Subscript) -> str:
    return ast.unparse(annotation.value).rpartition(".")[2]
