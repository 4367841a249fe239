"""Ask pip to resolve da3po with an extra, and record what it chose with each package's own requirements.

    python tools/record_solution.py cuda tests/solutions/cuda-py312.json

Run it with the Python version to record, after a change of pins. tests/test_packaging.py checks the recorded solutions
against pyproject.toml without an index, so a pin that cannot be met together with the others shows at once.

transformer-engine's torch part is left out: pip can read its requirements only by building it, which takes CUDA.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
BUILT_WITH_CUDA = ("transformer-engine", "pytorch")


def requirements(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for with the extra, less what only a CUDA toolchain can resolve."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"][extra]]
    for requirement in wanted:
        if requirement.name == BUILT_WITH_CUDA[0]:
            requirement.extras.discard(BUILT_WITH_CUDA[1])
    return wanted


def resolve(extra: str, *pip_options: str) -> dict[str, Any]:
    """pip's installation report; raises CalledProcessError, with pip's words on standard error, if it finds none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", *pip_options]
        command += ["--report", str(report), *(str(requirement) for requirement in requirements(extra))]
        subprocess.run(command, check=True)
        return dict(json.loads(report.read_text(encoding="utf-8")))


def condense(report: dict[str, Any]) -> dict[str, Any]:
    """Python's version and, for each package, its version, the Pythons it takes, and what it requires of the others."""
    every = [item["metadata"] for item in report["install"]]
    names = {canonicalize_name(metadata["name"]) for metadata in every}
    packages = {
        metadata["name"]: {
            "version": metadata["version"],
            "requires_python": metadata.get("requires_python", ""),
            "requires": [
                text for text in metadata.get("requires_dist", []) if canonicalize_name(Requirement(text).name) in names
            ],
        }
        for metadata in sorted(every, key=lambda metadata: metadata["name"].lower())
    }
    return {"python": platform.python_version(), "packages": packages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extra", choices=["cpu", "cuda"])
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    solution = condense(resolve(arguments.extra))
    arguments.output.write_text(json.dumps(solution, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.output}: {len(solution['packages'])} packages")


if __name__ == "__main__":
    main()
