from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from da3po.config.schema import DataConfig
from da3po.data.problems import DataError, Problem
from da3po.data.prompts import build_prompts, load_prompts
from da3po.data.sources import DAPO_PREFIX, DAPO_SUFFIX
from da3po.data.templates import TEMPLATES

BOS = "<s>"


CHAT = "{{ messages }}"


class CharTokenizer:
    """Every character is a token (its code point); `<s>` is token 0 and goes before text if `adds_bos`."""

    def __init__(self, adds_bos: bool = False, chat_template: str | None = None) -> None:
        self.bos_token = BOS if adds_bos else None
        self.bos_token_id = 0 if adds_bos else None
        self.chat_template = chat_template

    def __call__(self, text: Sequence[str], *, add_special_tokens: bool) -> Mapping[str, Any]:
        return {"input_ids": [self._ids(one, add_special_tokens) for one in text]}

    def encode(self, text: str) -> list[int]:
        return self._ids(text, add_special_tokens=True)

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        turns = "".join(f"[{turn['role']}]{turn['content']}" for turn in conversation)
        return (self.bos_token or "") + turns + ("[assistant]" if add_generation_prompt else "")

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = [0] if add_special_tokens and self.bos_token else []
        for number, part in enumerate(text.split(BOS)):
            ids += [0] * (number > 0) + [ord(character) for character in part]
        return ids


def problem(text: str, messages: tuple[dict[str, str], ...] | None = None) -> Problem:
    return Problem(uid=text, text=text, gold="1", source="s", messages=messages, row=1)


@pytest.mark.parametrize(
    ("template", "rendered"),
    [("problem", "2+2?"), ("answer_line", "2+2?\nAnswer: "), ("dapo", f"{DAPO_PREFIX}2+2?{DAPO_SUFFIX}")],
)
def test_plain_templates(template: str, rendered: str) -> None:
    assert TEMPLATES[template].render(problem("2+2?"), CharTokenizer()) == rendered


def test_chat_templates_use_the_problem_or_the_rows_own_messages() -> None:
    tokenizer = CharTokenizer(chat_template=CHAT)
    own = problem("2+2?", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 2+2."}))
    assert TEMPLATES["chat"].render(own, tokenizer) == "[user]2+2?[assistant]"
    assert TEMPLATES["messages"].render(own, tokenizer) == "[system]Be brief.[user]Say 2+2.[assistant]"


def test_a_tokenizer_without_chat_template_is_refused_by_option() -> None:
    with pytest.raises(DataError, match=r"data.template: .* no chat template"):
        TEMPLATES["chat"].render(problem("2+2?"), CharTokenizer())


def test_messages_need_rows_that_have_them() -> None:
    with pytest.raises(DataError, match=r"data.template=messages: row 1 of s has no messages"):
        TEMPLATES["messages"].render(problem("2+2?"), CharTokenizer(chat_template=CHAT))


@pytest.mark.parametrize("template", ["problem", "chat"])
def test_a_prompt_begins_with_one_bos_where_the_tokenizer_has_one(template: str) -> None:
    tokenizer = CharTokenizer(adds_bos=True, chat_template=CHAT)
    [prompt] = build_prompts([problem("2+2?")], TEMPLATES[template], tokenizer, 100, "x")
    assert prompt.token_ids.count(tokenizer.bos_token_id) == 1
    assert prompt.token_ids[0] == tokenizer.bos_token_id
    assert prompt.text.startswith(BOS)


def test_a_prompt_too_long_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """D02: the limit is inclusive, and the ids are those that every user of the prompt gets."""
    problems = [problem("x" * n) for n in (3, 9, 4, 8, 2)]
    with caplog.at_level(logging.INFO):
        prompts = build_prompts(problems, TEMPLATES["problem"], CharTokenizer(), 8, "x")
    assert [len(prompt.token_ids) for prompt in prompts] == [3, 4, 8, 2]
    assert [prompt.draw for prompt in prompts] == [0, 1, 2, 3]
    assert "4 prompts, 1 filtered" in caplog.text


def test_order_is_kept() -> None:
    """D04."""
    prompts = build_prompts([problem(f"p{i}") for i in range(6)], TEMPLATES["problem"], CharTokenizer(), 10**6, "x")
    assert [prompt.text for prompt in prompts] == [f"p{i}" for i in range(6)]


def test_all_prompts_too_long_is_an_error_with_the_lengths() -> None:
    with pytest.raises(DataError, match=r"max_prompt_tokens=3 \(shortest 4, longest 6 tokens\)"):
        build_prompts([problem("xxxx"), problem("xxxxxx")], TEMPLATES["problem"], CharTokenizer(), 3, "train")


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"problem": "1+1?", "answer": 2}) + "\n")
    [prompt] = load_prompts(str(path), DataConfig(template="answer_line"), CharTokenizer(), lambda gold: None)
    assert (prompt.text, prompt.gold, prompt.source) == ("1+1?\nAnswer: ", "2", "d")
    assert prompt.token_ids == tuple(ord(character) for character in prompt.text)


def test_a_real_tokenizer_with_bos_and_chat_template() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    letters = {BOS: 0, **{character: number for number, character in enumerate("user:2+?ain\n", start=1)}}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[], unk_token=None))
    inner.post_processor = tokenizers.processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    for template in ("problem", "chat"):
        [prompt] = build_prompts([problem("2+2?")], TEMPLATES[template], tokenizer, 100, "x")
        assert list(prompt.token_ids).count(0) == 1
        assert prompt.token_ids[0] == 0
