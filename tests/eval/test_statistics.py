from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from da3po.eval.distributions import t_quantile, t_two_sided_p
from da3po.eval.statistics import compare_paired, estimate_mean, majority_at_n, pass_at_k

SHARED = Path(os.environ.get("DA3PO_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (4, 1, 4, 1.0),
        (4, 1, 2, 0.5),
        (4, 1, 1, 0.25),
        (8, 2, 4, 0.785714),
        (4, 0, 4, 0.0),
        (4, 4, 1, 1.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k(n: int, c: int, k: int, value: float) -> None:
    """V01: drawn without replacement, so one correct sample of four is pass@4 = 1, not 0.684."""
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("k", [10, 0, -1])
def test_pass_at_k_of_too_few_samples_is_refused(k: int) -> None:
    """V02: one sample per problem has no pass@10."""
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(1, 1, k)


def test_pass_at_k_is_what_drawing_subsets_gives() -> None:
    rng = random.Random(1)
    samples = [True] * 3 + [False] * 7
    hits = sum(any(rng.sample(samples, 4)) for _ in range(20_000)) / 20_000
    assert pass_at_k(10, 3, 4) == pytest.approx(hits, abs=0.01)


def test_reference_values() -> None:
    """The cases of passk_cases.jsonl that are avg@k or pass@k. Its values are rounded to its tolerance."""
    path = SHARED / "data" / "passk_cases.jsonl"
    if not path.is_file():
        pytest.skip("no reference values here")
    seen = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["metric"] not in ("avg_at_k_math", "pass_at_k_math"):
            continue
        correct = sum(sample == case["gold"] for sample in case["samples"])
        n, k = len(case["samples"]), case["params"]["k"]
        [expected] = case["expected"].values()
        value = correct / n if case["metric"] == "avg_at_k_math" else pass_at_k(n, correct, k)
        assert value == pytest.approx(expected, abs=case["tolerance"]), case["name"]
        seen += 1
    assert seen == 6


@pytest.mark.parametrize(
    ("answers", "correct", "value"),
    [
        (["4", "4", "5"], [True, True, False], 1.0),
        (["0.5", "1/2", "3", "3", "2"], [True, True, False, False, False], 0.5),  # equal answers vote together; a tie
        (["5", "5", "4"], [False, False, True], 0.0),
        ([None, None, "4"], [False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
    ],
)
def test_majority(answers: list[str | None], correct: list[bool], value: float) -> None:
    assert majority_at_n(answers, correct) == value


@pytest.mark.parametrize(("dof", "quantile"), [(1, 12.7062), (4, 2.7764), (9, 2.2622), (29, 2.0452), (10**6, 1.95997)])
def test_quantiles_of_t_are_the_tables(dof: int, quantile: float) -> None:
    assert t_quantile(0.95, dof) == pytest.approx(quantile, abs=1e-4)
    assert t_two_sided_p(quantile, dof) == pytest.approx(0.05, abs=1e-5)


def test_an_interval_by_hand() -> None:
    """Four problems 0, 1/2, 1/2, 1: m = 1/2, s^2 = 1/6, so n = (1/4) / (1/24) = 6; t = 3.18245; Wilson's formula."""
    estimate = estimate_mean([0.0, 0.5, 0.5, 1.0])
    assert estimate.value == 0.5
    half = 3.18245 / (1 + 3.18245**2 / 6) * (0.25 / 6 + 3.18245**2 / (4 * 36)) ** 0.5
    assert (estimate.low, estimate.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_intervals_at_the_edges_are_not_points() -> None:
    zero, one = estimate_mean([0.0] * 30), estimate_mean([1.0] * 30)
    assert zero.low == 0.0
    assert 0.05 < zero.high < 0.15
    assert (one.low, one.high) == pytest.approx((1 - zero.high, 1.0))
    alone = estimate_mean([0.5])
    assert (alone.low, alone.high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no problems"):
        estimate_mean([])


def test_copies_of_samples_do_not_narrow_the_interval() -> None:
    """The problems count: a hundred samples of each of ten problems are still ten problems."""
    few, many = estimate_mean([0.0, 1.0] * 5), estimate_mean([0.0, 1.0] * 500)
    assert few.high - few.low > 5 * (many.high - many.low)


@pytest.mark.parametrize(
    ("num_problems", "a", "b"), [(10, 2, 2), (10, 0.3, 0.7), (30, 0.3, 0.7), (83, 0.1, 0.9), (83, 2, 2), (256, 0.2, 3)]
)
def test_coverage(num_problems: int, a: float, b: float) -> None:
    """95 % intervals hold the truth in 93 to 97 % of simulated evaluations of 8 samples a problem.

    Difficulties follow Beta(a, b), with mean a / (a + b). 1500 repetitions: the count itself is uncertain by 1.1 %.
    """
    rng = random.Random(f"{num_problems} {a} {b}")
    covered = 0
    for _ in range(1500):
        scores = []
        for _ in range(num_problems):
            p = rng.betavariate(a, b)
            scores.append(sum(rng.random() < p for _ in range(8)) / 8)
        estimate = estimate_mean(scores)
        covered += estimate.low <= a / (a + b) <= estimate.high
    assert 0.93 <= covered / 1500 <= 0.97


def test_a_paired_comparison_by_hand() -> None:
    """Differences 0.1, 0.2, 0.3: mean 0.2, standard error 0.1/sqrt(3), t = 3.4641 with 2 dof, p = 0.0742."""
    first = {"a": 0.1, "b": 0.2, "c": 0.3, "only here": 0.9}
    result = compare_paired(first, {"a": 0.2, "b": 0.4, "c": 0.6, "only there": 0.0})
    assert result.num_problems == 3
    assert result.difference == pytest.approx(0.2)
    assert result.p_value == pytest.approx(0.07418, abs=1e-5)
    half = 4.302653 * 0.1 / 3**0.5
    assert (result.low, result.high) == pytest.approx((0.2 - half, 0.2 + half))


def test_pairing_sees_what_two_intervals_do_not() -> None:
    first = {str(i): i / 100 for i in range(90)}
    second = {uid: value + 0.05 + 0.01 * (int(uid) % 3) for uid, value in first.items()}
    assert compare_paired(first, second).p_value < 1e-6
    same = compare_paired(first, first)
    assert (same.difference, same.p_value) == (0.0, 1.0)
    with pytest.raises(ValueError, match="at least 2 problems"):
        compare_paired({"a": 1.0}, {"b": 1.0})


def test_the_p_value_is_uniform_under_no_difference() -> None:
    rng = random.Random(3)
    p_values = []
    for _ in range(1000):
        pairs = [(rng.betavariate(0.5, 0.5), rng.gauss(0, 0.1), rng.gauss(0, 0.1)) for _ in range(30)]
        first = {str(i): p + e for i, (p, e, _) in enumerate(pairs)}
        p_values.append(compare_paired(first, {str(i): p + e for i, (p, _, e) in enumerate(pairs)}).p_value)
    assert 0.03 <= sum(p < 0.05 for p in p_values) / 1000 <= 0.07
    assert 0.45 <= sum(p < 0.5 for p in p_values) / 1000 <= 0.55
