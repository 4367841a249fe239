"""A checkpoint is complete or it is not there."""

import json
import logging
import re
import shutil

import pytest

from da3po.checkpoint.directory import CheckpointDirectory, CheckpointError, write_state
from da3po.checkpoint.manifest import find_damage, seal
from da3po.checkpoint.run_directory import find_checkpoint, find_start
from da3po.checkpoint.saver import check_identity


def save(directory, step, payload="weights"):
    writing = directory.begin(step)
    (writing / "learner" / "model.bin").write_text(payload)
    write_state(writing, {"step": step}, "run: {}\n")
    return directory.commit(step, writing)


@pytest.fixture
def directory(tmp_path):
    return CheckpointDirectory(tmp_path / "checkpoints", keep=2)


def test_an_empty_or_missing_folder_has_no_checkpoint(directory):
    assert directory.latest() is None


def test_what_was_saved_is_found_with_its_state(directory):
    saved = save(directory, 5)
    assert directory.latest() == saved
    assert saved.state() == {"step": 5}
    assert (saved.learner / "model.bin").read_text() == "weights"


def test_steps_are_ordered_as_numbers_and_other_folders_are_no_steps(tmp_path):
    directory = CheckpointDirectory(tmp_path, keep=9)
    for step in (9, 10, 100):
        save(directory, step)
    for other in ("step_best", "step_99.tmp", "step_500_old"):
        (tmp_path / other).mkdir()
    assert directory.latest().step == 100


def test_the_newest_are_kept(tmp_path):
    directory = CheckpointDirectory(tmp_path, keep=2)
    for step in (9, 10, 100):
        save(directory, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000010", "step_000100"]


def test_nothing_is_retired_before_the_new_one_is_complete(tmp_path):
    directory = CheckpointDirectory(tmp_path, keep=1)
    save(directory, 1)
    writing = directory.begin(2)
    (writing / "learner" / "model.bin").write_text("half")
    assert directory.latest().step == 1


def damage_empty(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.unlink()


def damage_missing_file(path):
    (path / "learner" / "model.bin").unlink()


def damage_truncated_file(path):
    (path / "learner" / "model.bin").write_text("we")


def damage_empty_state(path):
    (path / "state.json").write_text("")


def damage_missing_state(path):
    (path / "state.json").unlink()


def damage_missing_manifest(path):
    (path / "manifest.json").unlink()


def damage_half_a_manifest(path):
    (path / "manifest.json").write_text('{"step": 2, "fi')


def damage_manifest_of_another_shape(path):
    (path / "manifest.json").write_text('{"files": {"state.json": {}}}')


def damage_empty_manifest(path):
    (path / "manifest.json").write_text('{"files": {}}')


def damage_list_for_a_manifest(path):
    (path / "manifest.json").write_text("[]")


def damage_folder_for_a_manifest(path):
    (path / "manifest.json").unlink()
    (path / "manifest.json").mkdir()


DAMAGES = [
    damage_manifest_of_another_shape,
    damage_empty_manifest,
    damage_list_for_a_manifest,
    damage_folder_for_a_manifest,
    damage_empty,
    damage_missing_file,
    damage_truncated_file,
    damage_empty_state,
    damage_missing_state,
    damage_missing_manifest,
    damage_half_a_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_incomplete_checkpoint_is_passed_over_and_named(directory, damage, caplog):
    save(directory, 1)
    broken = save(directory, 2)
    damage(broken.path)
    with caplog.at_level(logging.WARNING):
        assert directory.latest().step == 1
    assert "step_000002" in caplog.text
    assert directory.damaged() == [broken.path]


def test_changed_content_of_the_same_size_is_noticed_on_loading(directory):
    saved = save(directory, 1)
    (saved.learner / "model.bin").write_text("WEIGHTS")
    with pytest.raises(CheckpointError, match=r"learner/model.bin does not match its checksum"):
        saved.state()


def test_damaged_checkpoints_do_not_count_for_retention(tmp_path):
    directory = CheckpointDirectory(tmp_path, keep=1)
    save(directory, 1)
    damage_missing_file(save(CheckpointDirectory(tmp_path, keep=9), 2).path)
    save(directory, 3)
    assert directory.latest().step == 3
    assert not (tmp_path / "step_000001").exists()


def test_a_save_that_was_cut_off_is_started_afresh(directory):
    writing = directory.begin(1)
    (writing / "learner" / "leftover.bin").write_text("old")
    saved = save(directory, 1)
    assert "learner/leftover.bin" not in json.loads((saved.path / "manifest.json").read_text())["files"]


def test_a_step_saved_again_replaces_the_old_one(directory):
    save(directory, 1, "old")
    saved = save(directory, 1, "new")
    assert (saved.learner / "model.bin").read_text() == "new"


def test_the_manifest_tells_what_made_it(directory):
    writing = directory.begin(3)
    write_state(writing, {}, "run: {}\n")
    saved = directory.commit(3, writing, identity={"run.seed": 1})
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert manifest["step"] == 3 and manifest["identity"] == {"run.seed": 1}
    assert {"python", "da3po", "torch"} <= manifest["versions"].keys()
    assert manifest["files"].keys() == {"state.json", "config.yaml"}


def test_a_manifest_of_a_later_format_is_not_misread(directory):
    saved = save(directory, 1)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    (saved.path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    assert find_damage(saved.path, checksums=False) == "it has format 2, and this version reads 1"


def test_parts_of_two_steps_are_no_step(tmp_path):
    """C10: step 4 has lost its learner's part and step 3 its state, so the run goes on from 2; and if that is gone too,
    it says so and does not begin anew."""
    directory = CheckpointDirectory(tmp_path, keep=9)
    for step in (2, 3, 4):
        save(directory, step)
    shutil.rmtree(tmp_path / "step_000004" / "learner")
    (tmp_path / "step_000003" / "state.json").unlink()
    assert find_start(directory, "auto").step == 2
    shutil.rmtree(tmp_path / "step_000002")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint, only step_000003, step_000004"):
        find_start(directory, "auto")


def test_what_was_cut_off_is_cleared_and_a_sealed_save_is_completed(tmp_path):
    directory = CheckpointDirectory(tmp_path, keep=9)
    save(directory, 1)
    directory.begin(2)
    sealed = directory.begin(3)
    write_state(sealed, {"step": 3}, "")
    seal(sealed, 3, {})
    (tmp_path / ".removing-step_000000" / "learner").mkdir(parents=True)
    assert directory.clear() == [".removing-step_000000", ".writing-step_000002", ".writing-step_000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000003"]
    assert directory.latest().state() == {"step": 3}


def test_an_old_step_that_cannot_be_deleted_is_no_harm(tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise OSError(16, "Device or resource busy")

    directory = CheckpointDirectory(tmp_path, keep=1)
    save(directory, 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        save(directory, 2)
        assert directory.clear() == [".removing-step_000001"]
    assert ".removing-step_000001 could not be deleted: [Errno 16] Device or resource busy" in caplog.text
    assert [checkpoint.step for checkpoint in directory.complete()] == [2]
    assert directory.clear() == [".removing-step_000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000002"]


def test_an_old_step_that_cannot_be_renamed_stays(tmp_path, monkeypatch, caplog):
    directory = CheckpointDirectory(tmp_path, keep=1)
    save(directory, 1)
    (tmp_path / ".removing-step_000001").mkdir()
    (tmp_path / ".removing-step_000001" / "left").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda path: None)
    save(directory, 2)
    assert "old checkpoint" in caplog.text and "step_000001 could not be removed" in caplog.text
    assert directory.latest().step == 2


@pytest.mark.parametrize("name", ["run", "run/checkpoints", "run/checkpoints/step_000002"])
def test_a_checkpoint_is_found_by_its_path_or_its_run(name, tmp_path):
    directory = CheckpointDirectory(tmp_path / "run" / "checkpoints", keep=9)
    for step in (1, 2):
        save(directory, step)
    assert find_checkpoint(tmp_path / name).step == 2


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere is no checkpoint"):
        find_checkpoint(tmp_path / "nowhere")
    directory = CheckpointDirectory(tmp_path, keep=9)
    damage_missing_file(save(directory, 1).path)
    with pytest.raises(CheckpointError, match=r"step_000001 is no complete checkpoint: learner/model.bin is missing"):
        find_checkpoint(tmp_path / "step_000001")


def test_another_model_or_data_set_is_refused_with_the_reason(directory):
    saved = save(directory, 1)
    identity = {"model (its weights)": "a", "data (its prompts)": "b"}
    check_identity(saved, identity, identity)
    for key in identity:
        with pytest.raises(
            CheckpointError, match=re.escape(f"was made with {key}='{identity[key]}', this run has 'x'")
        ):
            check_identity(saved, identity, identity | {key: "x"})
