"""D03: training, validation, `da3po eval` and a resumed run all leave out the same prompts."""

from __future__ import annotations

import json
from pathlib import Path

from da3po.config.load import load
from da3po.data.cursor import Cursor
from da3po.data.prompts import load_prompts, load_training_set
from da3po.data.tokenizer import load_tokenizer
from da3po.evaluate import prepare
from da3po.models.locate import locate_model
from da3po.types import Prompt


def asked(prompts: list[Prompt]) -> list[tuple[str, tuple[int, ...]]]:
    return [(prompt.text, prompt.token_ids) for prompt in prompts]


def test_one_filter_for_every_path(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    texts = ["1 + 1", "2 + 2", "3 + 3 " * 50, "4 + 4"]
    path.write_text("".join(json.dumps({"problem": text, "answer": "2"}) + "\n" for text in texts))
    config = load(
        ["model=tiny", f"data.train={path}", f"data.eval={path}", "data.max_prompt_tokens=64", "data.shuffle=false"]
    )
    tokenizer = load_tokenizer(str(locate_model(config.model.path)))
    trained = list(load_training_set(config.data, tokenizer, lambda gold: None).prompts)
    validated = load_prompts(config.data.eval, config.data, tokenizer, lambda gold: None)
    [task] = prepare(config).tasks
    loaded_again = list(load_training_set(config.data, tokenizer, lambda gold: None).prompts)
    first, resumed = (Cursor(prompts, seed=1, shuffle=False) for prompts in (trained, loaded_again))
    drawn = first.draw(1)
    resumed.load_state_dict(first.state_dict())
    drawn += resumed.draw(2)
    assert [text.partition("\n")[0] for text, _ in asked(trained)] == ["1 + 1", "2 + 2", "4 + 4"]
    assert asked(trained) == asked(validated) == asked(list(task.prompts)) == asked(drawn)
