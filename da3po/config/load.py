"""Overrides -> Config, through Hydra's compose API. The only room file that names Hydra.

The tree that Hydra composes on top of is made from the dataclasses, so an option and its default exist in one place;
the files under conf/ hold differences only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import da3po
from da3po.config.build import build, is_text_or_list, leaves, open_section_of, sections, to_tree, unknown_key
from da3po.config.schema import Config, ConfigError

_BENCHMARK = "benchmark="
_OVERRIDE = re.compile(r"(?P<key>[^=\s]+)=(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"""(['"]).*\1""", re.DOTALL)


def conf_dir() -> Path:
    """The folder of YAML files: inside the package in an installed wheel, beside it in a checkout."""
    package = Path(da3po.__file__).parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def load(overrides: Sequence[str] = ()) -> Config:
    """Compose conf/config.yaml with the overrides.

    Overrides are Hydra's: `key.sub=value`, `group=option`. The same key twice: the last one wins. `model=DIR` is short
    for `model.path=DIR`, and `benchmark=NAME,NAME` or `benchmark=all` for the files of conf/benchmark.

    Raises:
        ConfigError: naming the key and, for a key that does not exist, the nearest one that does.
    """
    names = [text.removeprefix(_BENCHMARK) for text in overrides if text.startswith(_BENCHMARK)]
    overrides = [text for text in overrides if not text.startswith(_BENCHMARK)]
    prepared = [_prepare(text) for text in overrides]
    ConfigStore.instance().store(name="schema", node=to_tree(Config()))
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            tree = compose(config_name="config", overrides=prepared)
        plain = OmegaConf.to_container(tree, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise ConfigError(str(cause).strip() if str(cause).strip() else str(error)) from error
    options = cast("dict[str, Any]", plain)
    if names:
        options["benchmarks"] = _benchmarks(names[-1])
        if any(text.startswith("eval.num_samples=") for text in overrides):
            n = options["eval"]["num_samples"]
            options["benchmarks"] = [{**one, "num_samples": n} for one in options["benchmarks"]]
    return build(options)


def _benchmarks(names: str) -> list[dict[str, Any]]:
    """The files of conf/benchmark that `all`, `NAME` or `NAME,NAME` means."""
    folder = conf_dir() / "benchmark"
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    chosen = known if names == "all" else [name.strip() for name in names.strip("[]").split(",")]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"benchmark={names}: there is no {name!r}; there are all, {', '.join(known)}")
    files = [OmegaConf.load(folder / f"{name}.yaml") for name in dict.fromkeys(chosen)]
    return [
        cast("dict[str, Any]", {"name": name, **file}) for name, file in zip(dict.fromkeys(chosen), files, strict=True)
    ]


def dump(config: Config) -> str:
    """The resolved config as YAML; `load` of nothing else but its keys gives the same config."""
    return OmegaConf.to_yaml(OmegaConf.create(to_tree(config)))


def parse_yaml(text: str) -> Config:
    """The config that `dump` wrote."""
    plain = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    if not isinstance(plain, dict):
        raise ConfigError("a config file must hold a mapping of sections")
    return build(cast("Mapping[str, Any]", plain))


def _groups() -> dict[str, list[str]]:
    root = conf_dir()
    groups: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*.yaml")):
        group = file.parent.relative_to(root).as_posix()
        if group != ".":
            groups.setdefault(group, []).append(file.stem)
    return groups


def help_text(usage: str) -> str:
    """How to call a command that takes overrides: the groups with their choices, and where options are described."""
    lines = [f"  {group}={'|'.join(choices)}" for group, choices in sorted(_groups().items())]
    return "\n".join(
        [
            f"usage: {usage}",
            "",
            "Groups and their choices:",
            *lines,
            "",
            "Every other option is KEY=VALUE, such as train.steps=5 or rollout.num_samples=8; one that does not exist",
            "is refused with the nearest one. All keys, with defaults and meaning: da3po/config/schema/.",
        ]
    )


def _prepare(text: str) -> str:
    """Check one override's key, and quote a string value, so that any path comes through as it is."""
    match = _OVERRIDE.fullmatch(text)
    if not match:
        raise ConfigError(f"an override has the form key=value, got {text!r}")
    key, value = match["key"], match["value"]
    groups, options = _groups(), leaves()
    if key == "model" and value not in groups["model"]:
        if not Path(value).is_dir() and "/" not in value:
            raise ConfigError(f"model={value}: neither a directory nor one of {', '.join(groups['model'])}")
        key = "model.path"
    if key in groups:
        _check_choice(key, value, groups[key])
        return f"{key}={value}"
    if open_section_of(key):
        return f"++{key}={value}"  # Hydra takes a key that the tree does not have yet only if told so
    if key in sections():
        inside = ", ".join(option for option in options if option.startswith(key + ".")) or f"{key}.FIELD"
        raise ConfigError(f"{key} is a section, not a value (got {value!r}); its options are {inside}")
    if key not in options:
        raise _unknown(text, key)
    return f"{key}={_quote(value) if _is_text(options[key], value) else value}"


def _check_choice(group: str, value: str, choices: list[str]) -> None:
    """Raises ConfigError unless `value` is one of a group's files."""
    if value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1)
    if near:
        raise ConfigError(f"{group}={value}: there is no such choice; did you mean {group}={near[0]}?")
    message = f"{group}={value}: there is no such choice; {group} is one of {', '.join(choices)}"
    if group in sections():
        message += "; or set one of its options: " + ", ".join(o for o in leaves() if o.startswith(group + "."))
    raise ConfigError(message)


def _unknown(text: str, key: str) -> ConfigError:
    bare = key.lstrip("+~")
    if bare != key and bare in leaves():
        return ConfigError(f"{text}: every option exists already, write {text.lstrip('+~')}")
    return unknown_key(bare)


def _is_text(kind: Any, value: str) -> bool:
    """Whether a value is to be taken as it is; where a list may stand, `[...]` is one."""
    if is_text_or_list(kind):
        return not (value.startswith("[") and value.endswith("]"))
    return kind is str or (kind == str | None and value != "null")


def _quote(value: str) -> str:
    """A quoted string of Hydra's grammar: only backslashes that stand before a quote count as escapes there."""
    if _QUOTED.fullmatch(value):
        return value
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
