"""Reading and writing the distributed format without a process group."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.serialization import set_crc32_options

from da3po.models.archive import map_saved_tensor, map_tensor
from da3po.models.checkpoint_names import Place, place_in_checkpoint
from da3po.models.distributed_io import DistributedReader, Piece, is_distributed_checkpoint, write_distributed

WHOLE = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3)
"""Two layers of four rows."""
STACKED = "decoder.layers.mlp.linear_fc1.weight"


def piece(name: str, tensor: torch.Tensor, layer: int | None = None, first: int = 0, rows: int | None = None) -> Piece:
    return Piece(place=Place(name, layer), num_layers=2, first_row=first, num_rows=rows or len(tensor), tensor=tensor)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The layers in pieces of one and three rows, as of two ranks, and a tensor without layers."""
    pieces = [
        piece(STACKED, WHOLE[layer, rows], layer, rows.start, 4)
        for layer in (0, 1)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    write_distributed(tmp_path, [*pieces, piece("embedding", WHOLE[0].bfloat16())], {"format": 1})
    return tmp_path


@pytest.mark.parametrize(
    ("megatron", "place"),
    [
        ("embedding.word_embeddings.weight", Place("embedding.word_embeddings.weight", None)),
        ("decoder.final_layernorm.weight", Place("decoder.final_layernorm.weight", None)),
        ("decoder.layers.11.mlp.linear_fc2.weight", Place("decoder.layers.mlp.linear_fc2.weight", 11)),
        (
            "decoder.layers.3.input_layernorm.weight",
            Place("decoder.layers.self_attention.linear_qkv.layer_norm_weight", 3),
        ),
        ("decoder.layers.0.pre_mlp_layernorm.weight", Place("decoder.layers.mlp.linear_fc1.layer_norm_weight", 0)),
        (
            "decoder.layers.0.self_attention.q_layernorm.weight",
            Place("decoder.layers.self_attention.q_layernorm.weight", 0),
        ),
    ],
)
def test_where_a_parameter_is_kept(megatron: str, place: Place) -> None:
    assert place_in_checkpoint(megatron) == place


def test_pieces_are_put_together(written: Path) -> None:
    assert is_distributed_checkpoint(written)
    reader = DistributedReader(written)
    assert reader.names() == {STACKED, "embedding"}
    for layer in (0, 1):
        place = Place(STACKED, layer)
        assert reader.shape(place) == (4, 3) and reader.dtype(place) == torch.float32
        assert torch.equal(reader.read(place), WHOLE[layer])
        for rows in ((0, 1), (1, 4), (2, 3), (0, 3)):
            assert torch.equal(reader.read(place, rows), WHOLE[layer][slice(*rows)])
    assert torch.equal(reader.read(Place("embedding", None)), WHOLE[0].bfloat16())


def test_torch_and_megatrons_reader_read_what_is_written(written: Path) -> None:
    """The same format: PyTorch's own loading fills a tensor of the whole from it."""
    import torch.distributed.checkpoint as dcp

    state = {STACKED: torch.zeros(2, 4, 3), "embedding": torch.zeros(4, 3, dtype=torch.bfloat16)}
    dcp.load(state, checkpoint_id=written, no_dist=True)
    assert torch.equal(state[STACKED], WHOLE) and torch.equal(state["embedding"], WHOLE[0].bfloat16())
    assert torch.load(written / "common.pt", weights_only=True) == {"format": 1}


def test_a_checkpoint_is_cut_into_files(tmp_path: Path) -> None:
    write_distributed(tmp_path, [piece("a", WHOLE[0]), piece("b", WHOLE[1])], {}, max_bytes=10)
    assert sorted(path.name for path in tmp_path.glob("*.distcp")) == ["__0_0.distcp", "__0_1.distcp"]
    assert torch.equal(DistributedReader(tmp_path).read(Place("b", None)), WHOLE[1])


def test_what_is_missing_is_named(written: Path) -> None:
    reader = DistributedReader(written)
    with pytest.raises(ValueError, match=r"has no tensor decoder\.layers\.other"):
        reader.read(Place("decoder.layers.other", 0))
    with pytest.raises(ValueError, match="hold 0 of its 12 values"):
        reader.read(Place(STACKED, 2))


def test_a_file_that_is_cut_off_is_refused(written: Path) -> None:
    file = written / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises((ValueError, RuntimeError)):
        DistributedReader(written).read(Place("embedding", None))


class Harmful:
    """A pickle that makes its reader call something."""

    def __init__(self, *call: object) -> None:
        self._call = call

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call[0], self._call[1:]


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        ((eval, "open('/dev/null')"), r"asks for builtins\.eval"),
        ((getattr, torch.Size, "__init__"), r"asks for __init__ of <class 'torch\.Size'>"),
    ],
)
def test_an_index_runs_no_code_of_its_own(written: Path, call: tuple[object, ...], refusal: str) -> None:
    (written / ".metadata").write_bytes(pickle.dumps(Harmful(*call)))
    with pytest.raises(ValueError, match=refusal):
        DistributedReader(written)


def test_an_index_may_hold_members_of_enums_by_name(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2 pickles them so."""
    file = written / ".metadata"
    index = pickle.loads(file.read_bytes())
    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, _: (getattr, (type(member), member.name)), raising=False
    )
    file.write_bytes(pickle.dumps(index))
    assert b"getattr" in file.read_bytes()
    assert torch.equal(DistributedReader(written).read(Place(STACKED, 1)), WHOLE[1])


def test_an_index_of_something_else_is_refused(written: Path) -> None:
    (written / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="no index of a distributed checkpoint"):
        DistributedReader(written)


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("tensor", [WHOLE, WHOLE.half(), WHOLE.transpose(0, 2), WHOLE[1], torch.zeros(0, 3)])
def test_a_saved_tensor_is_mapped_and_not_loaded(
    tmp_path: Path, tensor: torch.Tensor, has_checksums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", None)
    set_crc32_options(has_checksums)
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.write(b"before")
        torch.save(tensor, stream)
    set_crc32_options(True)
    mapped = map_saved_tensor(file, 6, file.stat().st_size - 6)
    assert mapped.dtype == tensor.dtype and torch.equal(mapped, tensor)


def test_numbers_of_an_unknown_kind_are_left_to_torch(tmp_path: Path) -> None:
    torch.save(torch.arange(5), tmp_path / "file")
    assert torch.equal(map_saved_tensor(tmp_path / "file", 0, (tmp_path / "file").stat().st_size), torch.arange(5))


def test_values_need_not_begin_at_a_multiple_of_their_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" + WHOLE.numpy().tobytes())
    assert torch.equal(map_tensor(tmp_path / "file", 1, (2, 4, 3), torch.float32), WHOLE)


def test_a_mapped_tensor_is_not_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(WHOLE.numpy().tobytes())
    map_tensor(tmp_path / "file", 0, (2, 4, 3), torch.float32).zero_()
    assert torch.equal(map_tensor(tmp_path / "file", 0, (2, 4, 3), torch.float32), WHOLE)
