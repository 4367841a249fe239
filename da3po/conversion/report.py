"""The record of a conversion, beside the model: for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from da3po.conversion.proof import Proof
from da3po.models.companions import OWN_FILES
from da3po.runtime.system import installed_versions

JSON, MARKDOWN = OWN_FILES
_PACKAGES = ("da3po", "torch", "transformers", "safetensors", "megatron-core")


def write_report(folder: Path, proof: Proof, about: Mapping[str, Any]) -> None:
    """about: what was converted and how."""
    record = {
        "passed": proof.passed,
        "conversion": dict(about),
        "versions": installed_versions(_PACKAGES),
        "checks": {check.name: {"passed": check.passed, "detail": check.detail} for check in proof.checks},
        "tensors": proof.tensors,
    }
    (folder / JSON).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / MARKDOWN).write_text(_readable(proof, about), encoding="utf-8")


def read_report(folder: Path) -> dict[str, Any] | None:
    """The record in a folder; None if it holds none that can be read."""
    try:
        record: dict[str, Any] = json.loads((folder / JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record


def lines(proof: Proof) -> list[str]:
    """A line for each check."""
    return [f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}" for check in proof.checks]


def _readable(proof: Proof, about: Mapping[str, Any]) -> str:
    rows = [f"| {check.name} | {'ok' if check.passed else '**failed**'} | {check.detail} |" for check in proof.checks]
    verdict = "Every check passed." if proof.passed else "**A check failed: do not use this model.**"
    facts = [f"- {name.replace('_', ' ')}: {value}" for name, value in about.items()]
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(_PACKAGES).items())
    return "\n".join(
        ["# Conversion", "", *facts, "", verdict, "", "| check | result | found |", "|---|---|---|", *rows, "",
         f"Checksums of all tensors are in {JSON}. Made with {versions}.", ""]
    )  # fmt: skip
