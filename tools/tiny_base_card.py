"""The model card of the tiny base."""

from __future__ import annotations

import torch
import transformers
from tiny_base_recipe import DOUBT, Recipe
from tiny_base_score import Score

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# Tiny arithmetic base

A Qwen3 (4 layers, 128 wide, 0.6 million parameters, float32) with a byte-level tokenizer of 259 tokens, for da3po's
quickstart and tests. It completes `"37 + 48\\nAnswer: "` with a number and ends. It is of no other use.

## Recipe
Made from nothing in {seconds} s on one core, with torch {torch} and transformers {transformers}, by

    python tools/make_tiny_base.py --seed {recipe.seed} --steps {recipe.steps}

Problems come from the quickstart's mixture (`tools/make_quickstart_data.py`) without its held-out ones, a batch of
{recipe.batch_size} a step; the loss is on the answer alone. In the last {recipe.doubt_steps} steps a part of each
digit's target, the doubt below, is spread evenly over the ten digits: the right answer is the likeliest and yet often
not the one sampled. Muon (matrices) and AdamW (the rest) run at {recipe.lr} after {recipe.warmup_steps} warm-up steps;
in the {recipe.decay_steps} steps before doubt begins the rate falls linearly to {recipe.final_lr_ratio} of that.

## Accuracy
On the {num_problems} held-out problems, {n} samples each at temperature 1 (95 % interval clustered by problem):

| avg@{n} | pass@4 | greedy |
|---|---|---|
| {mean:.3f} ± {half:.3f} | {pass_4:.3f} | {greedy:.3f} |

| kind | problems | doubt | sampled | greedy |
|---|---|---|---|---|
{kinds}

Problems by how many of their {n} samples are right:

| {columns} |
|{rule}|
| {counts} |
"""


def model_card(recipe: Recipe, result: Score, seconds: float) -> str:
    """The README of the shipped directory: what this is, how it was made, how good it is."""
    mean, half = result.mean()
    kinds = "\n".join(
        f"| {name} | {count} | {DOUBT[name]:.2f} | {sampled:.3f} | {greedy:.3f} |"
        for name, count, sampled, greedy in result.by_kind()
    )
    counts = " | ".join(str(count) for count in result.histogram())
    columns = " | ".join(str(correct) for correct in range(result.num_samples + 1))
    return CARD.format(
        recipe=recipe,
        seconds=round(seconds),
        torch=torch.__version__,
        transformers=transformers.__version__,
        num_problems=len(result.problems),
        n=result.num_samples,
        mean=mean,
        half=half,
        pass_4=result.pass_at(4),
        greedy=sum(result.greedy) / len(result.greedy),
        kinds=kinds,
        columns=columns,
        rule="|".join("---" for _ in range(result.num_samples + 1)),
        counts=counts,
    )
