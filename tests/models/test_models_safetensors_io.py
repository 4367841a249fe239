from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from da3po.models.safetensors_io import INDEX, SINGLE, CheckpointReader, plan_files, write_file, write_index

TENSORS = {
    "embed": torch.arange(12.0).reshape(4, 3),
    "norm": torch.tensor([0.5, 1.5, 2.5]),
    "head": torch.arange(6.0).reshape(2, 3) - 7,
}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def write(directory: Path, dtype: torch.dtype, **limits: int) -> list[str]:
    (files,) = plan_files([SHAPES], dtype, **limits)
    stream = iter(TENSORS.items())
    for plan in files:
        write_file(directory, plan, dtype, stream)
    write_index(directory, [files], dtype)
    return [plan.name for plan in files]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_file_reads_back_with_the_safetensors_package(tmp_path: Path, dtype: torch.dtype) -> None:
    assert write(tmp_path, dtype) == [SINGLE]
    read = load_file(tmp_path / SINGLE)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor.to(dtype)) for name, tensor in TENSORS.items())
    assert not (tmp_path / INDEX).exists()


def test_the_same_tensors_give_the_same_bytes_as_the_package(tmp_path: Path) -> None:
    """Tensors in the package's order (largest alignment, then name), so that only the header could differ."""
    one = {"a": torch.ones(2, 2), "b": torch.zeros(3)}
    save_file(one, tmp_path / "theirs", metadata={"format": "pt"})
    ((plan,),) = plan_files([{name: tuple(tensor.shape) for name, tensor in one.items()}], torch.float32)
    write_file(tmp_path, plan, torch.float32, iter(one.items()))
    assert (tmp_path / SINGLE).read_bytes() == (tmp_path / "theirs").read_bytes()


def test_several_files_have_an_index(tmp_path: Path) -> None:
    """A limit of 60 bytes: 48 bytes of embed leave no room for the head, but 12 for the norm."""
    names = write(tmp_path, torch.float32, max_bytes=60)
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == 84
    assert index["weight_map"] == {"embed": names[0], "norm": names[0], "head": names[1]}
    reader = CheckpointReader(tmp_path)
    assert reader.names() == TENSORS.keys()
    assert all(torch.equal(reader.read(name, SHAPES[name]), tensor) for name, tensor in TENSORS.items())


def test_a_tensor_above_the_limit_has_a_file_of_its_own() -> None:
    (files,) = plan_files([SHAPES], torch.float32, max_bytes=10)
    assert [list(plan.shapes) for plan in files] == [["embed"], ["norm"], ["head"]]


def test_stages_never_share_a_file() -> None:
    first, second = plan_files([{"embed": (4, 3)}, {"norm": (3,)}], torch.float32)
    assert [plan.name for plan in (*first, *second)] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def test_a_stream_out_of_step_with_the_plan_is_refused(tmp_path: Path) -> None:
    ((plan,),) = plan_files([SHAPES], torch.float32)
    with pytest.raises(ValueError, match=r"expected embed \(4, 3\), got norm \(3,\)"):
        write_file(tmp_path, plan, torch.float32, iter([("norm", TENSORS["norm"])]))


def test_reader_names_what_is_missing_or_of_another_shape(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has neither"):
        CheckpointReader(tmp_path)
    save_file(TENSORS, tmp_path / SINGLE)
    reader = CheckpointReader(tmp_path)
    with pytest.raises(ValueError, match="no tensor bias"):
        reader.read("bias", (3,))
    with pytest.raises(ValueError, match=r"norm has shape \(3,\), config.json makes it \(4,\)"):
        reader.read("norm", (4,))


def test_a_file_that_is_cut_off_or_holds_other_numbers_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / SINGLE)
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[:-4])
    reader = CheckpointReader(tmp_path)
    last = max(TENSORS, key=lambda name: reader._header(SINGLE).entries[name]["data_offsets"][1])
    with pytest.raises(ValueError, match="cut off"):
        reader.read(last, SHAPES[last])
    (tmp_path / SINGLE).write_bytes(whole[:20])
    with pytest.raises(ValueError, match="no safetensors file, or is cut off"):
        CheckpointReader(tmp_path)
    save_file({"norm": torch.ones(3, dtype=torch.int8)}, tmp_path / SINGLE)
    with pytest.raises(ValueError, match="norm is I8; weights are F32, BF16, F16"):
        CheckpointReader(tmp_path).read("norm", (3,))
