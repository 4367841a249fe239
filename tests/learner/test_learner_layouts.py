"""Every layout gives what a single process gives, through the real learner and real gloo processes.

One set of processes goes through all scenarios once; the tests look at what they left.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import fixtures_hf
import pytest
import torch
from learner_ranks import LAYOUTS, NUM_STEPS, SAVED_STEP, Scenario, packed_step, run_scenarios
from learner_seen import TOLERANCE, Seen, assert_close, assert_replicated, assert_tied

from da3po.config.schema import LearnerConfig, LossConfig, MegatronConfig, OptimConfig

pytestmark = pytest.mark.distributed

OPTIM = OptimConfig(lr=1e-4, warmup_steps=2, clip_grad=1.0, layer_grad_norms=True)
LONG = ((20, 300), (2, 3), (8, 4), (1, 2))
"""A sequence that reaches positions above the original length of Llama 3's rope scaling."""

RECOMPUTE_AND_OVERLAP = MegatronConfig(
    transformer={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ddp={"overlap_grad_reduce": True, "bucket_size": 10_000},
)
"""Fields of Megatron's own that change when things happen and not what comes out."""


def _scenarios(root: Path) -> list[Scenario]:
    tied = str(fixtures_hf.make_qwen3(root / "tied"))
    untied = str(fixtures_hf.make_qwen3(root / "untied", tie_word_embeddings=False))
    llama = str(fixtures_hf.make_llama(root / "llama"))
    qwen2 = str(fixtures_hf.make_qwen2(root / "qwen2"))
    layouts = [name for name in LAYOUTS if name != "single"]
    scenarios = [
        Scenario(
            name=f"tied-{name}",
            model=tied,
            parallel=LAYOUTS[name],
            out=str(root / f"tied-{name}"),
            optim=OPTIM,
            receives=name in ("tp2", "pp2", "dp2", "vpp", "tp2pp2"),
        )
        for name in layouts
    ]
    scenarios.append(
        Scenario(
            name="tied-single",
            model=tied,
            parallel=LAYOUTS["single"],
            out=str(root / "tied-single"),
            optim=OPTIM,
            resume_from=("tied-dp2", "tied-tp2pp2", "tied-cp2", "tied-vpp"),
        )
    )
    gspo = LossConfig(ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregation="sequence_mean")
    scenarios += [
        Scenario(
            name=f"untied-{name}",
            model=untied,
            parallel=LAYOUTS[name],
            out=str(root / f"untied-{name}"),
            temperature=0.6,
            optim=OPTIM,
            loss=gspo,
        )
        for name in ("tp2sp", "pp2", "cp2", "single")
    ]
    scenarios += [
        Scenario(
            name=f"{family}-tp2",
            model=model,
            parallel=LAYOUTS["tp2"],
            out=str(root / f"{family}-tp2"),
            lengths=LONG,
            optim=OPTIM,
        )
        for family, model in (("llama", llama), ("qwen2", qwen2))
    ]
    # The single process takes all samples through the backward pass, the layouts only those with an advantage.
    scenarios += [
        Scenario(
            name=f"zero-{name}",
            model=tied,
            parallel=LAYOUTS[name],
            out=str(root / f"zero-{name}"),
            optim=dataclasses.replace(OPTIM, eps=1e-6),  # few samples have a gradient, so rounding counts for more
            learner=LearnerConfig(
                device="cpu", num_threads=1, zero_advantage={"single": "learn", "pp2": "skip"}.get(name, "measure")
            ),
            without_advantage=(0, 4, 5, 7),
            brief=True,
        )
        for name in ("tp2pp2", "dp2", "cp2", "vpp", "pp2", "single")
    ]
    small = fixtures_hf.make_qwen3(
        root / "small",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    # Two ranks share the one key/value head; half precision is slow on CPU, so this one alone is in it.
    scenarios += [
        Scenario(
            name=f"small-{name}",
            model=str(small),
            parallel=parallel,
            out=str(root / f"small-{name}"),
            lengths=((2, 3), (8, 4), (3, 2), (1, 6)),
            optim=OPTIM,
            learner=LearnerConfig(device="cpu", num_threads=1, **options),
            brief=True,
        )
        for name, parallel, options in (
            ("single", LAYOUTS["single"], {}),
            ("tp2sp", LAYOUTS["tp2sp"], {}),
            ("fields", LAYOUTS["dp2"], {"megatron": RECOMPUTE_AND_OVERLAP}),
            ("bf16", LAYOUTS["dp2"], {"precision": "bf16"}),
            # Last, for the processes keep the mode.
            ("exact", LAYOUTS["tp2sp"], {"deterministic": True}),
            ("again", LAYOUTS["tp2sp"], {"deterministic": True}),
        )
    ]
    return scenarios


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    scenarios = _scenarios(tmp_path_factory.mktemp("learner"))
    run_scenarios(scenarios)
    return {scenario.name: Seen(scenario) for scenario in scenarios}


PARALLEL = [f"tied-{name}" for name in LAYOUTS if name != "single"] + ["untied-tp2sp", "untied-pp2", "untied-cp2"]
BRIEF = ["small-tp2sp", "small-fields", "small-exact", "zero-tp2pp2", "zero-dp2", "zero-cp2", "zero-vpp"]


def single(name: str) -> str:
    return name.split("-")[0] + "-single"


@pytest.mark.parametrize("name", [*PARALLEL, *BRIEF, "zero-pp2"])
def test_gradients_equal_the_single_process(seen: dict[str, Seen], name: str) -> None:
    assert_close(seen[name].whole("gradients"), seen[single(name)].whole("gradients"))


@pytest.mark.parametrize("name", [*PARALLEL, *BRIEF, "zero-pp2"])
def test_weights_after_three_steps_equal_the_single_process(seen: dict[str, Seen], name: str) -> None:
    assert_close(seen[name].whole("weights"), seen[single(name)].whole("weights"))


@pytest.mark.parametrize("name", PARALLEL + BRIEF)
def test_metrics_equal_the_single_process(seen: dict[str, Seen], name: str) -> None:
    for got, expected in zip(seen[name].metrics, seen[single(name)].metrics, strict=True):
        assert got.keys() == expected.keys()
        for key in ("loss/policy", "loss/num_tokens", "actor/entropy", "actor/grad_norm", "actor/lr"):
            assert got[key] == pytest.approx(expected[key], rel=TOLERANCE, abs=1e-7), key
        for key in (key for key in got if key.startswith("grad_norm/")):
            assert got[key] == pytest.approx(expected[key], rel=TOLERANCE), key
        assert got["mismatch/max_abs_logprob"] == pytest.approx(expected["mismatch/max_abs_logprob"], rel=1e-4)


@pytest.mark.parametrize("name", PARALLEL + BRIEF)
def test_every_rank_returns_the_same_metrics(seen: dict[str, Seen], name: str) -> None:
    for rank in seen[name].ranks:
        assert rank["metrics"] == seen[name].metrics


@pytest.mark.parametrize("name", [*PARALLEL, "tied-single", "small-bf16"])
def test_gradient_norms_of_the_parts_add_up_to_the_whole(seen: dict[str, Seen], name: str) -> None:
    """Of the step with a single update, where no mean over updates is between."""
    metrics = seen[name].metrics[0]
    parts = {key.removeprefix("grad_norm/"): value for key, value in metrics.items() if key.startswith("grad_norm/")}
    layers = [f"layer_{number:02d}" for number in range(1 if name.startswith("small") else 4)]
    head = ["output_layer"] if name.startswith("untied") else []
    assert list(parts) == ["embedding", "final_norm", *layers, *head]
    assert math.hypot(*parts.values()) == pytest.approx(metrics["actor/grad_norm"], rel=TOLERANCE)


@pytest.mark.parametrize("name", ["zero-tp2pp2", "zero-dp2", "zero-cp2", "zero-vpp"])
def test_samples_without_advantage_are_measured_all_the_same(seen: dict[str, Seen], name: str) -> None:
    """In every update of a step, under its opening weights and under those that it has come to."""
    updates = packed_step(seen[name].scenario, 2).updates
    assert all({batch.learns for batch in rank} == {True, False} for one in updates for rank in one.micro_batches)
    for got, expected in zip(seen[name].metrics, seen["zero-single"].metrics, strict=True):
        for key, value in expected.items():
            if not key.startswith("time/"):
                assert got[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_deterministic_runs_are_equal_bit_for_bit(seen: dict[str, Seen]) -> None:
    """Two runs with learner.deterministic."""
    for first, second in zip(seen["small-exact"].ranks, seen["small-again"].ranks, strict=True):
        assert _without_times(first["metrics"]) == _without_times(second["metrics"])
        for what in ("gradients", "weights", "own"):
            assert first[what].keys() == second[what].keys()
            assert all(torch.equal(value, second[what][name]) for name, value in first[what].items())


def _without_times(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in of_step.items() if not key.startswith("time/")} for of_step in metrics]


def test_bf16_parameters_have_main_weights_and_gradients_in_fp32(seen: dict[str, Seen]) -> None:
    """The model's weights are the main ones, rounded; what rounding takes away is kept for the next update."""
    losses = [metrics["loss/policy"] for metrics in seen["small-bf16"].metrics]
    assert losses == pytest.approx([metrics["loss/policy"] for metrics in seen["small-single"].metrics], abs=0.02)
    for rank in seen["small-bf16"].ranks:
        found = rank["bf16"]
        assert found["parameters"] == {torch.bfloat16} and found["gradients"] == {torch.float32}
        assert {part.dtype for part in found["main"]} == {torch.float32}
        assert all(torch.equal(main.bfloat16(), own) for main, own in zip(found["main"], found["own"], strict=True))
        assert any((main != main.bfloat16()).any() for main in found["main"])


def test_the_opening_weights_are_the_old_policy_of_every_update(seen: dict[str, Seen]) -> None:
    """The second update of a step has moved away from the first, so its ratios are no longer 1."""
    first, second, _ = seen["tied-single"].metrics
    assert first["loss/ratio_max"] == 1.0
    assert second["loss/ratio_max"] > 1.0 + 1e-4


def test_warm_up_counts_training_steps_not_updates(seen: dict[str, Seen]) -> None:
    assert [metrics["actor/lr"] for metrics in seen["tied-single"].metrics] == [5e-5, 1e-4, 1e-4]


@pytest.mark.parametrize("name", ["tied-pp2", "tied-tp2pp2", "tied-vpp"])
def test_tied_embedding_and_head_stay_equal_bit_for_bit(seen: dict[str, Seen], name: str) -> None:
    """P05."""
    assert_tied(seen[name])


@pytest.mark.parametrize("name", ["tied-tp2", "tied-tp2sp", "tied-tp2pp2"])
def test_norm_weights_stay_equal_across_tensor_parallel_ranks(seen: dict[str, Seen], name: str) -> None:
    assert_replicated(seen[name])


def hf_logprobs(model_dir: Path, scenario: Scenario, temperature: float) -> list[torch.Tensor]:
    """Of the first step's first update, from transformers, one sequence at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    logprobs = []
    for batch in packed_step(scenario, 1).updates[0].micro_batches[0]:
        bounds = batch.cu_seqlens.tolist()
        parts = []
        for begin, end in itertools.pairwise(bounds):
            with torch.no_grad():
                logits = model(batch.input_ids[None, begin:end]).logits[0] / temperature
            parts.append(logits.log_softmax(-1).gather(1, batch.labels[begin:end, None]).squeeze(1))
        logprobs.append(torch.cat(parts))
    return logprobs


@pytest.mark.parametrize("name", ["tied-single", "tied-tp2pp2", "tied-pp2", "untied-tp2sp", "llama-tp2", "qwen2-tp2"])
def test_logprobs_equal_transformers(seen: dict[str, Seen], name: str) -> None:
    """L01, L04, L10, H02, H05, H07, H08, P02: at temperature 1 and 0.6, packed, with any layout."""
    scenario = seen[name].scenario
    expected = hf_logprobs(Path(scenario.model), scenario, scenario.temperature)
    for got, want in zip(seen[name].logprobs(), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["tied-tp2", "tied-tp2sp", "tied-tp2pp2", "tied-pp2", "tied-uneven"])
def test_logprobs_equal_the_single_process(seen: dict[str, Seen], name: str) -> None:
    """P02: sequences of 1, 7, 8 and 9 tokens among others. These layouts split alike; padding is at the end."""
    pairs = zip(seen[name].logprobs(), seen["tied-single"].logprobs(), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got[: len(want)], want, atol=1e-5, rtol=1e-5)


def test_two_forward_passes_are_equal_bit_for_bit(seen: dict[str, Seen]) -> None:
    """L04: no dropout anywhere."""
    for first, second in zip(seen["tied-tp2"].logprobs(), seen["tied-tp2"].logprobs("again"), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    "name", ["tied-tp2pp2", "tied-dp2", "tied-vpp", "tied-uneven", "untied-pp2", "llama-tp2", "qwen2-tp2"]
)
def test_export_gives_transformers_the_trained_model(seen: dict[str, Seen], name: str) -> None:
    """H03: in transformers the export has the learner's log-probs after training."""
    scenario = seen[name].scenario
    expected = hf_logprobs(seen[name].out / "export", scenario, scenario.temperature)
    for got, want in zip(seen[name].logprobs("final_logprobs"), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["tied-tp2pp2", "tied-vpp", "untied-pp2", "llama-tp2"])
def test_export_has_the_tensors_of_the_source(seen: dict[str, Seen], name: str) -> None:
    """H03, H06, H09: same names, and every file but the config, which says more, byte for byte."""
    from da3po.models.safetensors_io import CheckpointReader

    source, target = Path(seen[name].scenario.model), seen[name].out / "export"
    assert CheckpointReader(target).names() == CheckpointReader(source).names()
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, target))
    assert before.items() <= after.items()


@pytest.mark.parametrize("name", PARALLEL)
def test_resume_on_the_same_layout_is_exact(seen: dict[str, Seen], name: str) -> None:
    run = seen[name]
    for rank in run.ranks:
        resumed = rank["resumed"][name]
        for got, expected in zip(resumed["metrics"], rank["metrics"][SAVED_STEP:], strict=True):
            assert got["loss/policy"] == expected["loss/policy"]
            assert got["actor/grad_norm"] == expected["actor/grad_norm"]
        assert all(torch.equal(resumed["weights"][key], value) for key, value in rank["weights"].items())


@pytest.mark.parametrize("saved_by", ["tied-dp2", "tied-tp2pp2", "tied-cp2", "tied-vpp"])
def test_resume_on_another_layout_goes_on_the_same_way(seen: dict[str, Seen], saved_by: str) -> None:
    run = seen["tied-single"].ranks[0]
    assert_close(run["resumed"][saved_by]["weights"], run["weights"])
    loss = run["resumed"][saved_by]["metrics"][0]["loss/policy"]
    assert loss == pytest.approx(run["metrics"][NUM_STEPS - 1]["loss/policy"], rel=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["tied-single", "tied-tp2", "tied-pp2", "tied-dp2", "tied-cp2", "tied-vpp", "untied-tp2sp"]
)
def test_non_finite_gradients_are_skipped_and_then_end_the_run(seen: dict[str, Seen], name: str) -> None:
    """A11: on every rank alike, the weights untouched."""
    for rank in seen[name].ranks:
        skipped = rank["skipped"]
        assert skipped["unchanged"]
        assert [metrics["actor/skipped_updates"] for metrics in skipped["metrics"]] == [1.0, 1.0]
        assert not math.isfinite(skipped["metrics"][0]["actor/grad_norm"])
        assert "optim.max_skipped=3" in skipped["error"]


@pytest.mark.parametrize("name", ["tied-single", "tied-tp2pp2", "tied-dp2", "tied-cp2", "untied-cp2"])
def test_nothing_but_empty_responses_teach_nothing(seen: dict[str, Seen], name: str) -> None:
    """A10: no token to learn from, and neither momentum nor weight decay moves a weight."""
    for rank in seen[name].ranks:
        assert rank["empty"]["unchanged"]
        assert all(math.isfinite(value) for value in rank["empty"]["metrics"].values())
        assert rank["empty"]["metrics"]["loss/num_tokens"] == 0
        assert rank["empty"]["metrics"]["loss/policy"] == 0


@pytest.mark.parametrize("name", ["tied-single", "tied-tp2pp2", "tied-vpp"])
def test_a_weight_that_is_no_number_is_never_saved(seen: dict[str, Seen], name: str) -> None:
    """A11."""
    for rank in seen[name].ranks:
        error, files = rank["refused"]
        assert "is not finite; nothing is saved" in error
        assert files == []


@pytest.mark.parametrize("name", ["tied-tp2", "tied-pp2", "tied-dp2", "tied-vpp", "tied-tp2pp2"])
def test_published_weights_arrive_whole(seen: dict[str, Seen], name: str) -> None:
    """W04, W08, H06: three times, a training step apart, every stage sends its own layers under their own numbers, and
    ranks that only gather do not block."""
    run = seen[name]
    received = torch.load(run.out / "received.pt", weights_only=False)
    assert len(received) == 3
    for step, taken in enumerate(received):
        weights = {key: value for rank in run.ranks for key, value in rank["at_step"][step].items()}
        assert taken["weights"].keys() == weights.keys()
        assert all(torch.equal(taken["weights"][key], value) for key, value in weights.items())
        assert taken["manifest"].buckets == tuple(bucket for rank in run.ranks for bucket in rank["sent"][step])
    norm = "model.norm.weight"
    assert not torch.equal(received[0]["weights"][norm], received[2]["weights"][norm])
