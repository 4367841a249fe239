from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import pytest

from da3po.config.rules import evaluated_metrics
from da3po.config.schema import ConfigError, EvalConfig, RewardConfig
from da3po.eval.result import reported_ks
from da3po.eval.runner import evaluate, rows
from da3po.reward.pool import GraderPool
from da3po.types import Completion, FinishReason, Grade, GroupRequest, GroupResult, Outcome, Prompt


def prompt(text: str, gold: str = "1") -> Prompt:
    return Prompt(uid=text, draw=0, epoch=0, text=text, token_ids=tuple(map(ord, text)), gold=gold, source="s")


class ScriptedEngine:
    """Says what the script says for each problem (by its text), last problem first; remembers the requests."""

    def __init__(self, script: dict[str, list[str]], finish: FinishReason = "stop") -> None:
        self.script = script
        self.finish: FinishReason = finish
        self.requests: list[GroupRequest] = []

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncIterator[GroupResult]:
        self.requests += requests
        for request in reversed(requests):
            said = self.script["".join(map(chr, request.prompt_ids))]
            yield GroupResult(key=request.key, completions=tuple(self._completion(text) for text in said))

    def _completion(self, text: str) -> Completion:
        finish: FinishReason = "abort" if text == "abort" else self.finish
        return Completion(token_ids=(1, 2, 3), logprobs=(0.0,) * 3, text=text, finish=finish, weight_version=7)


async def grade_equal(gold: str, responses: Sequence[str]) -> list[Grade]:
    return [
        Grade(outcome=Outcome.CORRECT if response == gold else Outcome.WRONG, answer=response) for response in responses
    ]


CONFIG = EvalConfig(num_samples=4, max_tokens=5)


@pytest.mark.parametrize("num_samples", [1, 4, 6])
async def test_the_names_of_the_metrics_are_known_before_an_evaluation(num_samples: int) -> None:
    engine = ScriptedEngine({"a": ["1"] * num_samples})
    config = EvalConfig(num_samples=num_samples)
    result = await evaluate(engine.generate, grade_equal, [prompt("a")], config, seed=1)
    assert sorted(result.metrics()) == sorted(evaluated_metrics(num_samples))


async def test_scores_by_hand() -> None:
    engine = ScriptedEngine({"a": ["1", "1", "2", "2"], "b": ["3", "3", "3", "1"], "c": ["0", "0", "0", "0"]})
    result = await evaluate(engine.generate, grade_equal, [prompt("a"), prompt("b"), prompt("c")], CONFIG, seed=1)
    assert (result.num_problems, result.num_samples, result.num_duplicates) == (3, 4, 0)
    assert result.avg.value == pytest.approx((2 + 1 + 0) / 12)
    assert result.pass_at[1].value == pytest.approx(result.avg.value)
    assert result.pass_at[2].value == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert result.pass_at[4].value == pytest.approx(2 / 3)
    assert result.majority.value == pytest.approx(0.5 / 3)
    assert result.accuracy == {"a": 0.5, "b": 0.25, "c": 0.0}
    assert result.avg.low < result.avg.value < result.avg.high
    assert [sample.uid for sample in result.samples] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


async def test_copies_of_a_problem_are_one_problem() -> None:
    """D01: 30 problems x 32 copies are 30 problems."""
    prompts = [prompt(f"p{i % 30}") for i in range(30 * 32)]
    engine = ScriptedEngine({f"p{i}": ["1"] * 4 for i in range(30)})
    result = await evaluate(engine.generate, grade_equal, prompts, CONFIG, seed=1)
    assert (result.num_problems, result.num_duplicates) == (30, 30 * 31)
    assert [request.key for request in engine.requests] == list(range(30))


async def test_requests_carry_the_evaluations_own_sampling_and_distinct_repeatable_seeds() -> None:
    config = EvalConfig(num_samples=4, temperature=0.7, top_p=0.9, top_k=20, max_tokens=5)
    engine = ScriptedEngine({"a": ["1"] * 4, "b": ["1"] * 4})
    for _ in range(2):
        result = await evaluate(engine.generate, grade_equal, [prompt("a"), prompt("b")], config, seed=1)
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.7, 0.9, 20, 5)
    seeds = [seed for request in engine.requests for seed in request.seeds]
    assert len(set(seeds[:8])) == 8
    assert seeds[:8] == seeds[8:]
    assert result.settings == {"num_samples": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 5}


async def test_truncation_and_failures_are_counted_and_failures_are_not_graded() -> None:
    graded: list[str] = []

    async def grade(gold: str, responses: Sequence[str]) -> list[Grade]:
        graded.extend(responses)
        return await grade_equal(gold, responses)

    engine = ScriptedEngine({"a": ["1", "abort", "1", "2"]}, finish="length")
    result = await evaluate(engine.generate, grade, [prompt("a")], CONFIG, seed=1)
    assert graded == ["1", "1", "2"]
    assert [sample.outcome.value for sample in result.samples] == ["correct", "aborted", "correct", "wrong"]
    assert (result.num_failed, result.truncated_fraction, result.avg.value) == (1, 0.75, 0.5)
    assert "1 not graded" in str(result)


async def test_limit_takes_the_first_problems() -> None:
    engine = ScriptedEngine({"a": ["1"] * 4})
    config = EvalConfig(num_samples=4, limit=1)
    assert (await evaluate(engine.generate, grade_equal, [prompt("a"), prompt("b")], config, seed=1)).num_problems == 1


async def test_a_problem_that_does_not_come_back_whole_is_an_error() -> None:
    engine = ScriptedEngine({"a": ["1"] * 3})
    with pytest.raises(RuntimeError, match="1 problems came back without their 4 samples"):
        await evaluate(engine.generate, grade_equal, [prompt("a")], CONFIG, seed=1)


async def test_no_problems_is_an_error() -> None:
    with pytest.raises(ValueError, match="no problems"):
        await evaluate(ScriptedEngine({}).generate, grade_equal, [], CONFIG, seed=1)


async def test_records_are_json() -> None:
    engine = ScriptedEngine({"a": ["1", "２", "1", "2"]})
    result = await evaluate(engine.generate, grade_equal, [prompt("a")], CONFIG, seed=1)
    row = json.loads(json.dumps(rows(result, [prompt("a")])[1], ensure_ascii=False))
    assert (row["uid"], row["prompt"], row["sample"], row["response"], row["outcome"]) == ("a", "a", 1, "２", "wrong")
    assert json.loads(json.dumps(result.summary()))["avg"]["value"] == 0.5
    assert result.metrics()["eval/pass@4"] == 1.0
    assert str(result).startswith("avg@4 0.500 [0.000, 1.000]  pass@4 1.000 [0.000, 1.000]  maj@4 1.000")


def test_which_k_are_reported() -> None:
    assert reported_ks(1) == [1]
    assert reported_ks(8) == [1, 2, 4, 8]
    assert reported_ks(12) == [1, 2, 4, 8, 12]


def test_equal_samples_are_refused() -> None:
    """V04: four samples at temperature 0 are one sample."""
    with pytest.raises(ConfigError, match="4 equal samples"):
        EvalConfig(num_samples=4, temperature=0.0)


async def test_training_is_graded_against_its_own_answers_before_and_after_an_evaluation() -> None:
    """R28: all golds of the evaluation are 999, the engine always gives the training gold."""
    pool = GraderPool(RewardConfig(grader="dapo_v1"))
    try:
        engine = ScriptedEngine({"a": ["Answer: 7"] * 4})
        [before] = await pool.grade("7", ["Answer: 7"])
        result = await evaluate(engine.generate, pool.grade, [prompt("a", gold="999")], CONFIG, seed=1)
        [after] = await pool.grade("7", ["Answer: 7"])
    finally:
        pool.close()
    assert (before.outcome.value, result.avg.value, after.outcome.value) == ("correct", 0.0, "correct")
