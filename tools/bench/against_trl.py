"""A training step of da3po against one of TRL's GRPOTrainer, on the same machine in one run, as JSON.

    python -m venv ENV && ENV/bin/pip install torch==2.13.0 'trl==1.16.*' math-verify pebble
    python tools/bench/against_trl.py --trl ENV/bin/python [--max-tokens N]... [--steps 7] [--da3po OVERRIDE]...

Both start from the tiny model, train on the same prompts with the same grader and the loss of DAPO without dynamic
sampling, 64 prompts x 16 samples a step, one optimizer update each. Its answers are three tokens long, so in the copy
that both train the embedding of the end of a sequence is 0: it rambles, and lengths vary up to the cap. Both run on two
cores with the settings that were found to suit them. da3po: those in `WAYS` and `OVERRIDES` and the given ones, which
generate in bfloat16 and learn in float32. TRL: several micro-batches, in one process of two threads and in two of one;
in float32, with automatic mixed precision, and wholly in bfloat16, learning too; the fastest counts. The first step of
each run is left out, it pays for what is made once, and the last, in which nothing is generated ahead.

A model that rambles has few right answers, so most groups have no advantage, and no part in the gradient. da3po leaves
them out in its learner, an option of it; `share_learned` says which share of the tokens it learns from, and
`--da3po learner.zero_advantage=learn` compares without that. TRL lives in an environment of its own, since it asks for
other versions than da3po does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from da3po.config.load import load
from da3po.data.prompts import load_prompts
from da3po.data.tokenizer import load_tokenizer
from da3po.models.locate import locate_model
from da3po.reward.golds import objection

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_PROMPTS, NUM_SAMPLES = 64, 16
NUM_SEQUENCES = NUM_PROMPTS * NUM_SAMPLES
TRL_WAYS = tuple(itertools.product((1, 2), ("float32", "mixed", "bfloat16"), (128, 256, 512)))
# Two processes of a small model use two cores better than two threads do. Where generation and learning go on at the
# same time the learner, which has less to do, is one; so is the engine if responses are short, else there are two.
ONE_ENGINE = ["engine.num_engines=1", f"engine.max_num_seqs={NUM_SEQUENCES}", "engine.num_threads=1"]
TWO_ENGINES = ["engine.num_engines=2", f"engine.max_num_seqs={NUM_SEQUENCES // 2}", "engine.num_threads=1"]
WAYS = {
    "max_lag=0": ["rollout.max_lag=0", "parallel.dp=2", *TWO_ENGINES],
    "max_lag=1 with one engine": ["rollout.max_lag=1", "learner.num_threads=1", *ONE_ENGINE],
    "max_lag=1 with two engines": ["rollout.max_lag=1", "learner.num_threads=1", *TWO_ENGINES],
}
OVERRIDES = [
    "experiment=quickstart",
    "algo=dapo",
    "algo.dynamic_sampling.enabled=false",
    "algo.overlong.enabled=false",
    f"rollout.num_prompts={NUM_PROMPTS}",
    f"rollout.num_samples={NUM_SAMPLES}",
    "engine.dtype=bfloat16",
    "engine.prefix_caching=false",  # these prompts are shorter than a block
    "mismatch.max_mean=0.05",  # the quickstart's is for an engine in float32
    "learner.zero_advantage=skip",
    "eval.before=false",
    "eval.after=false",
    "eval.every=0",
    "checkpoint.every=0",
    "logging.console=plain",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", required=True, help="the Python of an environment that has TRL")
    parser.add_argument("--max-tokens", type=int, action="append", help="most response tokens; may be given twice")
    parser.add_argument("--steps", type=int, default=7, help="training steps of each run, at least 3")
    parser.add_argument("--da3po", action="append", default=[], metavar="OVERRIDE", help="of da3po's run")
    args = parser.parse_args()
    if args.steps < 3:
        parser.error("--steps must be at least 3: the first and the last are not counted")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model)
        results = {f"max_tokens={cap}": compare(model, cap, args) for cap in args.max_tokens or [32, 128]}
    print(json.dumps(results, indent=1))


def make_model(target: Path) -> None:
    """The tiny model, which is not sure where to end."""
    shutil.copytree(locate_model("package:tiny"), target)
    file = target / "model.safetensors"
    weights = load_file(file)
    end_of_sequence = json.loads((target / "generation_config.json").read_text())["eos_token_id"]
    weights["model.embed_tokens.weight"][end_of_sequence] = 0
    save_file(weights, file, metadata={"format": "pt"})


def compare(model: Path, max_tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    ours = {way: run_da3po(model, max_tokens, args.steps, [*WAYS[way], *args.da3po]) for way in WAYS}
    theirs = [
        run_trl(args.trl, model, max_tokens, args.steps, processes, numbers, micro_batch)
        for processes, numbers, micro_batch in TRL_WAYS
    ]
    best = max(theirs, key=lambda run: run["tokens_per_second"])
    speed = best["tokens_per_second"]
    return {
        "da3po": ours,
        "trl": best,
        "trl_tokens_per_second": {
            f"{run['processes']}x{run['micro_batch']} {run['numbers']}": run["tokens_per_second"] for run in theirs
        },
        "ratio": {way: run["tokens_per_second"] / speed for way, run in ours.items()},
    }


def run_da3po(model: Path, max_tokens: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """Response tokens trained on per second of a step, from the run's own metrics."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"run.dir={folder}/run", f"train.steps={steps}", f"rollout.max_tokens={max_tokens}"]
        options += [f"model.path={model}"]
        command = [sys.executable, "-m", "da3po.cli", "train", *OVERRIDES, *options, *overrides]
        subprocess.run(command, check=True, stdout=sys.stderr)
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()][1:-1]
    return {
        "share_learned": statistics.median(row["loss/num_tokens"] / row["rollout/tokens_trained"] for row in rows),
        "tokens_per_second": statistics.median(row["tokens/per_second"] for row in rows),
        "seconds": statistics.median(row["time/step"] for row in rows),
    }


def run_trl(
    python: str, model: Path, max_tokens: int, steps: int, processes: int, numbers: str, micro_batch: int
) -> dict[str, Any]:
    """The same of TRL. numbers: float32 | mixed | bfloat16. micro_batch: of each process."""
    with tempfile.TemporaryDirectory() as folder:
        task: dict[str, Any] = {
            "model": str(model),
            "prompts": prompts(),
            "num_prompts": NUM_PROMPTS,
            "num_samples": NUM_SAMPLES,
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "steps": steps,
            "numbers": numbers,
            "micro_batch": micro_batch,
            "folder": folder,
        }
        file = Path(folder) / "task.json"
        file.write_text(json.dumps(task))
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
        script = str(REPOSITORY / "tools/bench/trl_trainer.py")
        launch = [] if processes == 1 else ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        subprocess.run([python, *launch, script, str(file)], check=True, stdout=sys.stderr, env=environment)
        result = json.loads((Path(folder) / "result.json").read_text())
        return {"processes": processes, "numbers": numbers, "micro_batch": micro_batch, **result}


def prompts() -> list[dict[str, str]]:
    """The quickstart's training prompts, rendered, with their reference answers."""
    config = load(OVERRIDES)
    tokenizer = load_tokenizer(str(locate_model(config.model.path)), trust_remote_code=False)
    return [
        {"prompt": prompt.text, "gold": prompt.gold}
        for prompt in load_prompts(config.data.sources[0].path, config.data, tokenizer, objection)
    ]


if __name__ == "__main__":
    main()
