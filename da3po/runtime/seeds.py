"""Everything random derives from the run's seed through one pure function."""

from __future__ import annotations

import hashlib

_MASK = (1 << 63) - 1


def sample_seed(run_seed: int, stream: str, key: int, index: int) -> int:
    """A 63-bit seed that depends on all four arguments and on nothing else.

    run_seed: run.seed. stream: who draws ("rollout", "eval", ...), so that two users of the same key differ.
    key: which prompt (its draw, its row). index: which sample of it.

    The seed is the first 8 bytes of BLAKE2b over the arguments, so neighbouring keys give unrelated seeds and a
    repeated run, on any machine, gives the same ones.
    """
    text = f"{run_seed}\x1f{stream}\x1f{key}\x1f{index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") & _MASK
