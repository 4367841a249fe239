"""Options as documents and the command line have them: each exists, and takes its own default without a `+`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from da3po import train
from da3po.config.build import flatten, leaves, open_section_of, sections, to_tree
from da3po.config.load import dump, load, parse_yaml

ROOT = Path(__file__).parents[2]
ROOMS = "architecture.md"
DOCUMENTS = [ROOT / "README.md", *(file for file in sorted((ROOT / "docs").glob("*.md")) if file.name != ROOMS)]
NAMED = re.compile(r"(?:`|\s)((?:[a-z_]+\.)+[a-z_]+)(?==|`)")
"""`section.key` in backticks, and section.key=value anywhere."""


def named_options() -> list[tuple[str, str]]:
    tops = {name.partition(".")[0] for name in sections()}
    found = [
        (document.name, name)
        for document in DOCUMENTS
        for name in NAMED.findall(document.read_text(encoding="utf-8"))
        if name.partition(".")[0] in tops
        and not re.search(r"\.(py|md|sh|yaml|jsonl?|sbatch|safetensors|path|txt|lock)$", name)
    ]
    return sorted(set(found))


def test_documents_name_options_that_exist() -> None:
    known = set(leaves()) | set(sections())
    unknown = [
        (document, name) for document, name in named_options() if name not in known and not open_section_of(name)
    ]
    assert unknown == []


def test_there_is_something_to_check() -> None:
    assert len(named_options()) > 40 and ("planning.md", "cluster.gpus_per_node") in named_options()


def test_every_option_takes_its_own_default_without_a_plus() -> None:
    defaults = dict(flatten(to_tree(load([]))))
    plain = {key: value for key, value in defaults.items() if not isinstance(value, list)}
    overrides = [f"{key}={_spelled(value)}" for key, value in plain.items()]
    assert len(overrides) > 100
    assert load(overrides) == load([])


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


@pytest.mark.parametrize("spelled", ["1e-6", "1E-6", "2e-4", ".2", "1", "1_0.0"])
def test_numbers_of_a_file_are_numbers(spelled: str) -> None:
    config = parse_yaml(f"optim:\n  lr: {spelled}\n")
    assert isinstance(config.optim.lr, float) and config.optim.lr == float(spelled)
    assert parse_yaml(dump(config)).optim == config.optim


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("train.learning_rate=3e-6", "optim.lr"),
        ("train.clip=0.3", "train."),
        ("rollout.N=4", "rollout.num_samples"),
        ("rollout=4", "rollout.num_samples"),
    ],
)
def test_a_mistyped_option_ends_the_command_before_ray_starts(
    override: str, near: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "Session", lambda *_: pytest.fail("Ray was started"))
    assert train.main(["experiment=quickstart", override]) == 2
    assert near in capsys.readouterr().err


@pytest.mark.parametrize("time", ["4:00:00", "04:00:00", "1-00:00:00", "12:30:45", "90", "1e5", "010"])
def test_what_reads_as_a_time_or_a_number_stays_text_where_text_belongs(time: str) -> None:
    """YAML 1.1 would take 4:00:00 for 14400. How long a job may run is sbatch's own option, and none of ours."""
    config = load([f"run.name={time}"])
    assert config.run.name == time and config.run.dir == f"runs/{time}"
    assert parse_yaml(dump(config)).run.name == time
    assert not any("time" in key.split(".") for key in leaves())
