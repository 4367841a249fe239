"""Soft punishment of overlong responses (Eq. 7-8). It shapes training rewards only, never an evaluation."""

from __future__ import annotations

from collections.abc import Callable

from da3po.config.schema import ConfigError, OverlongConfig


def overlong_penalty(num_tokens: int, max_tokens: int, cache: int) -> float:
    """R_len (Eq. 8): 0 up to L_m - L_c, then linear to -1 at L_m, -1 beyond.

    num_tokens: |o|, response tokens, the end-of-sequence token included. max_tokens: L_m. cache: L_c; with 0 there is
    no slope and a response of L_m tokens is not punished.
    """
    if num_tokens > max_tokens:
        return -1.0
    excess = num_tokens - (max_tokens - cache)
    return -excess / cache if excess > 0 else 0.0


def _no_penalty(_num_tokens: int) -> float:
    return 0.0


def build_overlong(config: OverlongConfig, max_tokens: int) -> Callable[[int], float]:
    """R_len as a function of the number of response tokens."""
    if not config.enabled:
        return _no_penalty
    if config.cache > max_tokens:
        raise ConfigError(f"algo.overlong.cache ({config.cache}) must not exceed rollout.max_tokens ({max_tokens})")
    free = max_tokens - config.cache
    return lambda num_tokens: 0.0 if num_tokens <= free else overlong_penalty(num_tokens, max_tokens, config.cache)
