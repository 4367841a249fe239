"""A real engine against Hugging Face transformers, on the one that these tests share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from engine_host import MAX_MODEL_LEN, SYNC_TIMEOUT, EngineHost
from torch import Tensor

from da3po.engine.protocol import EngineError, RequestError
from da3po.sync.channel import SourceChannel
from da3po.sync.send import send_weights
from da3po.sync.store import ChannelPlan, host_store
from da3po.types import Completion, GroupRequest, SamplingParams, WeightManifest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=24)
PROMPTS = [(7, 8, 9), (300, 4, 5, 6, 7, 1000), tuple(range(10, 40))]
Weights = dict[str, Tensor]


def requests(sampling: SamplingParams = SAMPLING, num_samples: int = 4, seed: int = 0) -> list[GroupRequest]:
    return [
        GroupRequest(
            key=key,
            prompt_ids=prompt,
            seeds=tuple(seed + 100 * key + i for i in range(num_samples)),
            sampling=sampling,
        )
        for key, prompt in enumerate(PROMPTS)
    ]


def load_weights(path: Path) -> Weights:
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")


def changed(weights: Weights, version: int) -> Weights:
    """Every tensor different from every other version's."""
    generator = torch.Generator().manual_seed(version)
    return {name: w + 0.02 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}


def check_engine_holds(engine: EngineHost, weights: Weights) -> None:
    """Every layer of the engine, the tied head included, computes with exactly these."""
    held = engine.effective_weights()
    expected = dict(weights)
    for layer in range(4):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        expected[f"{attention}.qkv_proj.weight"] = torch.cat(
            [expected.pop(f"{attention}.{p}_proj.weight") for p in "qkv"]
        )
        expected[f"{mlp}.gate_up_proj.weight"] = torch.cat(
            [expected.pop(f"{mlp}.{p}_proj.weight") for p in ("gate", "up")]
        )
    expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
    assert held.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(held[name][: len(tensor)], tensor), f"{name} differs"


class Reference:
    """Transformers' log-probs of given responses."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def hold(self, weights: Weights) -> None:
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert missing == ["lm_head.weight"] and not unexpected  # tied
        self.model.tie_weights()

    @torch.no_grad()
    def logprobs(self, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float) -> Tensor:
        logits = self.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]

    def check(self, results: dict[int, tuple[Completion, ...]], temperature: float = 1.0) -> None:
        differences = torch.cat(
            [
                (self.logprobs(PROMPTS[key], c.token_ids, temperature) - torch.tensor(c.logprobs)).abs()
                for key, completions in results.items()
                for c in completions
            ]
        )
        assert differences.mean() < 1e-4
        assert differences.max() < 1e-2


@pytest.fixture(scope="module")
def reference(model_path: Path) -> Reference:
    return Reference(model_path)


class Source:
    """The learner's end of a channel to the one engine."""

    def __init__(self, engine: EngineHost) -> None:
        self.engine = engine
        plan = ChannelPlan(backend="gloo", num_stages=1, num_receivers=1, shared_memory=True)
        self.store, address = host_store(plan, SYNC_TIMEOUT)
        engine.open_channel(address, 0)
        self.channel = SourceChannel(self.store, address, 0, SYNC_TIMEOUT)
        self.threads = ThreadPoolExecutor(1)

    def publish(self, version: int, weights, bucket_bytes: int = 1 << 20) -> WeightManifest:
        receiving = self.engine.receive(version)
        sending = self.threads.submit(send_weights, self.channel, version, weights, bucket_bytes)
        received = receiving.result(60)
        assert received == WeightManifest(version=version, buckets=sending.result(60))
        return received

    def close(self) -> None:
        self.channel.close()
        self.threads.shutdown()


@pytest.fixture
def source(engine: EngineHost, model_path: Path):
    opened = Source(engine)
    yield opened
    opened.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_processed_distribution(
    engine: EngineHost, reference: Reference, temperature: float
) -> None:
    results = engine.generate(*requests(replace(SAMPLING, temperature=temperature)))
    reference.check(results, temperature)
    for completions in results.values():
        for c in completions:
            assert len(c.token_ids) == len(c.logprobs) > 0
            assert c.weight_version == 0


def test_top_p_and_top_k_are_part_of_the_distribution(engine: EngineHost, reference: Reference) -> None:
    results = engine.generate(*requests(replace(SAMPLING, top_k=5)))
    for key, completions in results.items():
        for c in completions:
            logits = torch.cat([torch.tensor(PROMPTS[key]), torch.tensor(c.token_ids)])
            with torch.no_grad():
                logits = reference.model(logits[None]).logits[0, len(PROMPTS[key]) - 1 : -1]
            kept = logits.topk(5).values.log_softmax(-1)
            ranks = (logits > logits.gather(1, torch.tensor(c.token_ids)[:, None])).sum(1)
            assert ranks.max() < 5
            expected = kept.gather(1, ranks[:, None])[:, 0]
            assert torch.allclose(expected, torch.tensor(c.logprobs), atol=1e-3)


def test_generation_config_is_not_obeyed(engine: EngineHost) -> None:
    """It says top_k 1, repetition penalty 1.3 and 3 tokens at most."""
    ((completions,),) = [engine.generate(requests(num_samples=32)[0]).values()]
    assert len({c.token_ids for c in completions}) == 32
    assert max(len(c.token_ids) for c in completions) == SAMPLING.max_tokens


def test_every_stop_id_of_the_model_stops_and_is_kept(engine: EngineHost) -> None:
    long = replace(SAMPLING, max_tokens=90)
    completions = [c for group in engine.generate(*requests(long, num_samples=64)).values() for c in group]
    stopped = [c for c in completions if c.finish == "stop"]
    assert {c.token_ids[-1] for c in stopped} == {2, 3}
    assert all(not {2, 3} & set(c.token_ids[:-1]) for c in completions)
    assert all(len(c.token_ids) == 90 for c in completions if c.finish == "length")
    assert all("<eos>" not in c.text and "<end>" not in c.text for c in stopped)


def test_ignore_eos_goes_on_to_max_tokens_past_either(engine: EngineHost) -> None:
    sampling = replace(SAMPLING, max_tokens=90, ignore_eos=True)
    completions = [c for group in engine.generate(*requests(sampling, num_samples=64)).values() for c in group]
    assert all(len(c.token_ids) == 90 and c.finish == "length" for c in completions)
    assert {2, 3} <= {token for c in completions for token in c.token_ids}


def test_seeds_decide_the_samples(engine: EngineHost) -> None:
    first = engine.generate(*requests())
    assert engine.generate(*requests()) == first
    other = engine.generate(*requests(seed=50_000))
    samples = [c.token_ids for results in (first, other) for group in results.values() for c in group]
    assert len(set(samples)) == len(samples)


def test_temperature_zero_takes_the_likeliest(engine: EngineHost, reference: Reference) -> None:
    results = engine.generate(*requests(replace(SAMPLING, temperature=0.0), num_samples=1))
    for key, (c,) in results.items():
        with torch.no_grad():
            logits = reference.model(torch.tensor([PROMPTS[key] + c.token_ids])).logits[0]
        assert tuple(logits[len(PROMPTS[key]) - 1 : -1].argmax(-1).tolist()) == c.token_ids


def test_text_is_the_ids_decoded(engine: EngineHost, model_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    for completions in engine.generate(*requests()).values():
        for c in completions:
            assert c.text == tokenizer.decode(list(c.token_ids), skip_special_tokens=True)


def test_a_request_that_cannot_fit_is_refused_and_the_engine_goes_on(engine: EngineHost) -> None:
    too_long = replace(SAMPLING, max_tokens=MAX_MODEL_LEN)
    with pytest.raises(RequestError, match=r"engine 3: request 0 may grow to 131 tokens .*engine.max_model_len is 128"):
        engine.generate(*requests(too_long))
    with pytest.raises(RequestError, match=r"engine 3: request 0 cannot be served: .*temperature"):
        engine.generate(*requests(replace(SAMPLING, temperature=50.0)))
    assert len(engine.generate(*requests())) == 3


def test_leaving_early_aborts_the_rest(engine: EngineHost) -> None:
    short = replace(requests()[0], sampling=replace(SAMPLING, max_tokens=1))
    long = replace(requests()[1], sampling=replace(SAMPLING, max_tokens=100, ignore_eos=True))
    result = engine.submit("generate_one", [short, long]).result(60)
    assert result.key == 0
    with pytest.raises(EngineError, match="engine 3 has joined no weight channel"):  # so it was idle, and got that far
        engine.receive(1).result(60)


def test_three_updates_each_equal_transformers_with_the_new_weights(
    engine: EngineHost, source: Source, reference: Reference, model_path: Path
) -> None:
    original = load_weights(model_path)
    check_engine_holds(engine, original)
    for version in (1, 2, 3):
        weights = changed(original, version)
        source.publish(version, weights.items())
        check_engine_holds(engine, weights)
        reference.hold(weights)
        results = engine.generate(*requests())
        reference.check(results)
        assert {c.weight_version for group in results.values() for c in group} == {version}


@pytest.mark.parametrize("bucket_bytes", [1, 1024, 100_000, 1 << 30])
def test_the_bucket_size_changes_nothing(
    engine: EngineHost, source: Source, model_path: Path, bucket_bytes: int
) -> None:
    """One tensor a bucket; 1 KB; some tensors larger than the bucket and a last one half filled; all in one."""
    weights = changed(load_weights(model_path), bucket_bytes)
    manifest = source.publish(5, weights.items(), bucket_bytes)
    if bucket_bytes == 1:
        assert len(manifest.buckets) == len(weights)
    if bucket_bytes == 1 << 30:
        assert len(manifest.buckets) == 1
    check_engine_holds(engine, weights)


def test_weights_are_not_taken_while_samples_are_in_flight(engine: EngineHost, source: Source) -> None:
    sampling = replace(SAMPLING, max_tokens=90, ignore_eos=True)
    generating = engine.submit("generate", requests(sampling, num_samples=16))
    with pytest.raises(EngineError, match="engine 3 cannot take weights while 48 samples are in flight"):
        engine.receive(8).result(60)
    assert len(generating.result(60)) == 3


def test_cached_prefixes_of_old_weights_are_dropped(
    engine: EngineHost, source: Source, reference: Reference, model_path: Path
) -> None:
    """A prompt longer than a cache block, generated before and after."""
    prompt = replace(requests()[2], prompt_ids=tuple(range(10, 90)))
    engine.generate(prompt)
    weights = changed(load_weights(model_path), 11)
    source.publish(9, weights.items())
    reference.hold(weights)
    ((completions),) = engine.generate(prompt).values()
    for c in completions:
        expected = reference.logprobs(prompt.prompt_ids, c.token_ids, 1.0)
        assert torch.allclose(expected, torch.tensor(c.logprobs), atol=1e-2)


def test_a_publication_without_one_tensor_is_refused_until_a_whole_one_comes(
    engine: EngineHost, source: Source, reference: Reference, model_path: Path
) -> None:
    weights = load_weights(model_path)
    del weights["model.layers.2.self_attn.k_proj.weight"]
    with pytest.raises(EngineError, match=r"version 10 left layers unfilled: model\.layers\.2\.self_attn\.qkv_proj$"):
        source.publish(10, weights.items())
    with pytest.raises(EngineError, match="engine 3 holds weights that are not whole"):
        engine.generate(*requests())
    _recover(engine, reference, model_path, version=11)


def test_a_source_that_fails_half_way_never_leads_to_a_sample_from_mixed_weights(
    engine: EngineHost, source: Source, reference: Reference, model_path: Path
) -> None:
    weights = list(changed(load_weights(model_path), 12).items())

    def half():
        yield from weights[: len(weights) // 2]
        raise RuntimeError("rank 1 ran out of memory")

    with pytest.raises(EngineError, match="stage 0: the source failed: RuntimeError: rank 1 ran out of memory"):
        source.publish(12, half(), 1)
    with pytest.raises(EngineError, match="engine 3 holds weights that are not whole"):
        engine.generate(*requests())
    _recover(engine, reference, model_path, version=13)


def _recover(engine: EngineHost, reference: Reference, model_path: Path, version: int) -> None:
    """A new channel and a full publication make the engine whole again."""
    weights = changed(load_weights(model_path), version)
    again = Source(engine)
    again.publish(version, weights.items())
    reference.hold(weights)
    reference.check(engine.generate(*requests()))
    again.close()


def test_arguments_reach_vllm(engine: EngineHost) -> None:
    """A user's own, and the small blocks that let samples of short prompts share them."""
    assert engine.submit("vllm_config").result(60) == {"max_logprobs": 7, "block_size": 32}


def test_the_heart_beats_with_the_tokens(engine: EngineHost) -> None:
    before = engine.submit("heartbeat").result(60)
    results = engine.generate(*requests())
    drawn = sum(len(c.token_ids) for completions in results.values() for c in completions)
    assert engine.submit("heartbeat").result(60) - before == drawn


def test_its_ports_are_not_privileged(engine: EngineHost) -> None:
    listening = [
        connection.laddr.port
        for connection in psutil.Process(engine.process.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert all(port >= 1024 for port in listening)
    assert 7 not in listening  # what the environment had left over
