"""Evaluation between training steps, with fakes: other answers, other rewards, the same engines."""

import dataclasses
import json

import fakes
from test_loop_with_fakes import NUM_PROMPTS, NUM_SAMPLES, Parts

from da3po.config.schema import EvalConfig
from da3po.eval.during import DuringTraining

TEXT_AT_THE_CAP = fakes.RIGHT.ljust(8)  # rollout.max_tokens of Parts


def evaluated(parts, gold, folder, num_samples=2):
    """Evaluate after every step on two problems whose answer is `gold`, through the run's own engines and grader."""
    prompts = [dataclasses.replace(prompt, gold=gold) for prompt in fakes.prompts(2)]
    parts.run.evaluator = DuringTraining(
        prompts=prompts,
        generate=parts.pool.generate,
        grade=parts.grade,
        config=EvalConfig(every=1, before=False, num_samples=num_samples, max_tokens=8),
        seed=1,
        last_step=2,
        folder=folder,
        record=lambda step, stats, line: None,
    )
    return parts


def scores(folder):
    return [json.loads(file.read_text())["avg"]["value"] for file in sorted(folder.glob("step_*.json"))]


async def test_training_keeps_its_own_answers_around_an_evaluation(tmp_path):
    """R28: the engine always gives the training answer; the evaluation's answers are all 999."""
    parts = Parts("algo.dynamic_sampling.enabled=false", steps=2, script=fakes.always(fakes.RIGHT))
    await evaluated(parts, "999", tmp_path).train()
    for samples, _ in parts.recorder.steps:
        assert all(sample.reward == 1.0 for sample in samples.samples)
        assert [group.p_hat for group in samples.groups] == [1.0] * NUM_PROMPTS
        assert all(len(group.completions) == NUM_SAMPLES for group in samples.groups)
    assert scores(tmp_path) == [0.0, 0.0]
    assert sum(len(engine.requests) for engine in parts.engines) == 2 * NUM_PROMPTS + 2 * 2


async def test_an_evaluation_knows_no_overlong_penalty(tmp_path):
    """Responses as long as the limit lose reward in training; in an evaluation on the same engines they are right."""

    async def grade(gold, responses):
        return await fakes.grade_text(gold, [response.strip() for response in responses])

    parts = Parts("algo.dynamic_sampling.enabled=false", steps=1, script=fakes.always(TEXT_AT_THE_CAP), grade=grade)
    await evaluated(parts, fakes.RIGHT, tmp_path).train()
    [(samples, _)] = parts.recorder.steps
    assert all(sample.reward < 1.0 for sample in samples.samples)
    assert scores(tmp_path) == [1.0]
