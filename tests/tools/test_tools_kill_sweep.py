"""The sweep of kills holds runs against one that came to its end."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_a_reference_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    sweep = importlib.import_module("kill_sweep")
    with pytest.raises(SystemExit, match=r"the run to compare with ended with 2; see .*whole\.txt"):
        sweep.Sweep(tmp_path, ["no.such=1"], random.Random(0))
    assert "no.such" in (tmp_path / "whole.txt").read_text()
