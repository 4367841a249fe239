#!/bin/sh
# Find a Python that can run da3po and let tools/setup_env.py make .venv with it.
# A name on PATH may be a shim that does not run, and a Debian python may lack venv, so each candidate is tried.
set -eu
cd "$(dirname "$0")/.."

usable() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" || {
        echo "setup: PYTHON=$PYTHON is not a Python 3.11 or 3.12 with the venv module" >&2
        exit 1
    }
    exec "$PYTHON" tools/setup_env.py
fi
for candidate in python3.11 python3.12 python3 python; do
    if usable "$candidate"; then
        exec "$candidate" tools/setup_env.py
    fi
done
echo "setup: no Python 3.11 or 3.12 with the venv module was found on PATH." >&2
echo "setup: install one (Debian: apt install python3.11-venv), or name it: make setup PYTHON=/path/to/python3.11" >&2
exit 1
