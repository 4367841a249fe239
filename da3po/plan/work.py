"""Tokens, FLOPs and updates of one training step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from da3po.config.schema import Config
from da3po.models.hf_config import ModelSpec
from da3po.plan.lengths import ResponseLengths
from da3po.plan.rollouts import Batch

# What the collector does: how much more it asks for than its estimate, and how many batches are in flight at most.
MARGIN, MAX_BATCHES = 1.1, 3
MEAN_PROMPT_SHARE, MEAN_RESPONSE_SHARE = 0.1, 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one step, on average.

    prompt_tokens, response_tokens: mean of a sequence. trained_tokens: of sequences whole.
    updates: optimizer updates. warmup_updates: those of optim.warmup_steps.
    forward_flops: of one trained token. train_flops: forward and backward.
    micro_batches: of each data-parallel rank in an update.
    """

    prompt_tokens: float
    response_tokens: float
    trained_tokens: float
    updates: int
    warmup_updates: int
    micro_batches: int
    forward_flops: float
    train_flops: float

    @property
    def learner_flops(self) -> float:
        """Of the learner in a step: log-probs of the opening weights first if there are several updates."""
        old = self.forward_flops if self.updates > 1 else 0.0
        return self.trained_tokens * (old + self.train_flops)


def response_lengths(config: Config) -> ResponseLengths:
    longest = config.rollout.max_tokens
    mean = config.plan.mean_response_tokens or max(1.0, longest * MEAN_RESPONSE_SHARE)
    return ResponseLengths(mean=min(mean, longest), spread=config.plan.spread, longest=longest)


def prompt_tokens(config: Config) -> float:
    longest = config.data.max_prompt_tokens
    return min(longest, config.plan.mean_prompt_tokens or max(1.0, longest * MEAN_PROMPT_SHARE))


def step_work(spec: ModelSpec, config: Config) -> Work:
    rollout, parallel = config.rollout, config.parallel
    lengths, prompt = response_lengths(config), prompt_tokens(config)
    sequences = rollout.num_prompts * rollout.num_samples
    trained = sequences * (prompt + lengths.mean)
    updates = math.ceil(rollout.num_prompts / (config.train.prompts_per_update or rollout.num_prompts))
    of_rank = trained / updates / parallel.dp
    linear, attention = forward_flops(spec, prompt, lengths)
    forward = linear + attention
    head = 2 * spec.vocab_size * spec.hidden_size
    recomputes = config.learner.megatron.transformer.get("recompute_granularity") == "full"
    return Work(
        prompt_tokens=prompt,
        response_tokens=lengths.mean,
        trained_tokens=trained,
        updates=updates,
        warmup_updates=updates * config.optim.warmup_steps,
        micro_batches=max(1, math.ceil(of_rank / config.learner.max_tokens_per_micro_batch)),
        forward_flops=forward,
        # The output layer's product is worked out again in the backward pass, and with recomputation every layer is.
        train_flops=3 * forward + head + (forward - head if recomputes else 0.0),
    )


def forward_flops(spec: ModelSpec, prompt: float, lengths: ResponseLengths) -> tuple[float, float]:
    """Of products with weights and of attention, for one token; Korthikanti et al. 2022, appendix A, for these shapes.

    Attention of a token with s before it is 4 s (heads x head_dim) a layer; causal sequences have s / 2 on average, and
    a token is in a long one the more likely the longer that is.
    """
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = spec.hidden_size * (2 * query + 2 * key + 3 * spec.ffn_hidden_size)
    sizes = [prompt + length for length in lengths.quantiles(200)]
    context = math.fsum(size * size for size in sizes) / math.fsum(sizes)
    return 2.0 * (spec.num_layers * layer + spec.vocab_size * spec.hidden_size), 2.0 * spec.num_layers * query * context


def wanted_batch(config: Config) -> Batch:
    """What generation of a step is asked for."""
    rollout, filters = config.rollout, config.algo.dynamic_sampling.enabled
    return Batch(
        num_prompts=rollout.num_prompts,
        num_samples=rollout.num_samples,
        prompt_tokens=prompt_tokens(config),
        lengths=response_lengths(config),
        keep_rate=config.plan.keep_rate if filters else 1.0,
        margin=MARGIN if filters else 1.0,
        max_in_flight=rollout.max_in_flight or MAX_BATCHES * rollout.num_prompts,
    )
