"""The learner on CUDA (Transformer Engine, NCCL) against the learner on CPU, which other tests hold to formulas."""

from __future__ import annotations

from pathlib import Path

import fixtures_hf
import pytest
import torch
from learner_ranks import LAYOUTS, NUM_STEPS, Scenario, run_scenarios
from learner_seen import Seen

from da3po.config.schema import LearnerConfig, OptimConfig

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

OPTIM = OptimConfig(lr=1e-4, warmup_steps=2, clip_grad=1.0)
# Log-probs of a random model are about -7; bf16 has 8 bits, of which the layers cost some.
BF16, FP8 = 0.02, 0.15


def train(root: Path, name: str, device: str, precision: str, layout: str = "single") -> Seen:
    """Three steps of the same data on a device, from the same weights."""
    model = root / "model"
    if not model.exists():
        fixtures_hf.make_qwen3(model)
    scenario = Scenario(
        name=name,
        model=str(model),
        parallel=LAYOUTS[layout],
        out=str(root / name),
        optim=OPTIM,
        brief=True,
        learner=LearnerConfig(device=device, precision=precision, num_threads=1),
    )
    run_scenarios([scenario])
    return Seen(scenario)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("learners")


@pytest.fixture(scope="module")
def on_cpu(root):
    return train(root, "cpu", "cpu", "fp32")


def logprobs(seen: Seen) -> torch.Tensor:
    return torch.cat([part.float().cpu() for part in seen.logprobs()])


def cosine(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    names = sorted(left)
    assert names == sorted(right)
    flat = [torch.cat([tensors[name].float().cpu().flatten() for name in names]) for tensors in (left, right)]
    return torch.nn.functional.cosine_similarity(*flat, dim=0).item()


def assert_agree(got: Seen, expected: Seen, tolerance: float, least_cosine: float) -> None:
    """Packed sequences give the log-probs and gradients that they give on CPU, as far as the precision goes."""
    assert (logprobs(got) - logprobs(expected)).abs().mean() < tolerance
    assert cosine(got.whole("gradients"), expected.whole("gradients")) > least_cosine
    assert len(got.metrics) == NUM_STEPS
    for mine, theirs in zip(got.metrics, expected.metrics, strict=True):
        assert mine["actor/grad_norm"] == pytest.approx(theirs["actor/grad_norm"], rel=max(0.05, 2 * tolerance))


def test_transformer_engine_layers_equal_ours_in_bf16(root, on_cpu):
    assert_agree(train(root, "bf16", "cuda", "bf16"), on_cpu, BF16, 0.99)


def test_an_fp8_step_is_near_the_step_in_bf16(root, on_cpu):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("fp8_blockwise needs compute capability 9.0")
    assert_agree(train(root, "fp8", "cuda", "fp8_blockwise"), on_cpu, FP8, 0.9)


@pytest.mark.parametrize("layout", ["tp2sp", "pp2", "dp2", "cp2"])
def test_layouts_over_nccl_equal_one_gpu(layout, root, on_cpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert_agree(train(root, layout, "cuda", "bf16", layout), on_cpu, BF16, 0.99)
