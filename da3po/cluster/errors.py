"""What a cluster refuses, for those who must say so without Ray."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The cluster cannot give what the run needs; the message says what was asked and what is there."""
