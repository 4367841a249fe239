"""Kill a real run with SIGKILL at random moments, resume it, and hold it against a run that nobody touched.

    python tools/kill_sweep.py FOLDER --kills 20 [KEY=VALUE ...]

Half of the kills come while a step is being saved. A run that is killed is started again at once and killed again,
until it ends; then another one is begun, until so many kills are spent. Prints a JSON object; ends with 1 if a run
differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OPTIONS = [
    "experiment=quickstart", "train.steps=6", "rollout.num_prompts=8", "rollout.num_samples=8", "eval.limit=16",
    "eval.num_samples=2", "eval.every=2", "engine.max_num_seqs=64", "data.max_prompt_tokens=64", "optim.warmup_steps=3",
    "checkpoint.every=1", "checkpoint.best=eval/avg@2", "logging.console=plain", "logging.num_rollouts=8",
]  # fmt: skip
TOLERANCE = 1e-5
COMPARED = ("loss/policy", "actor/grad_norm", "rollout/accuracy", "actor/entropy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    sweep = Sweep(options.folder, [*OPTIONS, *options.overrides], random.Random(options.seed))
    sweep.spend(options.kills)
    print(json.dumps({"kills": sweep.kills, "runs": sweep.runs}, indent=1))
    return 0 if all(run["same"] for run in sweep.runs) else 1


class Sweep:
    """kills: what each one hit. runs: how each finished run compares with the reference."""

    def __init__(self, folder: Path, options: list[str], dice: random.Random) -> None:
        self._folder = folder
        self._options = options
        self._dice = dice
        self.kills: list[str] = []
        self.runs: list[dict[str, Any]] = []
        if code := self._start(folder / "whole").wait():
            raise SystemExit(f"the run to compare with ended with {code}; see {folder / 'whole.txt'}")

    def spend(self, num_kills: int) -> None:
        while len(self.kills) < num_kills:
            run_dir = self._folder / f"run{len(self.runs)}"
            ended: bool | None = False
            while ended is False:
                ended = self._ended(run_dir, may_kill=len(self.kills) < num_kills)
            if not ended:
                return
            self.runs.append(compare(self._folder / "whole", run_dir))

    def _ended(self, run_dir: Path, *, may_kill: bool) -> bool | None:
        """One start of the run. Whether it came to its end; None if it failed."""
        process = self._start(run_dir)
        if may_kill and self._wait_for_moment(process, run_dir):
            hit = f"{_last_step(run_dir)} steps done, saving {[path.name for path in _saves(run_dir)]}"
            process.send_signal(signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                self.kills.append(hit)
                print(f"kill {len(self.kills)} of {run_dir.name}: {hit}", file=sys.stderr, flush=True)
                time.sleep(2)  # its learner and engines notice that it is gone
                return False
        code = process.wait()
        if code:
            self.runs.append({"ended_with": code, "output": f"{run_dir}.txt", "same": False})
            return None
        return True

    def _wait_for_moment(self, process: subprocess.Popen[bytes], run_dir: Path) -> bool:
        """Returns at a random moment after the parts of the run are up, or False if the run ends before it."""
        first = _last_step(run_dir)
        in_save = self._dice.random() < 0.5
        skip = self._dice.randrange(2)
        while process.poll() is None:
            if in_save and _saves(run_dir) and _last_step(run_dir) > first + skip:
                time.sleep(self._dice.random() * 0.1)
                return process.poll() is None
            if not in_save and _last_step(run_dir) > first + skip - 1:
                time.sleep(self._dice.random() * 4)
                return process.poll() is None
            time.sleep(0.002)
        return False

    def _start(self, run_dir: Path) -> subprocess.Popen[bytes]:
        mode = f"checkpoint.asynchronous={self._dice.choice(('true', 'false'))}"
        with Path(f"{run_dir}.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "da3po.cli", "train", *self._options, mode, f"run.dir={run_dir}"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )


def _saves(run_dir: Path) -> list[Path]:
    return list((run_dir / "checkpoints").glob(".writing-*"))


def _last_step(run_dir: Path) -> int:
    rows = _rows(run_dir / "metrics.jsonl")
    return int(rows[-1]["step"]) if rows else 0


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def compare(whole: Path, run_dir: Path) -> dict[str, Any]:
    """Prompts, samples and learning rates exactly; losses and weights to a tolerance, and whether exactly."""
    import torch
    from safetensors.torch import load_file

    rows, expected = _rows(run_dir / "metrics.jsonl"), _rows(whole / "metrics.jsonl")
    weights, wanted = (
        {k: v.float() for k, v in load_file(d / "export" / "model.safetensors").items()} for d in (run_dir, whole)
    )
    samples = ("step", "uid", "response")
    drawn, asked = ([[row[key] for key in samples] for row in _rows(d / "rollouts.jsonl")] for d in (run_dir, whole))
    losses = max(abs(a[key] - b[key]) for a, b in zip(rows, expected, strict=False) for key in COMPARED)
    apart = max(float((weights[name] - wanted[name]).abs().max() / wanted[name].abs().max()) for name in wanted)
    found = {
        "steps": [row["step"] for row in rows] == [row["step"] for row in expected],
        "evaluations": [row["step"] for row in _rows(run_dir / "evaluations.jsonl")]
        == [row["step"] for row in _rows(whole / "evaluations.jsonl")],
        "learning_rates": [row["actor/lr"] for row in rows] == [row["actor/lr"] for row in expected],
        "samples": drawn == asked,
        "losses_apart": losses,
        "weights_apart": apart,
        "bit_for_bit": losses == 0 and all(torch.equal(weights[name], wanted[name]) for name in wanted),
    }
    exact = ("steps", "evaluations", "learning_rates", "samples")
    return found | {"same": all(found[key] for key in exact) and max(losses, apart) <= TOLERANCE}


if __name__ == "__main__":
    sys.exit(main())
