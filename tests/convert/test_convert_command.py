"""`da3po convert`: what it takes, what it writes, what its proof catches."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fixtures_hf
import pytest
import torch
from safetensors.torch import load_file, save_file

from da3po import convert
from da3po.checkpoint.directory import CheckpointDirectory, CheckpointError, write_state
from da3po.config.schema import ConfigError
from da3po.conversion import convert as conversion
from da3po.conversion.convert import Proving, export_model, import_model
from da3po.conversion.lock import locked
from da3po.conversion.proof import EXPORT, IMPORT, prove
from da3po.conversion.source import find_source, held
from da3po.learner.megatron.probe import ProbeError, learner_logprobs
from da3po.models.safetensors_io import CheckpointReader

STRUCTURE = Proving(learner=None)
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 103}
FILES = {
    "generation_config.json": '{"eos_token_id": [2, 3]}\n',
    "special_tokens_map.json": '{"eos_token": "</s>"}',
    "chat_template.jinja": "{{ messages }}\n",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fixtures_hf.make_qwen3(tmp_path_factory.mktemp("hf") / "model", head_dim=16, **SMALL)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def imported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "qwen"
    import_model(model, folder, proving=STRUCTURE)
    return folder


def export(source: Path, target: Path, **options: Any) -> None:
    settings = {"dtype": None, "max_bytes": 10**9, "proving": STRUCTURE} | options
    export_model(find_source(source), target, **settings)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "conversion.json").read_text()))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("vocab_size", [103, 128])
@pytest.mark.parametrize("make", [fixtures_hf.make_qwen3, fixtures_hf.make_qwen2, fixtures_hf.make_llama])
def test_every_family_and_shape_comes_back_byte_for_byte(
    make: Any, vocab_size: int, head_dim: int, tied: bool, tmp_path: Path
) -> None:
    """H03, H05: 103 rows stay 103, and heads have the width that the config gives them."""
    source = make(
        tmp_path / "hf", **SMALL | {"vocab_size": vocab_size, "head_dim": head_dim, "tie_word_embeddings": tied}
    )
    import_model(source, tmp_path / "megatron", proving=STRUCTURE)
    export(tmp_path / "megatron", tmp_path / "back")
    before, after = weights(source), weights(tmp_path / "back")
    assert before.keys() == after.keys() and ("lm_head.weight" in after) is not tied
    assert all(
        torch.equal(before[name], tensor) and tensor.dtype == before[name].dtype for name, tensor in after.items()
    )
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["head_dim"], config["vocab_size"]) == (head_dim, vocab_size)


def test_files_beside_the_weights_come_back_byte_for_byte(imported: Path, tmp_path: Path) -> None:
    """H09."""
    export(imported, tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_text() for name in FILES} == FILES


def test_the_report_says_what_was_proved(model: Path, imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "back")
    record = report(tmp_path / "back")
    assert record["passed"] and set(record["checks"]) == {"key set", "shapes", "total bytes", "round trip"}
    assert record["tensors"].keys() == weights(model).keys()
    assert record["tensors"]["model.norm.weight"]["shape"] == [32]
    assert record["conversion"]["source"] == str(imported) and record["conversion"]["step"] == 0
    assert "Every check passed." in (tmp_path / "back" / "conversion.md").read_text()


def test_large_models_are_cut_into_files_with_an_index(model: Path, imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "back", max_bytes=20_000)
    assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 2
    reader = CheckpointReader(tmp_path / "back")
    assert all(torch.equal(reader.read(name, tuple(t.shape)), t) for name, t in weights(model).items())


def test_a_dtype_can_be_chosen(model: Path, imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "back", dtype="bfloat16")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert all(torch.equal(t, weights(model)[name].bfloat16()) for name, t in weights(tmp_path / "back").items())


def run_with(folder: Path, imported: Path, *steps: int) -> Path:
    """A run directory with checkpoints of those steps."""
    checkpoints = CheckpointDirectory(folder / "checkpoints", keep=10)
    for step in steps:
        writing = checkpoints.begin(step)
        shutil.copytree(imported / "learner", writing / "learner", dirs_exist_ok=True)
        write_state(writing, {}, "")
        checkpoints.commit(step, writing)
    return folder


def test_a_run_gives_its_newest_step_or_the_one_asked_for(imported: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", imported, 9, 100)
    half = run / "checkpoints" / "step_000200"
    half.mkdir()  # a step without a manifest is none
    assert find_source(run).step == 100 and find_source(run).title == "run-step_000100"
    assert find_source(run, 9).step == 9
    assert find_source(run / "checkpoints" / "step_000009").step == 9
    with pytest.raises(CheckpointError, match="no complete checkpoint of step 5; complete steps: 9, 100"):
        find_source(run, 5)
    with pytest.raises(CheckpointError, match="no complete checkpoint of step 200"):
        find_source(run, 200)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_source(tmp_path)


def test_a_checkpoint_without_the_models_files_asks_for_them(model: Path, imported: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", imported, 1)
    shutil.rmtree(run / "checkpoints" / "step_000001" / "learner" / "hf")
    folder = run / "checkpoints" / "step_000001" / "learner"
    with pytest.raises(CheckpointError, match=r"does not hold the files of its model .* with --model"):
        find_source(folder)
    export_model(find_source(folder, model=model), tmp_path / "out", dtype=None, max_bytes=10**9, proving=STRUCTURE)
    assert weights(tmp_path / "out").keys() == weights(model).keys()


def test_a_step_that_the_run_removes_can_still_be_read(imported: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", imported, 1)
    with held(find_source(run), tmp_path) as source:
        shutil.rmtree(run)
        export_model(source, tmp_path / "out", dtype=None, max_bytes=10**9, proving=STRUCTURE)
    assert report(tmp_path / "out")["conversion"]["source"].endswith("run/checkpoints/step_000001")
    assert not list(tmp_path.glob(".da3po-held-*"))


def test_a_step_that_is_removed_before_it_is_held_is_refused(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path / "run", imported, 1)
    source = find_source(run)

    def remove(*_: object) -> None:
        shutil.rmtree(run)
        raise FileNotFoundError(2, "No such file or directory")

    for change in (lambda: monkeypatch.setattr(os, "link", remove), monkeypatch.undo):
        change()
        with pytest.raises(CheckpointError, match="step_000001/learner went away"), held(source, tmp_path):
            pass
    assert not list(tmp_path.glob(".da3po-held-*"))


def test_where_there_are_no_links_files_are_read_in_their_place(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    source = find_source(imported)
    with held(source, tmp_path) as kept:
        assert kept == source


def damage(folder: Path, name: str) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors[name].view(-1)[5] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"])
@pytest.mark.parametrize("direction", [EXPORT, IMPORT])
def test_the_proof_sees_a_single_changed_value(direction: Any, name: str, imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "out")
    damage(tmp_path / "out", name)
    proof = prove(imported / "learner", tmp_path / "out", direction, learner=None, tolerance=1e-4)
    assert [check.name for check in proof.checks if not check.passed] == ["round trip"]


def test_the_proof_sees_tensors_that_are_missing_too_many_or_of_another_shape(imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.safetensors")
    tensors = load_file(file)
    tensors["extra"] = torch.zeros(2)
    tensors["model.norm.weight"] = torch.ones(31)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, file)
    proof = prove(imported / "learner", tmp_path / "out", EXPORT, learner=None, tolerance=1e-4)
    failed = {check.name: check.detail for check in proof.checks if not check.passed}
    assert failed.keys() == {"key set", "total bytes", "shapes"}
    assert "up_proj.weight is missing; extra is too much" in failed["key set"]
    assert "(31,)" in failed["shapes"]


@pytest.mark.parametrize("found", [1e-3, float("nan")])
def test_the_proof_compares_log_probs(found: float, imported: Path, tmp_path: Path) -> None:
    export(imported, tmp_path / "out")

    def learner(_: Path, model_dir: Path, probe: Any, __: Any) -> torch.Tensor:
        from da3po.conversion.probe import transformers_logprobs

        return transformers_logprobs(model_dir, probe) + found

    passed = [
        prove(imported / "learner", tmp_path / "out", EXPORT, learner=learner, tolerance=tolerance).passed
        for tolerance in (1e-2, 1e-4)
    ]
    assert passed == [found == 1e-3, False]


def test_what_fails_its_proof_is_left_under_another_name(
    model: Path, imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_badly(checkpoint: Path, spec: Any, target: Path, *rest: Any) -> None:
        original(checkpoint, spec, target, *rest)
        damage(target, "model.norm.weight")

    original = conversion.export_weights
    monkeypatch.setattr(conversion, "export_weights", write_badly)
    command = ["export", str(imported), str(tmp_path / "out"), "--no-logprobs"]
    assert convert.main(command) == 1
    assert "did not pass its proof" in capsys.readouterr().err
    partial = tmp_path / "out.partial"
    assert not (tmp_path / "out").exists()
    assert report(partial)["passed"] is False and weights(partial).keys() == weights(model).keys()
    assert "do not use this model" in (partial / "conversion.md").read_text()
    assert convert.main(command) == 2  # and it is not written over either
    assert "did not pass its proof; look at it" in capsys.readouterr().err


def test_nothing_is_written_over_but_what_was_cut_off(imported: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "model.safetensors").write_bytes(b"half")
    export(imported, tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(ConfigError, match="is there already"):
        export(imported, tmp_path / "out")


def test_one_target_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Four of them, each of which would see what another leaves half done."""
    script = (
        "import pathlib, sys, time\nfrom da3po.conversion.lock import locked\ntarget = pathlib.Path(sys.argv[1])\n"
        "for _ in range(25):\n    with locked(target):\n        target.mkdir()\n        time.sleep(0.001)\n"
        "        target.rmdir()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_second_converter_waits_for_the_first(
    command: str, model: Path, imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = threading.Event()

    def first() -> None:
        with locked(tmp_path / "out"):
            taken.set()
            time.sleep(0.2)
            (tmp_path / "out").mkdir()

    thread = threading.Thread(target=first)
    thread.start()
    taken.wait()
    source = imported if command == "export" else model
    assert convert.main([command, str(source), str(tmp_path / "out"), "--no-logprobs"]) == 2
    assert "is there already" in capsys.readouterr().err
    thread.join()


def test_a_target_that_cannot_be_locked_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".out.lock").mkdir()  # whoever else it belongs to
    assert convert.main(["import", str(model), str(tmp_path / "out")]) == 2
    assert f"{tmp_path / 'out'} cannot be written: [Errno 21] Is a directory" in capsys.readouterr().err
    assert convert.main(["import", str(model), "/"]) == 2


def test_where_there_are_no_locks_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "out"):
        pass
    assert "cannot be locked ([Errno 37] No locks available)" in caplog.text


def changed(model: Path, target: Path, **tensors: torch.Tensor | None) -> Path:
    shutil.copytree(model, target)
    stored = load_file(target / "model.safetensors") | tensors
    save_file({name: value for name, value in stored.items() if value is not None}, target / "model.safetensors")
    return target


def test_a_model_with_other_tensors_than_its_config_says_is_refused(model: Path, tmp_path: Path) -> None:
    missing = changed(model, tmp_path / "missing", **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ConfigError, match=r"has no model\.layers\.1\.mlp\.up_proj\.weight, which its config"):
        import_model(missing, tmp_path / "out", proving=STRUCTURE)
    biased = changed(model, tmp_path / "biased", **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    with pytest.raises(ConfigError, match=r"q_proj\.bias, which no qwen3 model of its config has"):
        import_model(biased, tmp_path / "out", proving=STRUCTURE)


def test_copies_and_constants_in_the_file_are_passed_over(model: Path, tmp_path: Path) -> None:
    """Qwen3-0.6B is tied and has lm_head.weight all the same; old Llama files have rotary frequencies."""
    more = {"lm_head.weight": torch.zeros(103, 32), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    import_model(changed(model, tmp_path / "more", **more), tmp_path / "imported", proving=STRUCTURE)
    export(tmp_path / "imported", tmp_path / "back")
    assert weights(tmp_path / "back").keys() == weights(model).keys()


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0}}, "rope type 'dynamic'"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], objection: str
) -> None:
    """H08."""
    other = shutil.copytree(model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | change))
    assert convert.main(["import", str(other), str(tmp_path / "out"), "--no-logprobs"]) == 2
    assert objection in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_layout_can_be_checked_on_import(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", str(model), str(tmp_path / "out"), "--no-logprobs"]
    assert convert.main([*command, "parallel.tp=3"]) == 2
    assert "parallel.tp=3" in capsys.readouterr().err
    assert convert.main([*command, "parallel.tp=2", "parallel.pp=2"]) == 0


class FakeHub:
    """Stands for huggingface_hub.HfApi."""

    calls: list[tuple[str, dict[str, Any]]]
    error: Exception | None = None

    def __init__(self, token: str) -> None:
        FakeHub.calls = [("token", {"token": token})]

    def create_repo(self, repository: str, **options: Any) -> str:
        FakeHub.calls.append(("create_repo", {"repository": repository, **options}))
        return f"https://hub/{repository}"

    def upload_folder(self, **options: Any) -> None:
        if FakeHub.error:
            raise FakeHub.error
        FakeHub.calls.append(("upload_folder", options))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[FakeHub]:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHub)
    monkeypatch.setattr(FakeHub, "error", None)
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    return FakeHub


def test_a_proved_model_is_uploaded_as_a_private_one(imported: Path, tmp_path: Path, hub: type[FakeHub]) -> None:
    out = tmp_path / "out"
    assert convert.main(["export", str(imported), str(out), "--no-logprobs", "--push", "me/model"]) == 0
    token, create, upload = hub.calls
    assert token == ("token", {"token": "secret-token"})
    assert create == ("create_repo", {"repository": "me/model", "private": True, "exist_ok": True})
    assert upload[1]["folder_path"] == out and upload[1]["repo_id"] == "me/model"
    assert set(upload[1]["ignore_patterns"]) == {"conversion.json", "conversion.md"}
    assert not [path for path in out.iterdir() if b"secret-token" in path.read_bytes()]


def test_an_upload_that_fails_leaves_the_model(
    imported: Path, tmp_path: Path, hub: type[FakeHub], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.error = OSError("no route to host")
    out = tmp_path / "out"
    assert convert.main(["export", str(imported), str(out), "--no-logprobs", "--push", "me/model"]) == 1
    assert "was not uploaded: no route to host" in capsys.readouterr().err
    assert report(out)["passed"]


def test_an_upload_without_a_token_is_refused_before_anything_is_written(
    imported: Path, tmp_path: Path, hub: type[FakeHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert convert.main(["export", str(imported), str(tmp_path / "out"), "--push", "me/model"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.distributed
def test_the_learners_model_and_transformers_agree_or_the_proof_fails(imported: Path, tmp_path: Path) -> None:
    """With weights rounded on the way out; and two projections that changed places are seen in log-probs too."""
    known: dict[str | None, torch.Tensor] = {}

    def learner(checkpoint: Path, model_dir: Path, probe: Any, rounded_to: str | None) -> torch.Tensor:
        if rounded_to not in known:
            known[rounded_to] = learner_logprobs(checkpoint, model_dir, probe, rounded_to)
        return known[rounded_to]

    proving = Proving(learner=learner)
    proof = export_model(find_source(imported), tmp_path / "out", dtype="bfloat16", max_bytes=10**9, proving=proving)
    checks = {check.name: check for check in proof.checks}
    assert checks["log-probs"].passed and set(known) == {"bfloat16"}
    (file,) = (tmp_path / "out").glob("*.safetensors")
    tensors = load_file(file)
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]
    save_file(tensors, file)
    again = prove(imported / "learner", tmp_path / "out", EXPORT, learner=learner, tolerance=1e-4)
    assert {check.name for check in again.checks if not check.passed} == {"round trip", "log-probs"}


def test_a_learner_that_cannot_be_run_says_nothing_of_the_model(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise ProbeError("no Megatron here")

    monkeypatch.setattr(convert, "learner_logprobs", broken)
    command = ["export", str(imported), str(tmp_path / "out")]
    assert convert.main(command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "da3po: no Megatron here"
    assert not (tmp_path / "out").exists()
    assert convert.main([*command, "--no-logprobs"]) == 0  # what is left of the first is no conversion that failed
