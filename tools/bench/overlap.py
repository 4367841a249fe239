"""What generating ahead of training is worth: the quickstart with rollout.max_lag=0 and 1, as JSON.

    python tools/bench/overlap.py [--steps 8] [--evaluate] [override ...]

Engine and learner have one thread each, so that on two cores each has its own. `balance` is the time of generating over
that of learning, which must be about 1 for the most that overlap can give: half the step. The first two steps are not
counted: they pay for first calls, and nothing is ahead yet. With --evaluate both runs are evaluated before and after.
Give it a machine where nothing else runs.
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

UNCOUNTED = 2
PHASES = ("generate", "collect", "learn", "sync", "step")
OPTIONS = ["engine.num_threads=1", "learner.num_threads=1", "checkpoint.every=0", "logging.console=plain"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="training steps, at least 3")
    parser.add_argument("--evaluate", action="store_true", help="before and after")
    parser.add_argument("overrides", nargs="*", help="further overrides, for both runs")
    args = parser.parse_args()
    if args.steps <= UNCOUNTED:
        parser.error(f"--steps must be more than {UNCOUNTED}: those are not counted")
    with tempfile.TemporaryDirectory() as folder:
        runs = [train(Path(folder) / f"lag{lag}", lag, args) for lag in (0, 1)]
    print(json.dumps(compare(*runs), indent=1))


def train(run_dir: Path, max_lag: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run, its output to standard error; what its metrics say."""
    whether = str(args.evaluate).lower()
    options = [*OPTIONS, f"eval.before={whether}", f"eval.after={whether}", "eval.every=0"]
    options += [f"run.dir={run_dir}", f"train.steps={args.steps}", f"rollout.max_lag={max_lag}", *args.overrides]
    command = [sys.executable, "-m", "da3po.cli", "train", "experiment=quickstart", *options]
    subprocess.run(command, check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][UNCOUNTED:]
    run: dict[str, Any] = {
        "seconds": {phase: statistics.median(row[f"time/{phase}"] for row in rows) for phase in PHASES},
        "response_tokens_per_second": statistics.median(row["tokens/per_second"] for row in rows),
        "staleness_mean": statistics.mean(row["rollout/staleness_mean"] for row in rows),
        "offpolicy_kl": statistics.median(row["offpolicy/kl"] for row in rows),
        "offpolicy_ess": statistics.median(row["offpolicy/ess"] for row in rows),
    }
    if args.evaluate:
        run["evaluations"] = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    return run


def compare(on_policy: dict[str, Any], ahead: dict[str, Any]) -> dict[str, Any]:
    before = on_policy["seconds"]
    return {
        "step_time_ratio": ahead["seconds"]["step"] / before["step"],
        "balance": before["collect"] / before["learn"],
        "max_lag=0": on_policy,
        "max_lag=1": ahead,
    }


if __name__ == "__main__":
    main()
