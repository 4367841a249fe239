"""What this environment is made of, and what the machine's own commands say. Standard library only."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterable, Sequence

ASK_SECONDS = 60


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Name -> version of those distributions that are here, in the order asked."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def ask_system(command: Sequence[str]) -> str:
    """What a command prints; nothing if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
