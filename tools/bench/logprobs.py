"""Memory and time of log-probs and entropies, in tiles with the output layer inside, against full logits.

    python tools/bench/logprobs.py --what memory --tokens 8192
    python tools/bench/logprobs.py --what time --tokens 1024

Prints one JSON object. `memory` runs forward, then both passes, in tiles and gives the peak above what was there
before, as a share of the fp32 logits [tokens, vocab] that never exist; gradients of hidden states and weights, which
are there in any case, are not counted. `time` takes turns between both ways and gives the ratio of medians of wall
time, and of processor time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from da3po.learner.megatron.logprobs import VocabShard, token_logprobs

Way = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""hidden [T, h], weight [V, h], labels [T] -> log-probs and entropies [T]."""


class PeakMemory:
    """The highest resident size of this process, above that at the start, sampled every 2 ms."""

    def __enter__(self) -> PeakMemory:
        self._start = self._peak = resident_bytes()
        self._running = True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join()

    @property
    def extra_bytes(self) -> int:
        return self._peak - self._start

    def _watch(self) -> None:
        while self._running:
            self._peak = max(self._peak, resident_bytes())
            time.sleep(0.002)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def inputs(tokens: int, vocab: int, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(tokens, hidden, generator=generator).requires_grad_(),
        torch.randn(vocab, hidden, generator=generator).mul_(hidden**-0.5).requires_grad_(),
        torch.randint(vocab, (tokens,), generator=generator),
    )


def full_logits(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The plain way, through logits [T, V] that autograd keeps."""
    logps = (hidden @ weight.T).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, labels[:, None]).squeeze(1), entropy


def tiled(group: dist.ProcessGroup) -> Way:
    def run(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        shard = VocabShard.of_rank(group, len(weight), len(weight))
        return token_logprobs(hidden, weight, labels, 1.0, shard)

    return run


def measure_memory(way: Way, tokens: int, vocab: int, hidden: int) -> dict[str, float]:
    states, weight, labels = inputs(tokens, vocab, hidden)
    with PeakMemory() as forward, torch.no_grad():
        way(states, weight, labels)
    with PeakMemory() as both:
        way(states, weight, labels)[0].sum().backward()
    logits, gradients = 4 * tokens * vocab, 4 * hidden * (tokens + vocab)
    backward_extra = both.extra_bytes - gradients
    return {
        "logits_bytes": logits,
        "gradient_bytes": gradients,
        "forward_extra_bytes": forward.extra_bytes,
        "forward_extra_share": round(forward.extra_bytes / logits, 4),
        "backward_extra_bytes": backward_extra,
        "backward_extra_share": round(backward_extra / logits, 4),
    }


def seconds(way: Way, data: tuple[Tensor, Tensor, Tensor], backward: bool) -> tuple[float, float]:
    """Wall time and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    with torch.set_grad_enabled(backward):
        logps, _ = way(*data)
    if backward:
        torch.autograd.grad(logps.sum(), data[:2])
    return time.perf_counter() - wall, time.process_time() - processor


def measure_time(way: Way, tokens: int, vocab: int, hidden: int, rounds: int) -> dict[str, float]:
    data = inputs(tokens, vocab, hidden)
    found: dict[str, float] = {}
    for name, backward in (("forward", False), ("forward_backward", True)):
        ways = {"tiled": way, "full": full_logits}
        taken: dict[str, list[tuple[float, float]]] = {key: [] for key in ways}
        for number in range(rounds + 1):  # the first round warms memory up
            for key, one in ways.items():
                spent = seconds(one, data, backward)
                if number:
                    taken[key].append(spent)
        for place, kind in enumerate(("seconds", "processor_seconds")):
            medians = {key: statistics.median(spent[place] for spent in values) for key, values in taken.items()}
            found |= {f"{name}_{kind}_{key}": round(value, 4) for key, value in medians.items()}
            found[f"{name}_{kind}_ratio"] = round(medians["tiled"] / medians["full"], 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["memory", "time"], default="memory")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    way = tiled(dist.group.WORLD)
    size = (args.tokens, args.vocab, args.hidden)
    found = measure_memory(way, *size) if args.what == "memory" else measure_time(way, *size, args.rounds)
    print(json.dumps({"tokens": args.tokens, "vocab": args.vocab, "hidden": args.hidden, **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
