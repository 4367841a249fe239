"""Seconds of a quickstart step by phase, as JSON: runs `da3po train experiment=quickstart` for some steps and reads its
metrics.

    python tools/bench/step.py [--steps 6] [override ...]

The first step is left out: it pays for the engine's and the learner's first calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PHASES = ("generate", "pack", "learn", "sync", "step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="training steps, at least 2")
    parser.add_argument("overrides", nargs="*", help="further overrides, such as algo=dapo")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first one is not counted")
    with tempfile.TemporaryDirectory() as folder:
        rows = train(Path(folder) / "run", args.steps, args.overrides)
    print(json.dumps(summarise(rows[1:]), indent=1))


def train(run_dir: Path, steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """Metrics of each step of a run without evaluations and checkpoints; its output goes to standard error."""
    options = ["eval.before=false", "eval.after=false", "eval.every=0", "checkpoint.every=0", "logging.console=plain"]
    command = [sys.executable, "-m", "da3po.cli", "train", "experiment=quickstart", f"run.dir={run_dir}", *options]
    subprocess.run([*command, f"train.steps={steps}", *overrides], check=True, stdout=sys.stderr)
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most seconds of each phase, and response tokens trained on per second."""
    phases = {phase: [row[f"time/{phase}"] for row in rows] for phase in PHASES}
    return {
        "num_steps": len(rows),
        "seconds": {
            phase: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for phase, values in phases.items()
        },
        "response_tokens_per_second": statistics.median(row["tokens/per_second"] for row in rows),
    }


if __name__ == "__main__":
    main()
