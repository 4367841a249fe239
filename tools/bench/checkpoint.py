"""How long a save takes, and how much of it training waits, at once and beside training: one process, a random model.

    python tools/bench/checkpoint.py [--hidden 512] [--layers 8] [--dir FOLDER]

Prints a JSON object: bytes of a checkpoint, and of each way the seconds of the save and those that training waited.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from da3po.config.schema import LearnerConfig
from da3po.learner.megatron.worker import LearnerRank
from da3po.learner.spec import LearnerSpec

REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        print(json.dumps(measure(Path(folder), options.hidden, options.layers), indent=1))


def measure(folder: Path, hidden: int, layers: int) -> dict[str, float]:
    import fixtures_hf

    model = fixtures_hf.make_qwen3(
        folder / "model", hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers
    )
    rank = LearnerRank()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rank.init(0, 1, "127.0.0.1", port)
    rank.setup(LearnerSpec(model_path=str(model), train_steps=1, learner=LearnerConfig(device="cpu", num_threads=2)))
    at_once, waited, beside = [], [], []
    for number in range(REPEATS):
        began = time.perf_counter()
        rank.save(_empty(folder / f"at-once-{number}"))
        at_once.append(time.perf_counter() - began)
        began = time.perf_counter()
        rank.start_saving(_empty(folder / f"beside-{number}"))
        waited.append(time.perf_counter() - began)
        product = torch.randn(1024, 1024)
        while rank.is_saving():
            product = (product @ product).clamp(-1, 1)  # what training does meanwhile
        rank.finish_saving()
        beside.append(time.perf_counter() - began)
    size = sum(file.stat().st_size for file in (folder / "at-once-0").rglob("*") if file.is_file())
    rank.close()
    return {
        "bytes": size,
        "at_once_seconds": min(at_once),
        "beside_seconds": min(beside),
        "beside_blocked_seconds": min(waited),
    }


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
