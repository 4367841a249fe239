"""Every experiment fits by plan, in seconds, with any of the algorithms; one that does not fit is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from da3po.config.load import conf_dir, load
from da3po.forecast import main, plan_of
from da3po.models.published import find_model_spec
from da3po.plan.overview import Plan

EXPERIMENTS = sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml"))
SIZES = [("qwen3_4b_base", n) for n in (1, 4, 8, 16)] + [("qwen3_8b_base", n) for n in (1, 4, 8, 16)]


def plan(*overrides: str) -> Plan:
    config = load(overrides)
    return plan_of(find_model_spec(config.model.path), config)


def test_there_is_one_for_every_size() -> None:
    wanted = {f"da3po-{model}-{nodes}n8g" for model, nodes in [*SIZES, ("qwen3_32b", 32)]}
    assert wanted <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_fits(name: str) -> None:
    start = time.process_time()
    found = plan(f"experiment={name}")
    assert time.process_time() - start < 5
    assert found.problems == ()
    if "n8g" in name:
        config = load([f"experiment={name}"])
        nodes = int(name.rpartition("-")[2].removesuffix("n8g"))
        assert found.num_gpus == 8 * nodes and len(found.nodes) == nodes
        assert all(node.idle == 0 for node in found.nodes)
        assert found.learner_free is not None and found.learner_free >= config.plan.headroom == 0.2
        assert found.time is not None and found.time.total > 0


@pytest.mark.parametrize("algo", ["grpo", "dapo", "gspo", "da3po"])
@pytest.mark.parametrize("name", ["da3po-qwen3_4b_base-4n8g", "da3po-qwen3_32b-32n8g"])
def test_any_algorithm_goes_with_it(name: str, algo: str) -> None:
    config = load([f"experiment={name}", f"algo={algo}"])
    assert config.algo.name == algo
    assert config.run.name == name.replace("da3po", algo)
    assert plan_of(find_model_spec(config.model.path), config).problems == ()


def test_fp8_blockwise_is_among_them() -> None:
    chosen = {name: load([f"experiment={name}"]).learner.precision for name in EXPERIMENTS}
    assert set(chosen.values()) >= {"fp32", "bf16", "fp8_blockwise"}


def test_one_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["parallel.tp=1", "parallel.sequence_parallel=false", "parallel.dp=4"]
    assert main(["experiment=da3po-qwen3_8b_base-1n8g", *large]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "does not fit: the learner needs" in said and "a GPU has 79.1" in said and "would fit" in said


def test_the_command_line_loads_nothing_heavy() -> None:
    """Nor does it wait for torch: a plan is made on login nodes."""
    code = (
        "import sys; from da3po.forecast import main; "
        "code = main(['experiment=da3po-qwen3_4b_base-4n8g', '--json']); "
        "heavy = [name for name in ('torch', 'ray', 'vllm', 'megatron', 'transformers') if name in sys.modules]; "
        "print(heavy, file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["fits"] and tree["work"]["updates"] == 16 and tree["publication"] == 8_044_936_192


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "da3po.cli", "plan", "--json", "experiment=quickstart"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
