from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import LARGE_BYTES, Bucket, BucketHeader, Packer, names_digest, unpack
from da3po.sync.checksum import RunningChecksum, Verify, checksum


class Memory:
    """Of this process; payloads may be sent from anywhere, or from it alone. `kept` is held by a receiver."""

    device = torch.device("cpu")

    def __init__(self, *, own_memory: bool = False) -> None:
        self.own_memory = own_memory
        self.kept: set[int] = set()

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def may_reuse(self, buffer: Tensor) -> bool:
        return buffer.data_ptr() not in self.kept


ANYWHERE = Memory()


def open_up(bucket: Bucket, arrived: Tensor) -> list[tuple[str, Tensor]]:
    """What a receiver makes of a payload."""
    pieces = arrived.split(list(bucket.header.pieces))
    return unpack(bucket.header, arrived, [checksum(piece, bucket.header.verify) for piece in pieces])


def weights(num: int = 6) -> list[tuple[str, Tensor]]:
    """Tensors of several dtypes and odd sizes, so that padding is needed."""
    dtypes = [torch.float32, torch.bfloat16, torch.int8, torch.float64]
    return [(f"layer.{i}", torch.arange(3 + 5 * i).to(dtypes[i % 4])) for i in range(num)]


def payload(bucket: Bucket) -> Tensor:
    """A copy, in one piece, as a receiver has it."""
    return torch.cat(bucket.pieces)


def travel(pairs: list[tuple[str, Tensor]], bucket_bytes: int) -> list[list[tuple[str, Tensor]]]:
    """Through headers as JSON and payloads as bytes, as on the wire."""
    arrived = []
    for bucket in Packer(bucket_bytes, ANYWHERE).pack(iter(pairs)):
        header = BucketHeader.from_json(bucket.header.to_json())
        assert header == bucket.header
        arrived.append(open_up(bucket, payload(bucket)))
    return arrived


@pytest.mark.parametrize("bucket_bytes", [1, 1024, 1 << 30])
def test_every_bucket_size_gives_the_same_tensors(bucket_bytes: int) -> None:
    sent = [*weights(), ("matrix", torch.randn(40, 30)), ("scalar", torch.tensor(2.5)), ("empty", torch.empty(0, 4))]
    arrived = [pair for bucket in travel(sent, bucket_bytes) for pair in bucket]
    assert [name for name, _ in arrived] == [name for name, _ in sent]
    for (_, ours), (_, theirs) in zip(sent, arrived, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(ours, theirs)


def test_buckets_are_filled_up_to_the_limit_and_a_larger_tensor_travels_alone() -> None:
    sent = [
        (name, torch.zeros(size, dtype=torch.uint8)) for name, size in [("a", 16), ("b", 16), ("big", 99), ("c", 16)]
    ]
    names = [[name for name, _ in bucket] for bucket in travel(sent, 32)]
    assert names == [["a", "b"], ["big"], ["c"]]


def test_a_tensor_that_is_not_contiguous_travels_by_value() -> None:
    matrix = torch.arange(12.0).view(3, 4).t()
    ((_, arrived),) = travel([("m", matrix)], 1 << 20)[0]
    assert torch.equal(arrived, matrix)


def test_two_buckets_are_alive_at_a_time() -> None:
    packed = Packer(16, ANYWHERE).pack((str(i), torch.full((4,), float(i))) for i in range(3))
    first = next(packed)
    before = payload(first)
    next(packed)
    assert torch.equal(payload(first), before)


def test_a_large_tensor_travels_from_where_it_lies_and_small_ones_are_bundled() -> None:
    small, large, last = torch.ones(2), torch.arange(8.0), torch.zeros(3)
    bundle, alone, rest = Packer(32, ANYWHERE).pack(iter([("small", small), ("large", large), ("last", last)]))
    assert (bundle.header.names, alone.header.names, rest.header.names) == (("small",), ("large",), ("last",))
    assert alone.pieces[0].data_ptr() == large.data_ptr()
    assert alone.header.checksum == checksum(large.view(torch.uint8))
    assert bundle.pieces[0].data_ptr() != small.data_ptr()


def test_large_tensors_are_pieces_of_a_bucket_and_are_not_copied() -> None:
    large = [torch.full((LARGE_BYTES // 4,), float(i)) for i in range(2)]
    turned = torch.randn(1024, 512).t()  # as large, but not in one piece
    sent = [("a", torch.ones(3)), ("b", large[0]), ("c", torch.ones(1)), ("d", turned), ("e", large[1])]
    (bucket,) = Packer(1 << 24, ANYWHERE).pack(iter(sent))
    assert bucket.header.pieces == (16, LARGE_BYTES, 16 + 4 * 1024 * 512, LARGE_BYTES)
    assert [bucket.pieces[i].data_ptr() for i in (1, 3)] == [one.data_ptr() for one in large]
    arrived = open_up(bucket, payload(bucket))
    assert all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in zip(sent, arrived, strict=True))
    damaged = payload(bucket)
    damaged[-1] ^= 1
    with pytest.raises(SyncError, match=r"checksum of the bucket a \.\. e"):
        open_up(bucket, damaged)


@pytest.mark.parametrize(("verify", "seen"), [("full", 48), ("sampled", 3), ("off", 0)])
def test_how_much_is_verified(verify: Verify, seen: int) -> None:
    """A tensor of 48 rows of the checksum's; one of them is damaged."""
    tensor = torch.zeros(48, 8192, dtype=torch.int64)
    (bucket,) = Packer(1 << 20, ANYWHERE, verify).pack(iter([("w", tensor)]))
    assert BucketHeader.from_json(bucket.header.to_json()) == bucket.header
    found = 0
    for row in range(48):
        damaged = payload(bucket)
        damaged.view(torch.int64)[8192 * row + 5] = 1
        try:
            open_up(bucket, damaged)
        except SyncError:
            found += 1
    assert found == seen


@pytest.mark.parametrize("verify", ["full", "sampled", "off"])
def test_a_copy_that_is_summed_as_it_is_made_is_verified_the_same(verify: Verify) -> None:
    pairs = [("turned", torch.randn(300, 5000).t()), ("long", torch.randn(3_000_001)), ("end", torch.ones(1))]
    (bucket,) = Packer(1 << 25, ANYWHERE, verify).pack(iter(pairs))
    assert bucket.header.checksum == checksum(payload(bucket), verify)
    assert len(open_up(bucket, payload(bucket))) == 3


def test_parameters_travel_without_their_graph() -> None:
    pairs = [("small", torch.nn.Parameter(torch.ones(2))), ("large", torch.nn.Parameter(torch.ones(8)))]
    for bucket in Packer(32, ANYWHERE).pack(iter(pairs)):
        assert not payload(bucket).requires_grad


def test_buffers_are_kept_from_stream_to_stream() -> None:
    packer = Packer(32, ANYWHERE)
    pairs = [(str(i), torch.ones(6)) for i in range(3)]
    first, second = ([bucket.pieces[0].data_ptr() for bucket in packer.pack(iter(pairs))] for _ in range(2))
    assert len(set(first)) == 2
    assert set(first) == set(second)


def test_where_memory_must_be_its_own_everything_is_copied_into_one_piece() -> None:
    large = torch.arange(LARGE_BYTES // 4)
    bundle, alone = Packer(32, Memory(own_memory=True)).pack(iter([("small", torch.ones(2)), ("large", large)]))
    assert [len(bucket.pieces) for bucket in (bundle, alone)] == [1, 1]
    assert alone.pieces[0].data_ptr() != large.data_ptr()
    assert torch.equal(open_up(alone, payload(alone))[0][1], large)


def test_a_buffer_that_is_kept_elsewhere_is_replaced() -> None:
    memory = Memory(own_memory=True)
    packed = Packer(16, memory).pack((str(i), torch.full((4,), float(i))) for i in range(3))
    first = next(packed)
    memory.kept.add(first.pieces[0].data_ptr())
    next(packed)
    third = next(packed)
    assert third.pieces[0].data_ptr() != first.pieces[0].data_ptr()
    assert torch.equal(open_up(first, payload(first))[0][1], torch.zeros(4))


def test_one_flipped_bit_is_found_and_named() -> None:
    bucket = next(Packer(1 << 20, ANYWHERE).pack(iter(weights())))
    damaged = payload(bucket)
    damaged[37] ^= 4
    with pytest.raises(SyncError, match=r"checksum of the bucket layer\.0 \.\. layer\.5"):
        open_up(bucket, damaged)


@pytest.mark.parametrize("num_words", [2, 8192, 8194, 3 * 8192 + 10])
def test_checksum_sees_any_two_words_exchanged(num_words: int) -> None:
    words = torch.randint(-(2**62), 2**62, (num_words,))
    exchanged = words.clone()
    i, j = (0, num_words - 1) if num_words < 8192 else (5, num_words - 8)
    exchanged[i], exchanged[j] = words[j], words[i]
    assert checksum(words.view(torch.uint8)) != checksum(exchanged.view(torch.uint8))


def test_checksum_sees_rows_exchanged_and_length() -> None:
    words = torch.randint(-(2**62), 2**62, (2, 8192))
    assert checksum(words.view(-1).view(torch.uint8)) != checksum(words.flip(0).reshape(-1).view(torch.uint8))
    assert checksum(torch.zeros(16, dtype=torch.uint8)) != checksum(torch.zeros(32, dtype=torch.uint8))


@pytest.mark.parametrize("num_bytes", [16, 32, 8192 * 8, 3 * 8192 * 8 + 48])
def test_checksum_is_the_documented_one(num_bytes: int) -> None:
    """Both ends compute it, perhaps on different machines and releases: lengths, row sums, column sums, rest."""
    payload = np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)
    words = payload.view(np.int64)
    rows = words[: words.size // 8192 * 8192].reshape(-1, 8192)
    rest = words[rows.size :]
    expected = hashlib.blake2b(num_bytes.to_bytes(8, "little"), digest_size=16)
    expected.update(np.concatenate([rows.sum(1), rows.sum(0), rest]).tobytes())
    assert checksum(torch.from_numpy(payload)) == expected.hexdigest()


def test_checksum_is_the_same_however_the_bytes_are_written() -> None:
    payload = torch.randint(256, (3 * (1 << 20) + 48,), dtype=torch.uint8)
    running = RunningChecksum(payload)
    for end in (16, 70_000, 70_000, 2_000_000, 3 * (1 << 20)):
        running.advance(end)
    assert running.digest(payload.numel()) == checksum(payload)


def test_a_bundle_that_is_summed_as_it_is_filled_has_the_checksum_of_its_bytes() -> None:
    pairs = [*weights(), ("long", torch.randn(300_001)), ("turned", torch.randn(300, 500).t()), ("end", torch.ones(1))]
    (bucket,) = Packer(1 << 23, ANYWHERE).pack(iter(pairs))
    assert bucket.header.checksum == checksum(payload(bucket))


def test_padding_does_not_leak_old_bytes_into_the_checksum() -> None:
    pairs = [("a", torch.ones(3, dtype=torch.uint8)), ("b", torch.ones(3, dtype=torch.uint8))]
    packer = Packer(1 << 10, ANYWHERE)
    (clean,) = list(packer.pack(iter(pairs)))
    list(packer.pack(iter([("noise", torch.full((64,), 255, dtype=torch.uint8))])))
    list(packer.pack(iter([("noise", torch.full((64,), 255, dtype=torch.uint8))])))
    (again,) = list(packer.pack(iter(pairs)))
    assert clean.header == again.header


def test_a_name_twice_and_a_strange_dtype_are_refused() -> None:
    with pytest.raises(SyncError, match=r"has w twice"):
        list(Packer(16, ANYWHERE).pack(iter([("w", torch.ones(1)), ("w", torch.ones(1))])))
    with pytest.raises(SyncError, match=r"w has dtype torch\.complex64"):
        list(Packer(16, ANYWHERE).pack(iter([("w", torch.ones(1, dtype=torch.complex64))])))


def test_names_digest_ignores_order_and_split() -> None:
    one = [bucket.header.proof for bucket in Packer(1 << 20, ANYWHERE).pack(iter(weights()))]
    many = [bucket.header.proof for bucket in Packer(1, ANYWHERE).pack(reversed(weights()))]
    assert names_digest(one) == names_digest(many)
    assert names_digest(one) != names_digest(many[1:])
