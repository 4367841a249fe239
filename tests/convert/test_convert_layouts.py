"""Import, learner of some layout, export: the same model all the way, and a trained one as the learner has it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fixtures_hf
import pytest
import torch
from convert_engine import run_engine
from convert_ranks import Case, run_cases
from learner_ranks import LAYOUTS, Scenario, packed_step

from da3po.config.schema import LearnerConfig, OptimConfig
from da3po.conversion.convert import Proving, export_model, import_model
from da3po.conversion.source import find_source
from da3po.models.families import hf_shapes, whole_model
from da3po.models.hf_config import read_model_spec
from da3po.models.safetensors_io import CheckpointReader

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

MAKERS = {"qwen3": fixtures_hf.make_qwen3, "qwen2": fixtures_hf.make_qwen2, "llama": fixtures_hf.make_llama}
LENGTHS = ((1, 6), (3, 5), (30, 130), (4, 4))
STRUCTURE = Proving(learner=None)
"""The learner's own log-probs, which the processes leave, are compared with transformers here."""


@dataclass(frozen=True)
class Shape:
    """A model to convert. own_head_dim: width of a head that is not hidden size / heads."""

    family: str
    tied: bool
    vocab_size: int
    own_head_dim: bool

    @property
    def name(self) -> str:
        head = "wide" if self.own_head_dim else "even"
        return f"{self.family}-{'tied' if self.tied else 'untied'}-{self.vocab_size}-{head}"

    def make(self, folder: Path, **changes: Any) -> Path:
        size: dict[str, Any] = {
            "vocab_size": self.vocab_size,
            "hidden_size": 128,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "tie_word_embeddings": self.tied,
            "head_dim": 64 if self.own_head_dim else 32,  # vLLM has no smaller head on CPU
        }
        return MAKERS[self.family](folder, **size | changes)


ALL = [Shape(*values) for values in itertools.product(MAKERS, (True, False), (1003, 1024), (False, True))]
MATRIX = [(shape, layout) for shape in ALL for layout in ("single", "tp2", "pp2", "tp2pp2")]
# vLLM takes a Qwen2 head to be hidden_size / num_attention_heads wide.
IN_ENGINE = [shape for shape in ALL if not (shape.family == "qwen2" and shape.own_head_dim)]
FEW = [
    (Shape("qwen3", True, 1003, True), "tp2pp2"),
    (Shape("llama", False, 1024, False), "pp2"),
    (Shape("qwen2", True, 1003, False), "tp2"),
]


def convert_all(root: Path, wanted: Iterable[tuple[Shape, str]]) -> None:
    """Import every model, take it through its layouts, and export what the learners saved, untrained and trained."""
    wanted = list(wanted)
    for shape in {shape for shape, _ in wanted}:
        model = shape.make(root / shape.name / "model")
        other = shape.make(root / shape.name / "other")
        _scramble(other)
        import_model(model, root / shape.name / "imported", proving=STRUCTURE)
    cases = [
        Case(scenario=_scenario(root, shape, layout), imported=str(root / shape.name / "imported"))
        for shape, layout in wanted
    ]
    run_cases(cases, timeout=300.0 + 60.0 * len(cases))
    for shape, layout in wanted:
        for state in ("untrained", "trained"):
            export(root / shape.name / layout, state)


def export(folder: Path, state: str) -> None:
    export_model(
        find_source(folder / state),
        folder / f"{state}-hf",
        dtype=None,
        max_bytes=200_000,  # several files
        proving=STRUCTURE,
    )


def _scenario(root: Path, shape: Shape, layout: str) -> Scenario:
    return Scenario(
        name=layout,
        model=str(root / shape.name / "other"),
        parallel=LAYOUTS[layout],
        out=str(root / shape.name / layout),
        lengths=LENGTHS,
        optim=OptimConfig(lr=1e-3, warmup_steps=0),
        learner=LearnerConfig(device="cpu", num_threads=1),
    )


def _scramble(model: Path) -> None:
    """Other weights of the same shapes, which an import has to take the place of."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    save_file({name: 0.5 * tensor.flip(0) for name, tensor in weights.items()}, model / "model.safetensors")


def check_bytes(root: Path, shape: Shape, layout: str) -> None:
    """H03, H06: untrained weights come out as they went in; trained ones are others of the same shapes."""
    source = root / shape.name / "model"
    shapes = hf_shapes(read_model_spec(source), whole_model(read_model_spec(source)))
    before = CheckpointReader(source)
    untrained, trained = (
        CheckpointReader(root / shape.name / layout / f"{state}-hf") for state in ("untrained", "trained")
    )
    assert untrained.names() == trained.names() == before.names() == shapes.keys()
    for name, size in shapes.items():
        assert torch.equal(untrained.read(name, size), before.read(name, size)), name
    assert any(not torch.equal(trained.read(name, size), before.read(name, size)) for name, size in shapes.items())


def check_logprobs(root: Path, shape: Shape, layout: str) -> None:
    """H02, H05: transformers computes from the files what the learner computes from its weights."""
    folder = root / shape.name / layout
    scenario = _scenario(root, shape, layout)
    num_ranks = scenario.parallel.num_ranks
    seen = torch.load(folder / f"rank{num_ranks - num_ranks // scenario.parallel.pp}.pt")
    for state in ("untrained", "trained"):
        expected = transformers_logprobs(folder / f"{state}-hf", scenario)
        for got, want in zip(seen[state], expected, strict=True):
            torch.testing.assert_close(got[: len(want)], want, atol=1e-4, rtol=0)
    moved = max(float((a - b).abs().max()) for a, b in zip(seen["trained"], seen["untrained"], strict=True))
    assert moved > 1e-3  # the step did something


def transformers_logprobs(model_dir: Path, scenario: Scenario) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    found = []
    for batch in packed_step(scenario, 1).updates[0].micro_batches[0]:
        parts = []
        for begin, end in itertools.pairwise(batch.cu_seqlens.tolist()):
            with torch.no_grad():
                logits = model(batch.input_ids[None, begin:end]).logits[0]
            parts.append(logits.log_softmax(-1).gather(1, batch.labels[begin:end, None]).squeeze(1))
        found.append(torch.cat(parts))
    return found


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("convert")
    convert_all(root, FEW)
    return root


@pytest.mark.parametrize(("shape", "layout"), FEW, ids=lambda value: getattr(value, "name", value))
def test_a_model_goes_through_a_layout_unchanged_and_is_exported_as_it_was_trained(
    few: Path, shape: Shape, layout: str
) -> None:
    check_bytes(few, shape, layout)
    check_logprobs(few, shape, layout)
    # H03: and goes in again, padding and all, as it came out.
    trained = few / shape.name / layout / "trained-hf"
    import_model(trained, few / shape.name / layout / "again", proving=STRUCTURE)


@pytest.mark.slow
@pytest.mark.engine
def test_the_engine_stops_at_every_end_of_sequence_of_an_exported_model(tmp_path: Path) -> None:
    """H09: generation_config.json names 2 and 3; a copy without the file goes on past 3."""
    source = fixtures_hf.make_llama(tmp_path / "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    import_model(source, tmp_path / "imported", proving=STRUCTURE)
    folder = tmp_path / "back"
    export_model(find_source(tmp_path / "imported"), folder, dtype=None, max_bytes=10**9, proving=STRUCTURE)
    assert run_engine(folder, [7, 8, 9], only=3)["stopped"] == {"reason": "stop", "length": 1}
    (folder / "generation_config.json").unlink()
    assert run_engine(folder, [7, 8, 9], only=3)["stopped"] == {"reason": "length", "length": 8}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("convert-matrix")
    convert_all(root, MATRIX)
    return root


@pytest.mark.matrix
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("shape", "layout"), MATRIX, ids=lambda value: getattr(value, "name", value))
def test_every_model_goes_through_every_layout(matrix: Path, shape: Shape, layout: str) -> None:
    check_bytes(matrix, shape, layout)
    check_logprobs(matrix, shape, layout)


@pytest.mark.matrix
@pytest.mark.engine
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shape", IN_ENGINE, ids=lambda shape: shape.name)
def test_the_engine_loads_every_trained_model(matrix: Path, shape: Shape) -> None:
    """With the log-probs of the learner's model."""
    folder = matrix / shape.name / "tp2pp2" / "trained-hf"
    ids = list(range(4, 40))
    engine_logprobs = run_engine(folder, ids, only=3)["logprobs"]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(logprobs[index, ids[index + 1]]) for index in range(len(ids) - 1)]
    assert engine_logprobs == pytest.approx(expected, abs=1e-4)
