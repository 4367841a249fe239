"""What --search proposes is what the same command with it added plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from da3po.config.load import load
from da3po.forecast import main, plan_of
from da3po.models.published import find_model_spec

FOUR_NODES = ("experiment=da3po-qwen3_8b_base-4n8g",)


def propose(capsys: pytest.CaptureFixture[str], *overrides: str) -> list[dict[str, Any]]:
    assert main([*FOUR_NODES, "--search", "--json", *overrides]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("given", [[], ["parallel.pp=2", "parallel.dp=2", "parallel.vpp=2"]])
def test_a_proposal_added_to_the_command_is_the_plan_that_was_shown(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    best = propose(capsys, *given)[0]
    config = load([*FOUR_NODES, *given, *best["overrides"]])
    plan = plan_of(find_model_spec(config.model.path), config)
    assert plan.fits and plan.time is not None
    assert plan.time.total == pytest.approx(best["plan"]["time"]["total"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["precision=mxfp8"], "learner.precision=mxfp8 cannot run on cluster.gpu=h100_sxm_80gb"),
        (["rollout.max_tokens=100000", "algo.overlong.enabled=false"], "the model has"),
        (["learner.device=cpu", "precision=fp32"], "give cluster.gpus_per_node"),
    ],
)
def test_what_no_layout_mends_is_refused(overrides: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FOUR_NODES, "--search", *overrides]) == 2
    assert said in capsys.readouterr().err


def test_an_engine_without_room_has_a_size_named_that_fits_or_none() -> None:
    def problems(*overrides: str) -> str:
        config = load([*FOUR_NODES, *overrides])
        return "\n".join(plan_of(find_model_spec(config.model.path), config).problems)

    few = problems("engine.memory_fraction=0.05")
    assert "of weights the KV cache holds" in few
    for tp in (2, 4, 8):
        if f"engine.tp={tp} would do" in few:
            assert "KV cache" not in problems("engine.memory_fraction=0.05", f"engine.tp={tp}")
    assert "engine.memory_fraction is too small" in problems("engine.memory_fraction=0.001")
