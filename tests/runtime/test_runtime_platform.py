from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from da3po.config.schema import ConfigError
from da3po.runtime.cores import usable_cores
from da3po.runtime.platform import resolve


@pytest.fixture
def wide_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(128)))


def cores(tmp_path: Path, own: str = "", files: dict[str, str] | None = None, **environ: str) -> tuple[int, str]:
    """usable_cores() in a made-up cgroup tree: `own` is /proc/self/cgroup, `files` lie under /sys/fs/cgroup."""
    (tmp_path / "own").write_text(own)
    for name, text in (files or {}).items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = usable_cores(environ, tmp_path / "cgroup", tmp_path / "own")
    return found.num_cores, found.reason


@pytest.mark.usefixtures("wide_affinity")
class TestUsableCores:
    def test_affinity_alone(self, tmp_path: Path) -> None:
        assert cores(tmp_path) == (128, "128 cores by CPU affinity")

    def test_no_proc_file(self, tmp_path: Path) -> None:
        assert usable_cores({}, tmp_path, tmp_path / "absent").num_cores == 128

    def test_slurm_allocation_wins_over_the_node(self, tmp_path: Path) -> None:
        assert cores(tmp_path, SLURM_CPUS_PER_TASK="2") == (2, "2 cores by SLURM_CPUS_PER_TASK")

    def test_slurm_value_that_is_no_number(self, tmp_path: Path) -> None:
        assert cores(tmp_path, SLURM_CPUS_PER_TASK="")[0] == 128

    def test_cgroup_v2(self, tmp_path: Path) -> None:
        assert cores(tmp_path, "0::/job", {"job/cpu.max": "350000 100000"}) == (3, "3 cores by cgroup quota")

    def test_cgroup_v2_unlimited(self, tmp_path: Path) -> None:
        assert cores(tmp_path, "0::/job", {"job/cpu.max": "max 100000"})[0] == 128

    def test_cgroup_v2_limit_of_an_ancestor(self, tmp_path: Path) -> None:
        files = {"slurm/job/cpu.max": "max 100000", "slurm/cpu.max": "400000 100000"}
        assert cores(tmp_path, "0::/slurm/job", files)[0] == 4

    def test_cgroup_v2_of_a_container_that_sees_only_its_own_root(self, tmp_path: Path) -> None:
        assert cores(tmp_path, "0::/docker/abc", {"cpu.max": "200000 100000"})[0] == 2

    def test_cgroup_v1(self, tmp_path: Path) -> None:
        files = {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "100000"}
        assert cores(tmp_path, "4:cpu,cpuacct:/job\n5:memory:/job", files) == (1, "1 core by cgroup quota")

    def test_cgroup_v1_unlimited(self, tmp_path: Path) -> None:
        files = {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}
        assert cores(tmp_path, "1:cpu:/job", files)[0] == 128

    def test_less_than_one_core_is_one(self, tmp_path: Path) -> None:
        assert cores(tmp_path, "0::/", {"cpu.max": "50000 100000"})[0] == 1


def test_cpu_by_request() -> None:
    platform = resolve("cpu")
    assert (platform.device, platform.backend, platform.num_devices) == ("cpu", "gloo", 0)
    assert "learner.device=cpu" in platform.reason


def test_auto_without_cuda_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    platform = resolve("auto")
    assert platform.device == "cpu"
    assert "built without CUDA" in platform.reason


def test_cuda_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"learner\.device=cuda .* finds no GPU"):
        resolve("cuda")


@pytest.mark.parametrize(("capability", "precisions"), [((9, 0), ("fp32", "bf16")), ((7, 5), ("fp32",))])
def test_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precisions: tuple[str, ...]) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    platform = resolve("auto")
    assert (platform.device, platform.backend, platform.num_devices) == ("cuda", "nccl", 8)
    assert platform.precisions == precisions
    assert "8 x H100" in platform.reason
