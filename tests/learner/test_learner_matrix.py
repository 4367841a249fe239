"""Layouts x models x algorithms x micro-batch budgets: every one gives the single process's numbers.

Four models (tied or not, vocabulary divisible by the ranks or not) and four algorithms make a Latin square: each layout
sees every model and every algorithm, and each pair of a model and an algorithm is in three layouts or more.
test_learner_layouts takes fewer of them further (resume, export, publication).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import fixtures_hf
import pytest
from learner_ranks import LAYOUTS, Scenario, run_scenarios
from learner_seen import TOLERANCE, Seen, assert_close, assert_replicated, assert_tied

from da3po.config.load import load
from da3po.config.schema import OptimConfig, ParallelConfig

pytestmark = [pytest.mark.distributed, pytest.mark.matrix, pytest.mark.timeout(1800)]

MODELS = ("tied-1003", "untied-1003", "tied-1024", "untied-1024")
ALGORITHMS = ("grpo", "dapo", "da3po", "gspo")
COMBINED = {
    "cp2dp2": ParallelConfig(cp=2, dp=2),
    "tp2spcp2": ParallelConfig(tp=2, cp=2, sequence_parallel=True),
    "cp2pp2": ParallelConfig(cp=2, pp=2),
    "tp2sppp2": ParallelConfig(tp=2, pp=2, sequence_parallel=True),
    "tp2vpp": ParallelConfig(tp=2, pp=2, vpp=2),
    "pp3": ParallelConfig(pp=3, first_stage_layers=1, last_stage_layers=1),
    "tp4": ParallelConfig(tp=4),  # two key/value heads, each shared by two ranks
}
OPTIM = OptimConfig(lr=1e-4, warmup_steps=2, eps=1e-3)
"""Adam moves a weight whose gradient is mere rounding by a whole step unless eps is well above that."""

EVERY_LAYOUT = {name: parallel for name, parallel in (LAYOUTS | COMBINED).items() if name != "single"}
SQUARE = [
    (layout, MODELS[number], ALGORITHMS[(number + shift) % 4])
    for shift, layout in enumerate(EVERY_LAYOUT)
    for number in range(4)
]
BUDGETS = [(layout, budget) for layout in ("single", "pp2", "dp2", "cp2", "vpp") for budget in (24, 400)]


def scenarios(root: Path) -> list[Scenario]:
    made: list[Scenario] = []
    for model in MODELS:
        tied, vocabulary = model.split("-")
        path = fixtures_hf.make_qwen3(
            root / model, tie_word_embeddings=tied == "tied", vocab_size=int(vocabulary), num_hidden_layers=4
        )
        for algorithm in ALGORITHMS:
            algo = load([f"algo={algorithm}"]).algo
            name = f"single-{model}-{algorithm}"
            reference = Scenario(
                name=name,
                model=str(path),
                parallel=LAYOUTS["single"],
                out=str(root / "out" / name),
                loss=algo.loss,
                amplification=algo.daa.lambda_ if algo.daa.kind == "constant" else 1.0,
                optim=OPTIM,
                brief=True,
            )
            made.append(reference)
            for layout in (layout for layout, *rest in SQUARE if rest == [model, algorithm]):
                name = f"{layout}-{model}-{algorithm}"
                made.append(replace(reference, name=name, parallel=EVERY_LAYOUT[layout], out=str(root / "out" / name)))
            if (model, algorithm) == ("tied-1003", "da3po"):
                for layout, budget in BUDGETS:
                    name = f"{layout}-{model}-{algorithm}-{budget}"
                    out = str(root / "out" / name)
                    made.append(replace(reference, name=name, parallel=LAYOUTS[layout], out=out, token_budget=budget))
    return made


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    made = scenarios(tmp_path_factory.mktemp("matrix"))
    run_scenarios(made, timeout=1700.0)
    return {scenario.name: Seen(scenario) for scenario in made}


def assert_equals_single(got: Seen, expected: Seen) -> None:
    """Loss, gradient norm and entropy of all steps, every gradient of the first, the weights after the third."""
    for mine, theirs in zip(got.metrics, expected.metrics, strict=True):
        for key in ("loss/policy", "loss/num_tokens", "actor/entropy", "actor/grad_norm"):
            assert mine[key] == pytest.approx(theirs[key], rel=TOLERANCE, abs=1e-7), key
    assert_close(got.whole("gradients"), expected.whole("gradients"))
    assert_close(got.whole("weights"), expected.whole("weights"))
    for rank in got.ranks:
        assert rank["metrics"] == got.metrics


@pytest.mark.parametrize(("layout", "model", "algorithm"), SQUARE, ids=["-".join(row) for row in SQUARE])
def test_every_layout_equals_the_single_process(seen: dict[str, Seen], layout: str, model: str, algorithm: str) -> None:
    got = seen[f"{layout}-{model}-{algorithm}"]
    assert_equals_single(got, seen[f"single-{model}-{algorithm}"])
    assert_replicated(got)
    if model.startswith("tied") and got.scenario.parallel.pp > 1:
        assert_tied(got)


@pytest.mark.parametrize(("layout", "budget"), BUDGETS)
def test_every_budget_equals_the_single_process(seen: dict[str, Seen], layout: str, budget: int) -> None:
    assert_equals_single(seen[f"{layout}-tied-1003-da3po-{budget}"], seen["single-tied-1003-da3po"])


def test_every_pair_of_a_model_and_an_algorithm_is_in_several_layouts() -> None:
    layouts = {pair: {row[0] for row in SQUARE if row[1:] == pair} for pair in itertools.product(MODELS, ALGORITHMS)}
    assert min(map(len, layouts.values())) >= 3
