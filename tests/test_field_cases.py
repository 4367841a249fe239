"""Where the known failures of other systems in reward, data and evaluation are tested: case -> test, or table row."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GRADING = "docs/grading.md"  # every row of it is run by tests/reward/test_reward_docs.py

CASES = {
    "R03 a hung verification blocks the pool": (
        "tests/reward/test_reward_pool.py",
        "test_normal_answers_are_graded_after",
    ),
    "R04 a power tower hangs the parser": ("tests/reward/test_reward_pool.py", "test_hostile_answers_end_in_time"),
    "R05 memory grows until the machine dies": ("tests/reward/test_reward_pool.py", "test_hostile_answers_end_in_time"),
    "R08 one of two answers is accepted": (GRADING, r"| `1331 and 1728` | `\boxed{1728}` | wrong |"),
    "R11 the order of gold and answer": ("tests/reward/test_reward_graders.py", "test_the_reference_comes_first"),
    "R12 two boxes": (GRADING, r"| `7` | `\boxed{3} wait, actually \boxed{7}` | correct |"),
    "R13 a bold final answer": (GRADING, "Final Answer: **73**` | correct |"),
    "R14 equations that end in = 0": (GRADING, r"| `3x-y+13=0` | `\boxed{3x+4y+14=0}` | wrong |"),
    "R15 sqrt(1/n) and f(x) = 0": (GRADING, r"| `f(x)=0` | `\boxed{\forall x>0, f(x)=0}` | wrong |"),
    "R16 a prefix that parses": (GRADING, r"| `4` | `\boxed{4\sqrt(2)}` | wrong |"),
    "R18 leading zeros": (GRADING, r"| `10` | `\boxed{010}` | correct |"),
    "R19 a long remark after the answer": (GRADING, "four hundred characters of prose"),
    "R21 no think tags": (GRADING, r"| `13` | `The answer is \boxed{13}` | correct |"),
    "R21 batches without reward are warned of": ("da3po/rollout/starvation.py", "All wrong: check"),
    "R22 several ###Response and </think>": (GRADING, r"###Response\boxed{42}` | correct |"),
    "R23 fbox, no braces, nested boxes": (GRADING, r"| `42` | `\fbox{42}` | correct |"),
    "R24 broken boxes": (GRADING, r"| `1` | `}\boxed{{{` | no_answer |"),
    "R28 golds of the evaluation in training": ("tests/eval/test_runner.py", "test_training_is_graded_against_its_own"),
    "R29 golds that are no strings": ("tests/data/test_sources.py", "test_golds_of_any_type_are_text"),
    "R30 percent": (GRADING, r"| `$28\%$` | `\boxed{0.28}` | correct |"),
    "R31 Unicode mathematics": (GRADING, "| `12` | `\\boxed{１２}` | correct |"),
    "R32 lost samples": ("tests/rollout/test_rollout_postprocess.py", "test_failures_to_grade_are_masked_out"),
    "D01 every prompt a hundred times": ("tests/data/test_sources.py", "test_many_copies_are_counted_and_one_is_kept"),
    "D01 in evaluation": ("tests/eval/test_runner.py", "test_copies_of_a_problem_are_one_problem"),
    "D02 a prompt too long": ("tests/data/test_prompts.py", "test_a_prompt_too_long_is_left_out_and_counted"),
    # There is one path: training, evaluation and resume all take their prompts from build_prompts.
    "D03 the length filter is in one place": ("da3po/data/prompts.py", "the only place where prompts are tokenised"),
    "D04 the filter keeps the order": ("tests/data/test_prompts.py", "test_order_is_kept"),
    "D07 untidy jsonl files": ("tests/data/test_sources.py", "test_an_untidy_jsonl_file"),
    "D07 order of a resumable writer": ("tests/eval/test_record.py", "goes_on_and_ends_as_an_uninterrupted_one"),
    "V01 pass@k is no bootstrap": ("tests/eval/test_statistics.py", "test_pass_at_k"),
    "V02 n < k": ("tests/eval/test_statistics.py", "test_pass_at_k_of_too_few_samples_is_refused"),
    "V04 equal samples, settings of its own": ("tests/eval/test_runner.py", "test_requests_carry_the_evaluations_own"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_case_is_tested(case: str) -> None:
    file, needle = CASES[case]
    assert needle in (ROOT / file).read_text(encoding="utf-8")
