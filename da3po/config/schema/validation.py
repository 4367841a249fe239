"""How a section refuses a value."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the key."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
