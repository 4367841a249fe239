"""Speed and memory of `da3po convert` beside a plain read and write of the same bytes. Prints JSON.

    python tools/bench/convert.py [--gb 2] [--dtype bfloat16] [--dir FOLDER] [--repeat 3] [--no-logprobs]

Makes a model with random weights in a temporary folder, which needs five times its size.

`rounds`: plain, import and export take turns at writing, from a warm file cache; medians of wall and of processor
seconds (user and system, which other work on the disk does not lengthen). A share is that of `plain` in the time of
another.
`import`, `export`: the whole command in a process of its own, with the peak of its memory, the seal of an import, which
flushes it to disk and takes the checksums of its manifest, and the proof.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from da3po.conversion.weights import export_weights, import_weights
from da3po.models.companions import in_both_dialects
from da3po.models.families import hf_shapes, whole_model
from da3po.models.hf_config import parse_model_spec, read_model_spec
from da3po.models.safetensors_io import plan_files, write_file, write_index

MAX_BYTES = 5 * 10**9
LAYER_BYTES = 69e6
"""Of a layer of the model below in bfloat16."""


def make_model(folder: Path, gb: float, dtype: torch.dtype) -> None:
    """A Qwen3 of about `gb` GB with as many layers as that takes."""
    vocabulary = 2 * 65536 * 1536 * dtype.itemsize
    num_layers = max(1, round((gb * 1e9 - vocabulary) / (LAYER_BYTES * dtype.itemsize / 2)))
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 65536,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    }
    config = in_both_dialects(config, str(dtype).removeprefix("torch."))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    spec = parse_model_spec(config)
    shapes = hf_shapes(spec, whole_model(spec))
    stages = plan_files([shapes], dtype, max_bytes=MAX_BYTES)
    stream = random_tensors(shapes, dtype)
    for plan in stages[0]:
        write_file(folder, plan, dtype, stream)
    write_index(folder, stages, dtype)


def random_tensors(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    largest = max(torch.Size(shape).numel() for shape in shapes.values())
    values = (0.02 * torch.randn(largest, generator=torch.Generator().manual_seed(0))).to(dtype)
    for name, shape in shapes.items():
        one = torch.ones(shape, dtype=dtype)
        yield name, one if len(shape) == 1 else values[: torch.Size(shape).numel()].reshape(shape)


def plain(source: Path, target: Path) -> None:
    """What anybody would write: read every file with safetensors and write it again."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for file in source.glob("*.safetensors"):
        save_file(load_file(file), target / file.name, metadata={"format": "pt"})


def clocked(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds."""
    os.sync()
    began, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    return time.perf_counter() - began, after.user + after.system - before.user - before.system


def take_turns(model: Path, imported: Path, scratch: Path, repeat: int) -> dict[str, dict[str, float]]:
    """Median seconds of writing, and the share that `plain` has in them."""
    spec = read_model_spec(model)
    dtype = getattr(torch, spec.dtype)

    def write_import() -> None:
        scratch.mkdir()
        import_weights(model, spec, scratch)

    def write_export() -> None:
        scratch.mkdir()
        export_weights(imported / "learner", spec, scratch, dtype, MAX_BYTES)

    ways = {"plain": lambda: plain(model, scratch), "import": write_import, "export": write_export}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, work in ways.items():
            turns[name].append(clocked(work))
            shutil.rmtree(scratch)
    wall, cpu = ({name: median(turn[kind] for turn in of) for name, of in turns.items()} for kind in (0, 1))
    return {
        name: {
            "wall_seconds": wall[name],
            "cpu_seconds": cpu[name],
            "wall_share": wall["plain"] / wall[name],
            "cpu_share": cpu["plain"] / cpu[name],
        }
        for name in ways
    }


def command(*arguments: str) -> dict[str, float]:
    """Seconds and peak memory of `da3po convert`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--command", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    about = json.loads((Path(arguments[2]) / "conversion.json").read_text())["conversion"]
    seconds = {key: value for key, value in about.items() if key.endswith("_seconds")}
    return {**json.loads(done.stdout.splitlines()[-1]), **seconds}


def run_command(arguments: list[str]) -> None:
    from da3po.convert import main

    if code := main(arguments):
        raise SystemExit(code)
    print(json.dumps({"peak_gb": max(own_peak(), children_peak()) / 1e9}))


def own_peak() -> int:
    """Bytes. Not from getrusage, where a process begins with the peak of the one that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def children_peak() -> int:
    """Bytes of the process that ran the learner's model, or of this one when it started that, if that is more."""
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def measure(folder: Path, gb: float, dtype: torch.dtype, repeat: int, extra: list[str]) -> dict[str, Any]:
    model, imported, exported = folder / "model", folder / "imported", folder / "exported"
    make_model(model, gb, dtype)
    num_bytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return {
        "gb": num_bytes / 1e9,
        "dtype": str(dtype).removeprefix("torch."),
        "import": command("import", str(model), str(imported), *extra),
        "export": command("export", str(imported), str(exported), *extra),
        "rounds": take_turns(model, imported, folder / "scratch", repeat),
    }


def main() -> None:
    if sys.argv[1:2] == ["--command"]:
        run_command(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--dir", help="where the temporary folder goes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-logprobs", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        extra = ["--no-logprobs"] if options.no_logprobs else []
        found = measure(Path(folder), options.gb, getattr(torch, options.dtype), options.repeat, extra)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
