"""Where a model's files are: shipped with the package, a directory, or the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from da3po.config.schema import ConfigError

_PACKAGE = Path(__file__).parent / "package"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_name(path: str) -> bool:
    """Whether `path` reads as `owner/name` on the Hub and is no directory here."""
    return _HUB_NAME.fullmatch(path) is not None and not Path(path).exists()


def locate_model(path: str) -> Path:
    """The local directory of a model, downloaded first if it is a Hub name.

    Raises:
        ConfigError: naming `model.path` and what is missing.
    """
    if path.startswith("package:"):
        return _checked(_PACKAGE / path.removeprefix("package:"), path)
    if is_hub_name(path):
        return _download(path)
    return _checked(Path(path), path)


def _checked(directory: Path, path: str) -> Path:
    if not directory.is_dir():
        raise ConfigError(f"model.path={path}: there is no such directory")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"model.path={path}: {directory} holds no config.json")
    return directory.resolve()


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # heavy, and needed for Hub names only

    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError, RuntimeError) as error:  # offline, no such repository, no access
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"model.path={name}: not a directory here, and the Hub did not give it ({reason}); "
            "download it first and set model.path to its directory"
        ) from error
