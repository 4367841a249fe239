"""The sending end by itself, over a link that breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from da3po.sync import SyncError
from da3po.sync.buckets import Packer
from da3po.sync.carrier import BroadcastSender
from da3po.sync.checksum import Verify
from da3po.sync.send import send_weights


class Sent:
    def wait(self) -> None:
        pass


class BreakingLink:
    """Carries what it is given until it is broken."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.broken = False
        self.sender = BroadcastSender(self)

    def broadcast(self, tensor: Tensor) -> Sent:
        if self.broken:
            raise SyncError("the other side is gone")
        return Sent()

    def least(self, tensor: Tensor) -> Sent:
        return self.broadcast(tensor)


class Channel:
    def __init__(self) -> None:
        self.link = BreakingLink()
        self.closed = False

    def connect(self) -> BreakingLink:
        return self.link

    def packer(self, bucket_bytes: int, verify: Verify) -> Packer:
        return Packer(bucket_bytes, self.link.sender, verify)

    def close(self) -> None:
        self.closed = True


def test_the_cause_comes_out_and_the_channel_is_closed_although_receivers_cannot_be_told() -> None:
    channel = Channel()

    def stream() -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.zeros(4)
        channel.link.broken = True
        raise RuntimeError("rank 1 ran out of memory")

    with pytest.raises(RuntimeError, match="rank 1 ran out of memory") as raised:
        send_weights(channel, 1, stream(), 8)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert channel.closed
