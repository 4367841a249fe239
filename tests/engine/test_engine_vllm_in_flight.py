"""A real engine that takes new weights, or is told to stop, while samples are in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_host import EngineHost, make_spec
from test_engine_vllm import PROMPTS, SAMPLING, Reference, Source, changed, load_weights, requests

from da3po.engine.protocol import EngineError, WorkAbandoned

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LONG = replace(SAMPLING, max_tokens=90, ignore_eos=True)
NUM_SAMPLES = 16


@pytest.fixture(scope="module")
def swapping(model_path: Path) -> Iterator[EngineHost]:
    host = EngineHost(replace(make_spec(model_path), in_flight_updates=True), {})
    host.start()
    host.generate(*requests())  # the first steps are slow
    yield host
    host.kill()


def test_each_token_has_the_version_and_the_log_prob_of_the_weights_that_drew_it(
    swapping: EngineHost, model_path: Path
) -> None:
    old = load_weights(model_path)
    new = changed(old, 4)
    source = Source(swapping)
    generating = swapping.submit("generate", requests(LONG, num_samples=NUM_SAMPLES))
    time.sleep(0.2)
    source.publish(4, new.items())
    results = {result.key: result.completions for result in generating.result(60)}
    source.close()

    completions = [(PROMPTS[key], c) for key, group in results.items() for c in group]
    assert len(completions) == len(PROMPTS) * NUM_SAMPLES
    for _, c in completions:
        assert len(c.token_ids) == len(c.logprobs) == 90
        assert [version for version, _ in c.versions] == [0, 4]
        assert sum(count for _, count in c.versions) == 90
        assert c.weight_version == 0
    reference = Reference(model_path)
    by_version = {0: [], 4: []}
    for version, weights in ((0, old), (4, new)):
        reference.hold(weights)
        for prompt, c in completions:
            split = c.versions[0][1]
            part = slice(split, None) if version else slice(split)
            difference = reference.logprobs(prompt, c.token_ids, 1.0) - torch.tensor(c.logprobs)
            by_version[version].append(difference.abs()[part])
    assert torch.cat(by_version[0]).mean() < 1e-4
    assert torch.cat(by_version[4]).mean() < 1e-4


def test_a_publication_that_fails_half_way_abandons_what_is_in_flight_and_leaves_the_engine_well(
    swapping: EngineHost, model_path: Path
) -> None:
    weights = list(changed(load_weights(model_path), 5).items())

    def half():
        yield from weights[: len(weights) // 2]
        raise RuntimeError("rank 1 ran out of memory")

    generating = swapping.submit("generate", requests(LONG, num_samples=NUM_SAMPLES))
    time.sleep(0.2)
    broken = Source(swapping)
    with pytest.raises(EngineError, match="rank 1 ran out of memory"):
        broken.publish(5, half(), 1)
    with pytest.raises(WorkAbandoned, match="could not take weights 5"):
        generating.result(60)
    with pytest.raises(WorkAbandoned, match="not whole"):
        swapping.generate(*requests())
    whole = Source(swapping)
    whole.publish(5, weights)
    whole.close()
    assert {c.weight_version for group in swapping.generate(*requests()).values() for c in group} == {5}


def test_a_call_that_is_aborted_by_its_number_says_what_it_cost(swapping: EngineHost) -> None:
    running = swapping.submit("generate", requests(LONG, num_samples=NUM_SAMPLES), 7)
    time.sleep(0.2)
    num_tokens = swapping.submit("abort", 7).result(60)
    assert running.result(60) == []
    assert 0 < num_tokens < len(PROMPTS) * NUM_SAMPLES * 90
    assert len(swapping.generate(*requests())) == 3


def test_a_call_that_is_aborted_before_it_comes_is_not_begun(swapping: EngineHost) -> None:
    assert swapping.submit("abort", 8).result(60) == 0
    assert swapping.submit("generate", requests(LONG), 8).result(60) == []
