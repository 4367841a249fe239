"""tools/setup_env.*, with scripts that stand in for Python and pip."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Answers like the venv's Python: logs its arguments; fails, with a message, where a pattern of $FAIL is in them.
STAND_IN = """#!/bin/sh
printf '%s\\n' "$*" >> "{log}"
if printf '%s' "$*" | grep -qE -e "$FAIL"; then printf 'Traceback ...\\nOSError: no such library\\n' >&2; exit 1; fi
"""


def make_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def setup_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, pointed at a checkout of its own whose venv is the stand-in."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "da3po-setup.json")
    monkeypatch.setattr(module, "PYPROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setenv("FAIL", "^$")
    make_script(module.PYTHON, STAND_IN.format(log=tmp_path / "log"))
    return module


def calls(setup_env: ModuleType) -> list[str]:
    log = setup_env.ROOT / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_second_run_does_nothing(setup_env: ModuleType) -> None:
    assert setup_env.main() == 0
    first = calls(setup_env)
    assert any("install --quiet --editable .[cpu,dev]" in call for call in first)
    assert setup_env.main() == 0
    assert calls(setup_env) == first


@pytest.mark.parametrize("change", ["pyproject", "moved"])
def test_stamp_of_something_else_does_not_count(
    setup_env: ModuleType, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup_env.main() == 0
    if change == "pyproject":
        setup_env.PYPROJECT.write_text("[project]\nname = 'other'\n")
    else:
        stamp = json.loads(setup_env.STAMP.read_text())
        setup_env.STAMP.write_text(json.dumps(stamp | {"root": "/somewhere/else"}))
    assert not setup_env.is_current()


@pytest.mark.parametrize("broken", ["--upgrade pip", "--editable", "import importlib, importlib.metadata"])
def test_no_stamp_unless_all_went_well(
    setup_env: ModuleType, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup_env.STAMP.write_text("{}")
    monkeypatch.setenv("FAIL", broken)
    assert setup_env.main() == 1
    assert not setup_env.STAMP.exists()
    assert "setup: error: " in capsys.readouterr().out


def test_configured_sources_are_enough(setup_env: ModuleType) -> None:
    setup_env.install_torch()
    assert calls(setup_env) == [f"-m pip install --quiet {setup_env.torch_requirement()}"]


def test_pytorch_index_is_asked_for_torch_alone(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's own sources fail; the second call goes through."""
    monkeypatch.setenv("FAIL", "install --quiet torch")
    setup_env.install_torch()
    _, fallback = calls(setup_env)
    assert f"--index-url {setup_env.TORCH_CPU_INDEX} {setup_env.torch_requirement()}" in fallback
    assert "--no-deps" in fallback


def test_torch_nowhere(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "pip install")
    with pytest.raises(setup_env.SetupError, match=r"found neither by pip's .* nor at .* Give pip a source"):
        setup_env.install_torch()


def test_satellites_that_import_are_kept(setup_env: ModuleType) -> None:
    setup_env.drop_broken_satellites()
    assert not any("uninstall" in call for call in calls(setup_env))


def test_satellite_that_does_not_import_is_removed_and_named(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIL", "import torchaudio$")
    setup_env.drop_broken_satellites()
    assert [call for call in calls(setup_env) if "uninstall" in call] == ["-m pip uninstall --quiet --yes torchaudio"]
    assert "removing torchaudio" in (said := capsys.readouterr().out)
    assert "OSError: no such library" in said


def test_satellite_that_is_not_installed_is_no_matter(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", r"metadata\.version|import torchcodec$")
    setup_env.drop_broken_satellites()
    assert not any("uninstall" in call for call in calls(setup_env))


def test_half_made_venv_is_made_anew(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the venv's folder and its pip leaves a Python without pip."""
    monkeypatch.setenv("FAIL", "import pip")
    maker = make_script(setup_env.ROOT / "maker", '#!/bin/sh\nmkdir "$3" && echo "$*" > "$3/made"\n')
    monkeypatch.setattr(sys, "executable", str(maker))
    leftover = setup_env.VENV / "leftover"
    leftover.touch()
    setup_env.make_venv()
    assert not leftover.exists()
    assert (setup_env.VENV / "made").read_text() == f"-m venv {setup_env.VENV}\n"


def test_venv_with_pip_is_kept(setup_env: ModuleType) -> None:
    setup_env.make_venv()
    assert setup_env.PYTHON.exists()


# -- which Python


def find_python(tmp_path: Path, **candidates: str) -> subprocess.CompletedProcess[str]:
    """tools/setup_env.sh in a checkout whose setup_env.py only says who runs it; PATH holds these commands."""
    tools = tmp_path / "checkout" / "tools"
    script = make_script(tools / "setup_env.sh", (ROOT / "tools" / "setup_env.sh").read_text())
    (tools / "setup_env.py").write_text("import sys; print(sys.argv[0], sys.version_info[:2])")
    path = tmp_path / "path"
    path.mkdir()
    for name, text in candidates.items():
        make_script(path / name.replace("_", "."), text)
    (path / "dirname").symlink_to("/usr/bin/dirname")
    environment = {"PATH": str(path)}
    return subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, timeout=30)


WORKING = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
SHIM = "#!/bin/sh\necho 'command not found' >&2\nexit 127\n"


def test_shim_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    done = find_python(tmp_path, python3_11=SHIM, python3_12=SHIM, python3=WORKING)
    assert done.stdout.startswith("tools/setup_env.py")
    assert done.returncode == 0


def test_no_usable_python(tmp_path: Path) -> None:
    old = '#!/bin/sh\ncase "$2" in *version_info*) exit 1;; esac\n'
    done = find_python(tmp_path, python3=old, python=SHIM)
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12 with the venv module" in done.stderr


def test_python_named_by_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "tools" / "setup_env.sh"
    environment = os.environ | {"PYTHON": str(make_script(tmp_path / "python", SHIM))}
    done = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "is not a Python 3.11 or 3.12" in done.stderr


def test_make_runs_setup_first_and_passes_overrides() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "train", "ARGS=train.steps=5"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # `make test` sets them
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "sh tools/setup_env.sh",
        ".venv/bin/da3po train experiment=quickstart train.steps=5",
    ]
