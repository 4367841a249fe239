"""The arrows of docs/architecture.md, held against the code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from architecture_rules import PACKAGE, Room, module_name, read_table, violations

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
PURE_ROOMS = ("types", "algo", "pack", "data", "reward", "models", "plan")
# No pure room, nor the command line before it knows what to do, pulls these in, however indirectly.
HEAVY = (
    "hydra",
    "matplotlib",
    "megatron",
    "megatron_patches",
    "omegaconf",
    "ray",
    "tensorboard",
    "transformer_engine",
    "vllm",
)


@pytest.fixture(scope="module")
def rooms() -> dict[str, Room]:
    return read_table(DOCUMENT.read_text(encoding="utf-8"))


def test_imports_follow_the_table(rooms: dict[str, Room]) -> None:
    assert violations(ROOT, rooms) == []


def test_every_room_exists(rooms: dict[str, Room]) -> None:
    """A row without code is a row that nobody would miss when it is wrong."""
    for room in rooms:
        path = ROOT.joinpath(PACKAGE, *room.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), f"docs/architecture.md has a row for {room}"


def test_arrows_point_down(rooms: dict[str, Room]) -> None:
    """No row may import a room of a later row, save commands, which call each other."""
    order = list(rooms)
    for room, rights in rooms.items():
        if not rights.is_command:
            for target in rights.may_import:
                owner = max((name for name in rooms if target == name or target.startswith(name + ".")), key=len)
                assert order.index(owner) < order.index(room), f"{room} imports {target}, which stands above it"


def modules_of(rooms: Iterable[str]) -> list[str]:
    names = []
    for room in rooms:
        path = ROOT.joinpath(PACKAGE, *room.split("."))
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        names += [module_name(file, ROOT) for file in files]
    return sorted(names)


def loaded(modules: Iterable[str], watched: Iterable[str]) -> str:
    """Which of the watched libraries are in a fresh process after importing the modules."""
    code = (
        "import importlib, sys\n"
        f"for name in {list(modules)!r}: importlib.import_module(name)\n"
        f"print(*(name for name in {list(watched)!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_pure_rooms_stay_light() -> None:
    assert loaded(modules_of(PURE_ROOMS), HEAVY) == ""


def test_config_schema_needs_the_standard_library_only() -> None:
    assert loaded(["da3po.config.schema"], [*HEAVY, "torch", "numpy", "transformers"]) == ""


def test_command_line_starts_light() -> None:
    """A mistyped command answers at once."""
    assert loaded(["da3po.cli"], [*HEAVY, "torch", "numpy", "transformers"]) == ""


def test_learner_process_never_loads_vllm_or_ray() -> None:
    assert loaded(modules_of(["learner"]), ["vllm", "ray"]) == ""


def test_engine_process_never_loads_megatron() -> None:
    assert loaded(modules_of(["engine"]), ["megatron", "megatron_patches", "transformer_engine"]) == ""


TABLE = """
text before

| room | may import | may name |
|---|---|---|
| `types` | | |
| `pure` | `types` | `torch` |
| `engine` | `types` | |
| `engine.real` | `engine` | `torch`, `torch.distributed`, `vllm` |
| `user` | `engine.protocol` | |
| `command`, `other` | `all` | |
"""


class TestChecker:
    """The checker on made-up trees, so that the tests above are known to be able to fail."""

    def check(self, tmp_path: Path, name: str, source: str) -> list[str]:
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return [line.split(": ", 1)[1] for line in violations(tmp_path, read_table(TABLE))]

    @pytest.mark.parametrize(
        ("name", "source"),
        [
            ("pure/a.py", "import os, json\nfrom da3po.types import Prompt\nimport torch\nfrom torch import Tensor\n"),
            (
                "pure/a.py",
                "from da3po.pure.b import f\nfrom . import b\nfrom .c import g\nfrom da3po import __version__\n",
            ),
            ("pure/a.py", "import torch\nx = torch.nn.functional.relu\n"),
            (
                "engine/real/a.py",
                "import vllm.config\nimport torch.distributed as dist\nfrom da3po.engine.protocol import E\n",
            ),
            ("engine/a.py", "from da3po.engine.protocol import E\n"),
            ("user.py", "from da3po.engine.protocol import E\nfrom da3po.engine import protocol\n"),
            ("command.py", "from da3po.engine.real.a import E\nfrom da3po.pure import a\n"),
            ("__init__.py", "__version__ = '1'\n"),
        ],
    )
    def test_allowed(self, tmp_path: Path, name: str, source: str) -> None:
        assert self.check(tmp_path, name, source) == []

    @pytest.mark.parametrize(
        ("name", "source", "objection"),
        [
            ("types.py", "from da3po.pure import a\n", "types may not import pure.a"),
            ("types.py", "import torch\n", "types may not name torch"),
            ("pure/a.py", "import vllm\n", "pure may not name vllm"),
            ("pure/a.py", "import numpy\n", "pure may not name numpy"),
            ("pure/a.py", "def f():\n    import ray\n", "pure may not name ray"),
            (
                "pure/a.py",
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vllm\n",
                "pure may not name vllm",
            ),
            ("pure/a.py", "import torch.distributed as dist\n", "pure may not name torch.distributed"),
            ("pure/a.py", "from torch import distributed\n", "pure may not name torch.distributed"),
            ("pure/a.py", "import torch\ntorch.distributed.barrier()\n", "pure may not name torch.distributed"),
            ("pure/a.py", "import torch as t\nt.distributed.barrier()\n", "pure may not name torch.distributed"),
            ("pure/a.py", "import importlib\nimportlib.import_module('vllm.x')\n", "pure may not name vllm"),
            ("pure/a.py", "from ..engine import protocol\n", "pure may not import engine.protocol"),
            ("pure/deep/__init__.py", "from ...engine import protocol\n", "pure may not import engine.protocol"),
            ("engine/a.py", "from da3po.engine.real import b\n", "engine may not import engine.real.b"),
            ("engine/a.py", "from da3po.engine import real\n", "engine may not import engine.real"),
            ("user.py", "from da3po.engine.pool import Pool\n", "user may not import engine.pool.Pool"),
            ("user.py", "from da3po import command\n", "user may not import command"),
            ("command.py", "from da3po.other import main\n", "command may not import other.main"),
            ("command.py", "import ray\n", "command may not name ray"),
            ("stray.py", "", "belongs to no room of the table"),
            (
                "__init__.py",
                "from da3po.types import Prompt\n",
                "da3po itself imports no room, but imports types.Prompt",
            ),
        ],
    )
    def test_refused(self, tmp_path: Path, name: str, source: str, objection: str) -> None:
        assert self.check(tmp_path, name, source) == [objection]

    def test_line_is_named(self, tmp_path: Path) -> None:
        (tmp_path / PACKAGE).mkdir()
        (tmp_path / PACKAGE / "types.py").write_text("import os\n\nimport ray\n")
        assert violations(tmp_path, read_table(TABLE)) == ["da3po/types.py:3: types may not name ray"]

    def test_no_table(self) -> None:
        with pytest.raises(ValueError, match="no table"):
            read_table("# Architecture\n")

    def test_two_rows_for_a_room(self) -> None:
        with pytest.raises(ValueError, match="pure has two rows"):
            read_table(TABLE + "| `pure` | | |\n")

    def test_transitive_check_sees_an_import(self) -> None:
        assert loaded(["json"], ["json", "vllm"]) == "json"
