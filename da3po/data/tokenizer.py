"""The part of a Hugging Face tokenizer that prompts need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast


class Tokenizer(Protocol):
    """A transformers tokenizer, as far as da3po calls it."""

    bos_token: str | None
    bos_token_id: int | None
    chat_template: str | None

    def __call__(self, text: Sequence[str], *, add_special_tokens: bool) -> Mapping[str, Any]: ...

    def encode(self, text: str) -> list[int]: ...

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a Hugging Face model directory."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    return cast("Tokenizer", tokenizer)


def begins_with_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before plain text."""
    return tokenizer.bos_token_id is not None and tokenizer.encode("a")[0] == tokenizer.bos_token_id
