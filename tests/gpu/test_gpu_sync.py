"""The weight channel over NCCL, and engine against learner after it, on two GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import command_line
import pytest
import torch
import torch.multiprocessing as mp
from command_line import SMALL, metrics

from da3po.sync.channel import ReceiverChannels, SourceChannel
from da3po.sync.receive import receive_weights
from da3po.sync.send import send_weights
from da3po.sync.store import ChannelPlan, host_store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TIMEOUT = 60.0
MAX_MEAN_MISMATCH = 0.02  # bf16 kernels of two programs
VERSIONS = (1, 2)


@pytest.fixture(autouse=True)
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(version)
    return [(f"w{i}", torch.randn(300 * i + 1, 7, generator=generator).bfloat16()) for i in range(9)]


def take_part(rank: int, address_file: str) -> None:
    """Rank 0 sends, rank 1 receives and compares; each has a GPU of its own."""
    torch.cuda.set_device(rank)
    file = Path(address_file)
    if rank == 0:
        store, address = host_store(
            ChannelPlan(backend="nccl", num_stages=1, num_receivers=1, shared_memory=False), TIMEOUT
        )
        file.with_suffix(".part").write_text(address)
        file.with_suffix(".part").rename(file)
        channel = SourceChannel(store, address, 0, TIMEOUT)
        for version in VERSIONS:
            send_weights(channel, version, [(name, value.cuda()) for name, value in weights(version)], 1 << 12)
        return
    while not file.exists():
        os.sched_yield()
    receiver = ReceiverChannels(file.read_text(), 0, TIMEOUT)
    for version in VERSIONS:
        got: dict[str, torch.Tensor] = {}
        receive_weights(receiver, version, lambda pairs, got=got: got.update({n: v.clone() for n, v in pairs}))
        assert all(value.is_cuda for value in got.values())
        assert all(torch.equal(got[name].cpu(), value) for name, value in weights(version))


def test_weights_arrive_over_nccl_bit_for_bit(tmp_path):
    mp.start_processes(take_part, args=(str(tmp_path / "address"),), nprocs=2, start_method="spawn")


def test_engine_and_learner_agree_after_every_update(tmp_path):
    command = command_line.run(
        "train", *SMALL, "train.steps=3", "precision=bf16", "mismatch.max_mean=null", "run.dir=run", cwd=tmp_path,
        timeout=800,
    )  # fmt: skip
    assert command.process.returncode == 0, command.output()
    for row in metrics(tmp_path / "run"):
        assert row["mismatch/mean_abs_logprob"] < MAX_MEAN_MISMATCH
