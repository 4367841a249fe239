"""`da3po convert`: models between Hugging Face directories and Megatron checkpoints, proved.

    da3po convert export SOURCE OUT     a Hugging Face directory of a checkpoint: of a run directory's newest step, also
                                        while it goes on, of one step's folder, or of an imported checkpoint
    da3po convert import HF_DIR OUT     a checkpoint that training can begin from at any layout (run.init_from=OUT)

No GPU, no Ray and no process per rank is needed; weights go through memory a tensor at a time. What was written is then
held against its source, and the report, conversion.md and conversion.json, lies in OUT.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from da3po.command import USAGE_ERROR, run_command, wants_help
from da3po.config.load import load
from da3po.conversion.convert import ProofError, Proving, export_model, import_model
from da3po.conversion.lock import locked
from da3po.conversion.proof import TOLERANCE
from da3po.conversion.push import PushError, check_push, push
from da3po.conversion.source import find_source, held
from da3po.learner.megatron.probe import ProbeError, learner_logprobs
from da3po.models.hf_config import read_model_spec
from da3po.models.locate import locate_model
from da3po.plan.layout import check_layout
from da3po.runtime.logs import set_up_logging

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
GB = 10**9
FAILURES = (ProofError, ProbeError, PushError)


def main(arguments: Sequence[str]) -> int:
    """Convert as the arguments say; the exit code is described in `da3po.command`, 1 for a proof that failed."""
    set_up_logging("main")
    commands = {"export": _export, "import": _import}
    if not arguments or arguments[0] not in commands:
        print(__doc__)
        return 0 if wants_help(arguments[:1]) else USAGE_ERROR
    return run_command(lambda: commands[arguments[0]](arguments[1:]), failures=FAILURES)


def _export(arguments: Sequence[str]) -> int:
    parser = _parser("export", "A checkpoint as a Hugging Face model directory.")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="run directory, step's folder, imported checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="directory to write; must not be there")
    parser.add_argument("--step", type=int, help="step of a run directory (default: the newest complete one)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: that of the model trained from)")
    parser.add_argument("--max-shard-gb", type=float, default=5.0, help="size of a safetensors file (default: 5)")
    parser.add_argument("--model", type=Path, help="model directory, for a checkpoint without the model's files")
    parser.add_argument("--push", metavar="REPO", help="then upload to the Hugging Face Hub (token: HF_TOKEN)")
    options = parser.parse_args(arguments)
    token = check_push() if options.push else ""
    options.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    source = find_source(options.source, options.step, options.model)
    with locked(options.out), held(source, options.out.absolute().parent) as kept:
        export_model(
            kept,
            options.out,
            dtype=DTYPES.get(options.dtype),
            max_bytes=int(options.max_shard_gb * GB),
            proving=_proving(options),
        )
    print(f"exported {source.path} to {options.out}")
    if options.push:
        print(f"uploaded to {push(options.out, options.push, token)}")
    return 0


def _import(arguments: Sequence[str]) -> int:
    parser = _parser("import", "A Hugging Face model directory as a checkpoint, for any layout.")
    parser.add_argument("model", metavar="HF_DIR", help="model directory, or a name on the Hugging Face Hub")
    parser.add_argument("out", type=Path, metavar="OUT", help="directory to write; must not be there")
    parser.add_argument(
        "overrides", nargs="*", metavar="parallel.KEY=VALUE", help="a layout to check the model against"
    )
    options = parser.parse_intermixed_args(arguments)
    model_dir = locate_model(options.model)
    if options.overrides:
        check_layout(read_model_spec(model_dir), load(options.overrides).parallel)
    options.out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with locked(options.out):
        import_model(model_dir, options.out, proving=_proving(options))
    print(f"imported {model_dir} to {options.out}; begin a run from it with model.path={model_dir} run.init_from=...")
    return 0


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"da3po convert {name}", description=description)
    parser.add_argument("--no-logprobs", action="store_true", help="leave the comparison with transformers out")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of log-probs (default: %(default)g)")
    return parser


def _proving(options: argparse.Namespace) -> Proving:
    return Proving(learner=None if options.no_logprobs else learner_logprobs, tolerance=options.tolerance)
