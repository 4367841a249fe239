#!/bin/sh
# Run the learner's tests with the other supported pair: Python 3.12 and megatron-core 0.19 (`make setup` has 3.11 and
# 0.16 where it finds Python 3.11). Beside .venv, whose environment stays as it is.
#
#   tools/test_matrix.sh                       the learner's suites, as in `make test`
#   tools/test_matrix.sh -m matrix             every layout x model x algorithm x budget
#   tools/test_matrix.sh -k tied               any other arguments of pytest
#
# PYTHON312   a Python 3.12 (default: python3.12 on PATH that runs, else the newest that pyenv has)
# VENV312     where to make the environment (default: .venv312); it takes some 6 GB with PyPI's torch, which brings CUDA
#             libraries and runs on CPU too
set -eu
cd "$(dirname "$0")/.."
root=$PWD
venv=${VENV312:-$root/.venv312}

usable() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON312:-}" ]; then
        usable "$PYTHON312" && echo "$PYTHON312" && return
        echo "test_matrix: PYTHON312=$PYTHON312 is not a Python 3.12 with the venv module" >&2
        return 1
    fi
    # A name on PATH may be a shim that does not run, so each candidate is tried.
    usable python3.12 && echo python3.12 && return
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12; do
        usable "$candidate" && found=$candidate
    done
    [ -n "${found:-}" ] && echo "$found" && return
    echo "test_matrix: no Python 3.12 with the venv module was found; name one: PYTHON312=/path/to/python3.12" >&2
    return 1
}

# What pyproject.toml asks for, without the project itself: an editable install would write into the checkout, and the
# engine and Ray are not the learner's.
requirements() {
    "$1" - <<'PYTHON'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
cpu = [line for line in extras["cpu"] if line.startswith(("torch==", "megatron-core"))]
print("\n".join([*project["dependencies"], *cpu, *extras["dev"]]))
PYTHON
}

python=$venv/bin/python
if ! usable "$python"; then
    from=$(find_python)
    echo "test_matrix: making $venv with $("$from" --version)"
    "$from" -m venv --clear "$venv"
fi
wanted=$(requirements "$python")
if [ "$(cat "$venv/da3po-requirements.txt" 2>/dev/null)" != "$wanted" ]; then
    echo "test_matrix: installing torch, megatron-core and what the tests need (some minutes the first time)"
    echo "$wanted" >"$venv/wanted.txt"
    "$python" -m pip install --quiet --requirement "$venv/wanted.txt"
    mv "$venv/wanted.txt" "$venv/da3po-requirements.txt"
fi

"$python" - <<'PYTHON'
import importlib.metadata as metadata, platform

versions = {name: metadata.version(name) for name in ("torch", "megatron-core", "transformers")}
print("test_matrix: Python", platform.python_version(), *(f"{name} {version}" for name, version in versions.items()))
PYTHON
if [ $# -eq 0 ]; then
    set -- -m "not slow and not slurm and not gpu and not matrix and not soak"
fi
# The checkout goes first on the path of this process and of those that it starts.
PYTHONPATH=$root exec "$python" -m pytest tests/learner tests/pack tests/megatron_patches tests/models tests/plan "$@"
