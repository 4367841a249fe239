"""Stopped and resumed runs of the real learner, in real processes, on the same layout and on others."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fixtures_hf
import pytest
import torch
from rank_pipes import RankProcesses
from resumable import STEPS, Run

from da3po.checkpoint.directory import CheckpointDirectory
from da3po.checkpoint.saver import SaveError
from da3po.runtime.interruption import Interrupted

pytestmark = pytest.mark.distributed

OPTIM = ("optim.lr=1e-3", "optim.schedule=cosine", "optim.warmup_steps=2", "eval.every=0", "eval.before=false")
CPU = ("learner.device=cpu", "learner.num_threads=1", "mismatch.max_mean=null")
ASYNCHRONOUS = "checkpoint.asynchronous=true"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    processes = RankProcesses(4)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    model = fixtures_hf.make_qwen3(
        tmp_path_factory.mktemp("model") / "qwen3",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=16,
    )
    return (*OPTIM, *CPU, f"model.path={model}")


@pytest.fixture(scope="module")
def whole(
    processes: RankProcesses, options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return Run(tmp_path_factory.mktemp("whole"), *options, processes=processes).go().seen()


def stop(folder: Path, step: int, processes: RankProcesses, *overrides: str, phase: str = "learning") -> Run:
    """A run that is asked to end in a step and, learning or saving, finishes it."""

    async def enters(now: str, at: int) -> None:
        if (now, at) == (phase, step):
            run.interruption.ask(signal.SIGTERM)

    run = Run(folder, *overrides, enters=enters, processes=processes)
    with pytest.raises(Interrupted):
        run.go()
    latest = run.checkpoints.latest()
    assert latest is not None and latest.step == step
    return run


def assert_equal(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit."""
    for file in ("metrics", "rollouts"):
        assert got[file] == expected[file]
    assert got["weights"].keys() == expected["weights"].keys()
    assert all(torch.equal(got["weights"][name], value) for name, value in expected["weights"].items())


def assert_close(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got["rollouts"] == expected["rollouts"]
    for row, wanted in zip(got["metrics"], expected["metrics"], strict=True):
        assert row["actor/lr"] == wanted["actor/lr"]
        for key in ("loss/policy", "actor/grad_norm", "actor/entropy"):
            assert row[key] == pytest.approx(wanted[key], rel=TOLERANCE, abs=1e-7), (row["step"], key)
    for name, value in expected["weights"].items():
        error = (got["weights"][name] - value).abs().max() / value.abs().max()
        assert error <= TOLERANCE, f"{name}: {error:.2e}"


@pytest.mark.parametrize("mode", ["checkpoint.asynchronous=false", ASYNCHRONOUS])
def test_stopped_after_every_step_a_run_ends_bit_for_bit_the_same(
    mode: str, whole: dict[str, Any], processes: RankProcesses, options: tuple[str, ...], tmp_path: Path
) -> None:
    """C01, C02: warm-up and cosine too, with one resume after another."""
    for step in range(1, STEPS):
        stop(tmp_path, step, processes, *options, mode)
    assert_equal(Run(tmp_path, *options, mode, processes=processes).go().seen(), whole)


def test_a_save_beside_training_holds_the_step_that_it_is_of(
    whole: dict[str, Any], processes: RankProcesses, options: tuple[str, ...], tmp_path: Path
) -> None:
    """Steps 3 to 6 are trained while steps 2 and 4 are written; then all that came after step 2 or 4 is lost."""
    mode = (ASYNCHRONOUS, "checkpoint.keep=9")
    assert_equal(Run(tmp_path, *options, *mode, processes=processes).go().seen(), whole)
    for lost in (6, 4):
        shutil.rmtree(tmp_path / "checkpoints" / f"step_{lost:06d}")
        resumed = Run(tmp_path, *options, *mode, processes=processes).go()
        assert resumed.begin.step == lost - 2
        assert_equal(resumed.seen(), whole)
        shutil.rmtree(tmp_path / "checkpoints" / "step_000006")


def test_saved_on_four_ranks_and_resumed_on_other_layouts(
    whole: dict[str, Any], processes: RankProcesses, options: tuple[str, ...], tmp_path: Path
) -> None:
    """C14."""
    stop(tmp_path / "tp2pp2", 3, processes, *options, "parallel=tp2pp2", ASYNCHRONOUS)
    for layout in ("single", "dp2", "tp2"):
        shutil.copytree(tmp_path / "tp2pp2", tmp_path / layout)
        resumed = Run(tmp_path / layout, *options, f"parallel={layout}", processes=processes).go()
        assert resumed.begin.step == 3
        assert_close(resumed.seen(), whole)


def test_the_same_four_ranks_go_on_bit_for_bit(
    processes: RankProcesses, options: tuple[str, ...], tmp_path: Path
) -> None:
    layout = (*options, "parallel=tp2pp2")
    whole = Run(tmp_path / "whole", *layout, processes=processes).go().seen()
    stop(tmp_path / "stopped", 3, processes, *layout, ASYNCHRONOUS)
    assert_equal(Run(tmp_path / "stopped", *layout, processes=processes).go().seen(), whole)


def test_weights_alone_begin_a_new_run(processes: RankProcesses, options: tuple[str, ...], tmp_path: Path) -> None:
    """C03: the learning rate begins at the first step of warm-up and Adam's moments at zero, so the first update is
    that of Adam's first step, whose size is the learning rate whatever the gradient. It resumes as any run does."""
    source = stop(tmp_path / "source", 3, processes, *options, "parallel=tp2pp2")
    checkpoint = source.checkpoints.latest()
    assert checkpoint is not None
    fresh = (*options, f"run.init_from={checkpoint.path}", "optim.weight_decay=0", "optim.clip_grad=1e9")
    begun = stop(tmp_path / "new", 1, processes, *fresh)
    assert begun.begin.step == 0 and begun.begin.weights == checkpoint
    (row,) = begun.run_dir.metrics.read_text().splitlines()
    assert '"actor/lr": 0.0005,' in row  # half of 1e-3: step 1 of 2 of the warm-up
    before, after = _weights_of(tmp_path / "source", 3), _weights_of(tmp_path / "new", 1)
    # The vocabulary is padded for two tensor-parallel ranks and not for one.
    steps = torch.cat([(after[name] - before[name][: len(after[name])]).flatten() for name in before])
    moved = steps[steps != 0].abs()
    assert moved.numel() > 1000
    assert moved.median() == pytest.approx(5e-4, rel=1e-3) and moved.max() < 5e-4 * 1.01
    assert Run(tmp_path / "new", *fresh, processes=processes).go().begin.step == 1


def _weights_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """As they are in the files of a checkpoint."""
    from torch.distributed.checkpoint import FileSystemReader, load

    path = folder / "checkpoints" / f"step_{step:06d}" / "learner"
    reader = FileSystemReader(path)
    names = [
        name for name in reader.read_metadata().state_dict_metadata if name.endswith("weight") and "optim" not in name
    ]
    shapes = {name: reader.read_metadata().state_dict_metadata[name].size for name in names}
    found = {name: torch.empty(shape) for name, shape in shapes.items()}
    load(found, storage_reader=reader, no_dist=True)
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("mode", ["checkpoint.asynchronous=false", ASYNCHRONOUS])
def test_a_disk_with_room_for_one_and_a_half_checkpoints(
    mode: str, small_disk: Path, processes: RankProcesses, tmp_path: Path
) -> None:
    """C09: the second save fails and says why; the first stays, is the only one, and the run goes on from it."""
    model = fixtures_hf.make_qwen3(tmp_path / "model", hidden_size=256, intermediate_size=1024, num_hidden_layers=8)
    options = (*OPTIM, *CPU, f"model.path={model}", "checkpoint.every=1", "checkpoint.keep=1", "train.steps=3", mode)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(small_disk)  # what is logged has room
    with pytest.raises(SaveError, match=r"step 2 could not be saved: .*No space left on device.*step_000001"):
        Run(run_dir, *options, processes=processes).go()
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["step_000001"]
    latest = CheckpointDirectory(run_dir / "checkpoints", keep=1).latest()
    assert latest is not None and latest.state()["step"] == 1
    size = sum(file.stat().st_size for file in latest.path.rglob("*") if file.is_file())
    assert 1.4 < 200 * 2**20 / size < 1.9
    subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
    resumed = Run(run_dir, *options, processes=processes).go()
    assert resumed.begin.step == 1
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step_000003"]
