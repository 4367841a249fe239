"""Layouts x models x algorithms x micro-batch budgets: every one gives the single process's numbers.

Each way of splitting by itself sees every pair of a model (tied or not, vocabulary divisible by the ranks or not) and
an algorithm. Combinations of several ways take a Latin square: every model and every algorithm, in four pairs of the
sixteen. test_learner_layouts takes fewer of them further (resume, export, publication).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import fixtures_hf
import pytest
from learner_ranks import LAYOUTS, NUM_STEPS, Scenario, run_scenarios
from learner_seen import TOLERANCE, Seen, assert_close, assert_replicated, assert_tied

from da3po.config.load import load
from da3po.config.schema import OptimConfig, ParallelConfig

pytestmark = [pytest.mark.distributed, pytest.mark.matrix, pytest.mark.timeout(3600)]

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
"""With an eps well above rounding a weight's update is as smooth in its gradient as the gradient itself."""

SHARP = replace(OPTIM, eps=1e-8)
"""The default eps. Adam's first update is g / (|g| + eps), so a weight whose gradient is mere rounding, of either sign,
goes a whole step up or down: no two orders of summation agree on it, in any system. A gradient of some size is followed
by an update that is as exact, and the second moment remembers it, so that later rounding stays small beside it."""
SETTLED = 1e-3
"""Gradients above this share of their tensor's largest are of some size: rounding is a thousandth of them or less."""

ALONE = {name: parallel for name, parallel in LAYOUTS.items() if name != "single"}
EVERY_LAYOUT = ALONE | COMBINED
GRID = list(itertools.product(ALONE, MODELS, ALGORITHMS)) + [
    (layout, MODELS[number], ALGORITHMS[(number + shift) % 4])
    for shift, layout in enumerate(COMBINED)
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
            for layout in (layout for layout, *rest in GRID if rest == [model, algorithm]):
                name = f"{layout}-{model}-{algorithm}"
                made.append(replace(reference, name=name, parallel=EVERY_LAYOUT[layout], out=str(root / "out" / name)))
            if (model, algorithm) == ("tied-1003", "da3po"):
                for layout in ("single", *EVERY_LAYOUT):
                    out = str(root / "out" / f"{layout}-sharp")
                    sharp = replace(reference, name=f"{layout}-sharp", out=out, optim=SHARP)
                    made.append(replace(sharp, parallel=(LAYOUTS | COMBINED)[layout]))
                for layout, budget in BUDGETS:
                    name = f"{layout}-{model}-{algorithm}-{budget}"
                    out = str(root / "out" / name)
                    made.append(replace(reference, name=name, parallel=LAYOUTS[layout], out=out, token_budget=budget))
    return made


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    made = scenarios(tmp_path_factory.mktemp("matrix"))
    run_scenarios(made, timeout=3500.0)
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


@pytest.mark.parametrize(("layout", "model", "algorithm"), GRID, ids=["-".join(row) for row in GRID])
def test_every_layout_equals_the_single_process(seen: dict[str, Seen], layout: str, model: str, algorithm: str) -> None:
    got = seen[f"{layout}-{model}-{algorithm}"]
    assert_equals_single(got, seen[f"single-{model}-{algorithm}"])
    assert_replicated(got)
    if model.startswith("tied") and got.scenario.parallel.pp > 1:
        assert_tied(got)


@pytest.mark.parametrize(("layout", "budget"), BUDGETS)
def test_every_budget_equals_the_single_process(seen: dict[str, Seen], layout: str, budget: int) -> None:
    assert_equals_single(seen[f"{layout}-tied-1003-da3po-{budget}"], seen["single-tied-1003-da3po"])


@pytest.mark.parametrize("layout", EVERY_LAYOUT)
def test_the_default_eps_of_adam(seen: dict[str, Seen], layout: str) -> None:
    """Every gradient, and every weight whose gradient was of some size, as exact as ever. Of the others no more can be
    promised than two opposite steps of each update; in practice the worst is some 2e-5 away. Replicas are equal bit for
    bit all the same: they share one sum.
    """
    got, expected = seen[f"{layout}-sharp"], seen["single-sharp"]
    gradients = expected.whole("gradients")
    assert_close(got.whole("gradients"), gradients)
    num_updates = 1 + 2 * (NUM_STEPS - 1)
    for name, value in expected.whole("weights").items():
        settled = gradients[name].abs() > SETTLED * gradients[name].abs().max()
        error = (got.whole("weights")[name] - value).abs()
        assert settled.any(), name
        assert error[settled].max() <= TOLERANCE * value.abs().max(), f"{name}: {error[settled].max():.2e}"
        assert error.max() <= 2 * SHARP.lr * num_updates, name
    assert_replicated(got)
    if got.scenario.parallel.pp > 1:
        assert_tied(got)


def test_every_layout_sees_every_model_and_every_algorithm() -> None:
    for layout in EVERY_LAYOUT:
        rows = [row[1:] for row in GRID if row[0] == layout]
        assert {model for model, _ in rows} == set(MODELS)
        assert {algorithm for _, algorithm in rows} == set(ALGORITHMS)
