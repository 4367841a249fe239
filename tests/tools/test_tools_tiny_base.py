"""The tiny base model and the quickstart's problems: what ships, and the tools that made it."""

from __future__ import annotations

import functools
import importlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    Qwen3ForCausalLM,
)

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "da3po" / "models" / "package" / "tiny"
DATA = ROOT / "da3po" / "data" / "package"
SPLITS = {"train": 6000, "eval": 512}
HARD_TEXTS = (
    "",
    "37 + 48\nAnswer: ",
    "  two  spaces \t\r\n",
    "don't",
    "求解 x²",
    "e\u0301 \ufb01 \u212b",
    "🧮👩🏽\u200d🔬",
    "\x00\x7f\x80\xa0\ufeff\ufffd",
)
DAPO_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TINY)


@functools.cache
def model() -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(TINY).eval()


@functools.cache
def table(split: str) -> pa.Table:
    return pq.read_table(DATA / f"quickstart-{split}.parquet")


def texts(split: str) -> list[str]:
    return [prompt[0]["content"] for prompt in table(split)["prompt"].to_pylist()]


def exact(text: str) -> int:
    """Value of `a op b [op c]`; a product only ever comes first, so left to right is right."""
    first, *rest = text.split(" ")
    value = int(first)
    for operator, operand in zip(rest[::2], map(int, rest[1::2]), strict=True):
        value = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
    return value


@pytest.fixture(scope="module")
def base() -> Iterator[ModuleType]:
    """tools/make_tiny_base.py; the tools beside it are importable too while a test runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("make_tiny_base")


@pytest.fixture(scope="module")
def problems(base: ModuleType) -> ModuleType:
    return importlib.import_module("make_quickstart_data")


@pytest.fixture(scope="module")
def scoring(base: ModuleType) -> ModuleType:
    return importlib.import_module("tiny_base_score")


class TestTokenizer:
    @pytest.mark.parametrize("text", HARD_TEXTS)
    def test_text_becomes_its_bytes_and_comes_back(self, text: str) -> None:
        ids = tokenizer().encode(text)
        assert ids == list(text.encode())
        assert tokenizer().decode(ids) == text

    @settings(max_examples=100, deadline=None)
    @given(st.text())
    def test_arbitrary_text_comes_back(self, text: str) -> None:
        assert tokenizer().decode(tokenizer().encode(text)) == text

    def test_bytes_that_are_no_text_decode_to_the_replacement_character(self) -> None:
        assert tokenizer().decode([0xFF, ord("7"), 0xE6]) == "\ufffd7\ufffd"

    def test_special_tokens_follow_the_bytes(self) -> None:
        assert tokenizer().convert_ids_to_tokens([256, 257, 258]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert tokenizer().eos_token_id == tokenizer().pad_token_id == 256

    def test_chat_template_opens_the_assistant_turn(self) -> None:
        messages = [{"role": "user", "content": "1 + 1"}]
        rendered = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered == "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"


class TestModel:
    def test_package_is_small(self) -> None:
        assert sum(path.stat().st_size for path in TINY.iterdir()) <= 4_000_000

    def test_config_agrees_with_the_tokenizer_and_the_weights(self) -> None:
        config = model().config
        assert config.vocab_size == len(tokenizer()) == model().get_input_embeddings().num_embeddings == 259
        assert config.eos_token_id == GenerationConfig.from_pretrained(TINY).eos_token_id == tokenizer().eos_token_id

    def test_it_is_a_qwen3_in_float32_with_a_tied_head_stored_once(self) -> None:
        assert type(model()) is Qwen3ForCausalLM
        assert {p.dtype for p in model().parameters()} == {torch.float32}
        assert model().lm_head.weight is model().model.embed_tokens.weight
        with safe_open(TINY / "model.safetensors", "pt") as stored:
            assert "lm_head.weight" not in stored.keys()  # noqa: SIM118 - safe_open is no mapping

    def test_a_long_prompt_fits(self) -> None:
        with torch.inference_mode():
            logits = model()(torch.full((1, 2500), ord("x")), logits_to_keep=1).logits
        assert logits.isfinite().all()

    def test_it_knows_more_than_it_says(self, problems: ModuleType, scoring: ModuleType) -> None:
        """Accuracy is the card's, greedy decoding does better, and p_hat is spread out: what reinforcement needs."""
        _, held_out = problems.make_problems(problems.DEFAULT_SEED, SPLITS["train"], SPLITS["eval"])
        result = scoring.score(model(), held_out[:192], num_samples=8, seed=5)
        mean, half = result.mean()
        stated = re.search(r"^\| (0\.\d+) ± (0\.\d+) \| ", (TINY / "README.md").read_text(), re.MULTILINE)
        assert stated is not None
        assert abs(mean - float(stated[1])) < half + float(stated[2])
        assert sum(result.greedy) / len(result.greedy) > mean + 0.15
        mixed = sum(0 < correct < 8 for correct in result.num_correct) / len(held_out[:192])
        assert mixed > 0.5
        assert sum(0 < correct < 4 for correct in result.num_correct) / len(held_out[:192]) > 0.25

    def test_it_ends_its_answers(self, scoring: ModuleType) -> None:
        prompts = [scoring.prompt_ids(text) for text in texts("eval")[:128]]
        drawn = scoring.sample(model(), prompts, 4, torch.Generator().manual_seed(3))
        lengths = [len(response) for responses in drawn for response in responses]
        assert sum(length < scoring.MAX_ANSWER_TOKENS for length in lengths) / len(lengths) > 0.99


class TestData:
    @pytest.mark.parametrize("split", SPLITS)
    def test_file_has_the_schema_and_the_rows(self, split: str) -> None:
        assert table(split).schema.remove_metadata() == DAPO_SCHEMA
        assert table(split).num_rows == SPLITS[split]
        assert (DATA / f"quickstart-{split}.parquet").stat().st_size < 300_000
        indices = [info["index"] for info in table(split)["extra_info"].to_pylist()]
        assert len(set(indices)) == SPLITS[split]

    @pytest.mark.parametrize("split", SPLITS)
    def test_golds_are_right(self, split: str) -> None:
        golds = [model["ground_truth"] for model in table(split)["reward_model"].to_pylist()]
        assert golds == [str(exact(text)) for text in texts(split)]

    def test_no_problem_occurs_twice(self) -> None:
        assert len({*texts("train"), *texts("eval")}) == sum(SPLITS.values())

    def test_both_files_have_one_mixture(self, problems: ModuleType) -> None:
        shares = {kind.name: kind.share for kind in problems.KINDS}
        assert sum(shares.values()) == 100
        for drawn in problems.make_problems(problems.DEFAULT_SEED, SPLITS["train"], SPLITS["eval"]):
            counts = Counter(problem.kind for problem in drawn)
            assert all(abs(counts[name] - len(drawn) * share / 100) <= 1 for name, share in shares.items())

    def test_the_tool_writes_the_shipped_rows_again(self, problems: ModuleType, tmp_path: Path) -> None:
        written = problems.write(tmp_path, problems.DEFAULT_SEED, SPLITS["train"], SPLITS["eval"])
        assert [pq.read_table(path) for path in written] == [table("train"), table("eval")]

    def test_another_seed_gives_other_problems(self, problems: ModuleType) -> None:
        first, second = (problems.make_problems(seed, 100, 20)[0] for seed in (1, 2))
        assert first != second

    def test_a_kind_that_is_too_small_is_named(self, problems: ModuleType) -> None:
        with pytest.raises(ValueError, match="difference_to_50 has too few"):
            problems.make_problems(1, 10_000, 512)


class TestTraining:
    def test_held_out_problems_are_never_trained_on(self, base: ModuleType) -> None:
        def drawn(held_out: frozenset[str], count: int) -> list[str]:
            stream = base.training_examples(random.Random(1), held_out)
            return [bytes(example.prompt).decode().split("\n")[0] for example in itertools.islice(stream, count)]

        held_out = frozenset(drawn(frozenset(), 2000)[::2])
        assert not held_out & set(drawn(held_out, 500))

    def test_examples_are_right_and_doubted_by_kind(self, base: ModuleType, problems: ModuleType) -> None:
        assert set(base.DOUBT) == {kind.name for kind in problems.KINDS}
        for example in itertools.islice(base.training_examples(random.Random(1), frozenset()), 200):
            text, tail = bytes(example.prompt).decode().split("\n")
            assert tail == "Answer: "
            assert example.answer == [*str(exact(text)).encode(), tokenizer().eos_token_id]
            assert example.doubt in base.DOUBT.values()

    def test_labels_cover_the_answer_and_doubts_its_digits(self, base: ModuleType) -> None:
        examples = [
            base.Example(prompt=[1, 2], answer=[50, 256], doubt=0.25),
            base.Example(prompt=[4], answer=[256], doubt=0.5),
        ]
        input_ids, labels, doubts = base.collate(examples)
        assert input_ids.tolist() == [[1, 2, 50, 256], [4, 256, 256, 256]]
        assert labels.tolist() == [[-100, -100, 50, 256], [-100, 256, -100, -100]]
        assert doubts.tolist() == [[0, 0, 0.25, 0], [0, 0, 0, 0]]

    def test_loss_spreads_the_doubt_over_the_digits(self, base: ModuleType) -> None:
        """One labelled digit "7", doubt 0.2: target 0.8 + 0.02 on "7" and 0.02 on each other digit."""
        logits = torch.randn(1, 2, 259, generator=torch.Generator().manual_seed(0))
        target = torch.zeros(259)
        target[48:58] = 0.02
        target[55] += 0.8
        loss = base.doubting_loss(logits, torch.tensor([[-100, 55]]), torch.tensor([[0.0, 0.2]]))
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits[0, 0], target))

    def test_one_seed_gives_one_model(self, base: ModuleType) -> None:
        weights = []
        for _ in range(2):
            fresh = base.make_model(seed=3)
            recipe = base.Recipe(seed=3, steps=2, batch_size=4)
            base.train(fresh, recipe, frozenset(), report=lambda _: None)
            weights.append(torch.cat([p.detach().flatten() for p in fresh.parameters()]))
        assert torch.equal(*weights)

    def test_card_states_the_default_recipe(self, base: ModuleType) -> None:
        recipe = base.Recipe()
        assert f"--seed {recipe.seed} --steps {recipe.steps}\n" in (TINY / "README.md").read_text()

    def test_muon_makes_updates_orthogonal(self, base: ModuleType) -> None:
        muon = importlib.import_module("muon")
        matrices = torch.randn(3, 32, 96, generator=torch.Generator().manual_seed(0))
        singular = torch.linalg.svdvals(muon.orthogonalize(matrices))
        assert singular.min() > 0.6
        assert singular.max() < 1.3


class TestScore:
    def test_figures_by_hand(self, problems: ModuleType, scoring: ModuleType) -> None:
        """Four problems of one kind, 4 samples each: 0, 1, 2 and 4 right."""
        drawn = tuple(problems.Problem(text=f"{i} + 1", answer=i + 1, kind="sum_2_digits") for i in range(4))
        greedy = (False, True, True, True)
        result = scoring.Score(problems=drawn, num_samples=4, num_correct=(0, 1, 2, 4), greedy=greedy)
        assert result.by_kind() == [("sum_2_digits", 4, 7 / 16, 3 / 4)]
        mean, half = result.mean()
        assert mean == pytest.approx(7 / 16)
        assert half == pytest.approx(1.96 * 0.426956 / 2, abs=1e-5)
        # pass@2 of 0, 1, 2, 4 right in 4: 0, 1/2, 5/6, 1
        assert result.pass_at(2) == pytest.approx((0 + 1 / 2 + 5 / 6 + 1) / 4)
        assert result.histogram() == [1, 1, 1, 0, 1]
