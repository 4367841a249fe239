"""Versioned publication of weights: from one source per pipeline stage to every engine, in checked buckets.

    learner                                                     engines
    stage 0 source ── header, bytes ──▶ broadcast group of stage 0 ──▶ receiver 0, receiver 1, ...
    stage 1 source ── header, bytes ──▶ broadcast group of stage 1 ──▶ receiver 0, receiver 1, ...

Within one machine the bytes take the short way, through shared memory (`shared`); all else goes over the groups.

The groups stand on a store that stage 0's source hosts, and know nothing of any default process group. A receiver takes
one bucket from each stage in turn, so every source advances and the order is the same everywhere: it cannot deadlock.
"""

from __future__ import annotations


class SyncError(RuntimeError):
    """Weights were not delivered whole; the message says what was missing or different, and at which bucket."""
