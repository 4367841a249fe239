"""The wire: one link per pipeline stage, on a store that the learner hosts.

Links are made on first use, because making one waits for all its members and the address of the store has to travel to
the receivers first.
"""

from __future__ import annotations

import torch.distributed as dist

from da3po.sync import SyncError
from da3po.sync.buckets import Packer
from da3po.sync.checksum import Verify
from da3po.sync.link import ReceiverLink, SourceLink, joined_key
from da3po.sync.memory import Memory
from da3po.sync.store import join_store, read_plan


class SourceChannel:
    """The sending end of one stage. The plan and all receivers are looked up in the store."""

    def __init__(self, store: dist.Store, address: str, stage: int, timeout: float) -> None:
        self._store = store
        self._address = address
        self._timeout = timeout
        self._link: SourceLink | None = None
        self._packer: Packer | None = None
        self.stage = stage
        self.plan = read_plan(store)
        if not 0 <= stage < self.plan.num_stages:
            raise SyncError(f"stage {stage} is none of the channel's {self.plan.num_stages}")

    def connect(self) -> SourceLink:
        """The link; the first call waits for all receivers. Raises SyncError naming those that did not come."""
        if self._link is None:
            try:
                self._link = SourceLink(self._store, self._address, self.stage, self.plan, self._timeout)
            except RuntimeError as error:
                missing = [
                    i for i in range(self.plan.num_receivers) if not self._store.check([joined_key(self.stage, 1 + i)])
                ]
                raise SyncError(
                    f"stage {self.stage}: no weight channel within {self._timeout:g} s (sync.timeout); "
                    f"receivers that did not come: {missing or 'none'}: {error}"
                ) from error
        return self._link

    def packer(self, bucket_bytes: int, verify: Verify) -> Packer:
        """The packer for this channel's memory, the same one as long as it is asked for the same."""
        if self._packer is None or (self._packer.bucket_bytes, self._packer.verify) != (bucket_bytes, verify):
            self._packer = Packer(bucket_bytes, self.connect().sender, verify)
        return self._packer

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._packer = None


class ReceiverChannels:
    """The receiving end of every stage."""

    def __init__(self, address: str, receiver: int, timeout: float) -> None:
        self._store = join_store(address, timeout)
        self._address = address
        self._timeout = timeout
        self._links: tuple[ReceiverLink, ...] = ()
        self.memory = Memory()
        self.receiver = receiver
        self.plan = read_plan(self._store)
        if not 0 <= receiver < self.plan.num_receivers:
            raise SyncError(f"receiver {receiver} is none of the channel's {self.plan.num_receivers}")

    def connect(self) -> tuple[ReceiverLink, ...]:
        """A link to each stage's source, made at the first call, which waits for the sources. Raises SyncError."""
        if not self._links:
            try:
                self._links = tuple(
                    ReceiverLink(
                        self._store, self._address, stage, self.receiver, self.plan, self._timeout, self.memory
                    )
                    for stage in range(self.plan.num_stages)
                )
            except RuntimeError as error:
                raise SyncError(
                    f"receiver {self.receiver}: no weight channel within {self._timeout:g} s (sync.timeout): {error}"
                ) from error
        return self._links

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links = ()
        self.memory = Memory()
