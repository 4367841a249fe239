"""A plan's bytes are those that Megatron's real models hold and the real channel carries, on every rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import fixtures_hf
import pytest
from learner_ranks import Scenario
from plan_ranks import Held, measure

from da3po.config.load import load
from da3po.config.schema import LearnerConfig, MegatronConfig, ParallelConfig
from da3po.models.hf_config import read_model_spec
from da3po.plan.learner import publication_bytes
from da3po.plan.state import lay_out, pipeline_stages, rank_state

pytestmark = pytest.mark.distributed

CPU = partial(LearnerConfig, device="cpu", num_threads=1)
BUCKETS = MegatronConfig(ddp={"overlap_grad_reduce": True, "bucket_size": 50_000})
# name -> model, layout, learner, whether a receiver takes the weights. The vocabulary of 1003 is padded from tp 2 on.
CASES = {
    "tied-single": ("tied", ParallelConfig(), CPU(), True),
    "tied-tp2": ("tied", ParallelConfig(tp=2, sequence_parallel=True), CPU(), False),
    "tied-pp2": ("tied", ParallelConfig(pp=2), CPU(), True),
    "untied-dp2": ("untied", ParallelConfig(dp=2), CPU(), False),
    "untied-tp2pp2": ("untied", ParallelConfig(tp=2, pp=2), CPU(), False),
    "tied-tp2dp2": ("tied", ParallelConfig(tp=2, dp=2), CPU(), False),
    "tied-vpp2": ("tied", ParallelConfig(pp=2, vpp=2), CPU(), False),
    "uneven": ("tied", ParallelConfig(pp=2, first_stage_layers=3), CPU(), False),
    "llama-cp2": ("llama", ParallelConfig(cp=2), CPU(), False),
    "qwen2-dp3": ("qwen2", ParallelConfig(dp=3), CPU(), False),
    "buckets-pp2dp2": ("tied", ParallelConfig(pp=2, dp=2), CPU(megatron=BUCKETS), False),
    "bf16-dp2": ("untied", ParallelConfig(dp=2), CPU(precision="bf16"), True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "tied": fixtures_hf.make_qwen3(root / "tied"),
        "untied": fixtures_hf.make_qwen3(root / "untied", tie_word_embeddings=False),
        "llama": fixtures_hf.make_llama(root / "llama"),
        "qwen2": fixtures_hf.make_qwen2(root / "qwen2"),
    }


@pytest.fixture(scope="module")
def held(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Held]]:
    root = tmp_path_factory.mktemp("ranks")
    return measure(
        [
            Scenario(
                name=name,
                model=str(models[model]),
                parallel=parallel,
                out=str(root / name),
                learner=learner,
                optim=load(["optim.lr=1E-6", "optim.warmup_steps=0"]).optim,
                lengths=((1, 6), (3, 5), (4, 4), (7, 2), (2, 6), (3, 3)),
                receives=receives,
            )
            for name, (model, parallel, learner, receives) in CASES.items()
        ]
    )


@pytest.mark.parametrize("name", CASES)
def test_every_rank_holds_what_the_plan_says(name: str, models: dict[str, Path], held: dict[str, list[Held]]) -> None:
    model, parallel, learner, _ = CASES[name]
    spec = read_model_spec(models[model])
    replicas = parallel.dp * parallel.cp
    for rank, found in enumerate(held[name]):
        state = rank_state(
            spec, parallel, learner, pp=rank // (parallel.tp * replicas), dp=rank // parallel.tp % replicas
        )
        for what in ("num_parameters", "num_buffer", "num_owned", "weights", "gradients", "optimizer"):
            assert getattr(state, what) == getattr(found, what), f"{what} of rank {rank}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_a_publication_has_the_planned_bytes(name: str, models: dict[str, Path], held: dict[str, list[Held]]) -> None:
    model, parallel, learner, _ = CASES[name]
    sent = sum(one.published for one in held[name])
    assert sent == publication_bytes(read_model_spec(models[model]), parallel, learner)


def test_a_learning_rate_of_the_command_line_is_a_number_on_every_rank(held: dict[str, list[Held]]) -> None:
    rates = [rate for ranks in held.values() for rank in ranks for rate in rank.rates]
    assert len(rates) >= sum(map(len, held.values()))
    assert all(isinstance(rate, float) and rate == 1e-6 for rate in rates)


def test_the_buffer_is_cut_as_asked(models: dict[str, Path]) -> None:
    """So that the case above with buckets has several of them."""
    parallel, spec = CASES["buckets-pp2dp2"][1], read_model_spec(models["tied"])
    buckets = lay_out(spec, pipeline_stages(4, parallel, 0)[0], parallel, BUCKETS.ddp, bucketed=True)
    assert len(buckets) > 3
    assert all((bucket.end - bucket.start) % 128 == 0 for bucket in buckets)
