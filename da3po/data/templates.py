"""How a problem becomes the text of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from da3po.data.problems import DataError, Problem
from da3po.data.sources import DAPO_PREFIX, DAPO_SUFFIX
from da3po.data.tokenizer import Tokenizer, begins_with_bos


class Template(Protocol):
    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The whole prompt, special tokens written out; it is tokenised without adding any."""
        ...


@dataclass(frozen=True, slots=True)
class PlainTemplate:
    """Text around the problem, after a beginning-of-sequence token if the tokenizer uses one."""

    wrap: Callable[[str], str]

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        bos = tokenizer.bos_token if begins_with_bos(tokenizer) else None
        return (bos or "") + self.wrap(problem.text)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Messages through the tokenizer's chat template, which writes every special token itself."""

    messages: Callable[[Problem], Sequence[Mapping[str, str]]]

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        if not tokenizer.chat_template:
            raise DataError(
                "data.template: the model's tokenizer has no chat template; "
                "use data.template=problem, answer_line or dapo"
            )
        text = tokenizer.apply_chat_template(self.messages(problem), tokenize=False, add_generation_prompt=True)
        return str(text)


def _own_messages(problem: Problem) -> Sequence[Mapping[str, str]]:
    if problem.messages is None:
        raise DataError(
            f"data.template=messages: row {problem.row} of {problem.source} has no messages; use data.template=chat"
        )
    return problem.messages


TEMPLATES: Mapping[str, Template] = {
    "problem": PlainTemplate(lambda text: text),
    "answer_line": PlainTemplate(lambda text: f"{text}\nAnswer: "),
    "dapo": PlainTemplate(lambda text: f"{DAPO_PREFIX}{text}{DAPO_SUFFIX}"),
    "chat": ChatTemplate(lambda problem: [{"role": "user", "content": problem.text}]),
    "messages": ChatTemplate(_own_messages),
}
