"""Make the tiny base model that ships with da3po: a small Qwen3 that knows arithmetic better than it says.

    python tools/make_tiny_base.py [--out da3po/models/package/tiny] [--seed 1] [--steps 1400]

It is trained from scratch by supervision, first on right answers and then, gently, to doubt them: a part of
every digit's target (`DOUBT`) is spread evenly over the ten digits. In expectation that is training on answers whose
digits are corrupted at that rate, without the variance, which would undo what was learnt. The right answer stays the
likeliest, yet at temperature 1 the model often samples another, as a pretrained model does, and reinforcement learning
has something to sharpen. The held-out problems of the quickstart are never trained on. One thread and a fixed seed make
a run repeatable on a machine; it takes minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from make_quickstart_data import (
    DEFAULT_NUM_EVAL,
    DEFAULT_NUM_TRAIN,
    DEFAULT_SEED,
    KINDS,
    make_problems,
)
from muon import Muon
from tiny_base_card import model_card
from tiny_base_recipe import DOUBT, Recipe
from tiny_base_score import EOS_ID, prompt_ids, score
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

OUT = Path(__file__).resolve().parent.parent / "da3po" / "models" / "package" / "tiny"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MAX_POSITIONS = 8192

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, ids 0..255 being the bytes' values, then the special tokens. No merges, no normaliser."""
    symbols = _byte_symbols()
    vocab = {symbol: value for value, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (END_OF_TEXT, TURN_START, TURN_END)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START, TURN_END],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def _byte_symbols() -> list[str]:
    """Byte-level BPE's printable stand-in for each byte: itself if printable, else the next free code point."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    free = iter(range(0x100, 0x200))
    symbols = [chr(value) if value in printable else chr(next(free)) for value in range(256)]
    if set(symbols) != set(ByteLevel.alphabet()):
        raise RuntimeError("the tokenizers library has changed its byte alphabet")
    return symbols


def make_model(seed: int) -> Qwen3ForCausalLM:
    """A fresh model: 4 layers, 128 wide, about 0.6 million parameters, tied embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=EOS_ID + 3,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=EOS_ID,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=EOS_ID)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Prompt and answer as token ids, the end token last; doubt: see `DOUBT`."""

    prompt: list[int]
    answer: list[int]
    doubt: float


def training_examples(rng: random.Random, held_out: frozenset[str]) -> Iterator[Example]:
    """Endless examples from the quickstart's mixture without the problems whose text is in `held_out`."""
    shares = [kind.share for kind in KINDS]
    while True:
        problem = rng.choices(KINDS, shares)[0].sample(rng)
        if problem.text not in held_out:
            answer = [*str(problem.answer).encode(), EOS_ID]
            yield Example(prompt=prompt_ids(problem.text), answer=answer, doubt=DOUBT[problem.kind])


def collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """input_ids, labels and doubts, each [B, T], padded on the right; only the answer and its end carry a label."""
    length = max(len(example.prompt) + len(example.answer) for example in examples)
    input_ids = torch.full((len(examples), length), EOS_ID)
    labels = torch.full((len(examples), length), -100)
    doubts = torch.zeros(len(examples), length)
    for row, example in enumerate(examples):
        start, end = len(example.prompt), len(example.prompt) + len(example.answer)
        input_ids[row, :end] = torch.tensor(example.prompt + example.answer)
        labels[row, start:end] = torch.tensor(example.answer)
        doubts[row, start : end - 1] = example.doubt
    return input_ids, labels, doubts


def doubting_loss(logits: Tensor, labels: Tensor, doubts: Tensor) -> Tensor:
    """Mean cross-entropy with targets (1 - doubt) on the label and doubt / 10 on each digit; [B, T, V], 2 x [B, T]."""
    answer = labels[:, 1:] != -100
    logprobs = logits[:, :-1][answer].log_softmax(dim=-1)
    right = logprobs.gather(1, labels[:, 1:][answer][:, None])[:, 0]
    digits = logprobs[:, ord("0") : ord("9") + 1].mean(dim=1)
    return -torch.lerp(right, digits, doubts[:, 1:][answer]).mean()


def make_optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the layers' matrices, which learns from fewer examples; AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return (
        Muon(matrices, lr=recipe.lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(rest, lr=recipe.lr, weight_decay=0.0, betas=(0.9, 0.98)),
    )


def train(
    model: Qwen3ForCausalLM, recipe: Recipe, held_out: frozenset[str], report: Callable[[str], None] = print
) -> None:
    """Supervised training in place. Padding is on the right, so causal attention needs no mask for it."""
    optimizers = make_optimizers(model, recipe)
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.lr_factor) for optimizer in optimizers]
    examples = training_examples(random.Random(recipe.seed), held_out)
    model.train()
    started = time.monotonic()
    for step in range(1, recipe.steps + 1):
        input_ids, labels, doubts = collate(list(itertools.islice(examples, recipe.batch_size)))
        if step <= recipe.sure_steps:
            doubts = torch.zeros_like(doubts)
        loss = doubting_loss(model(input_ids=input_ids, use_cache=False).logits, labels, doubts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad)
        for stepped in (*optimizers, *schedules):
            stepped.step()
        model.zero_grad()
        if step % 100 == 0:
            report(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s")
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = Recipe(seed=args.seed, steps=args.steps)
    _, held_out = make_problems(DEFAULT_SEED, DEFAULT_NUM_TRAIN, DEFAULT_NUM_EVAL)
    model = make_model(recipe.seed)
    started = time.monotonic()
    train(model, recipe, frozenset(problem.text for problem in held_out))
    seconds = time.monotonic() - started
    card = model_card(recipe, score(model, held_out, num_samples=16, seed=recipe.seed), seconds)
    model.save_pretrained(args.out)
    make_tokenizer().save_pretrained(args.out)
    (args.out / "README.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
