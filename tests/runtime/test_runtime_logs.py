from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from da3po.runtime.logs import set_up_logging


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    logger = logging.getLogger("da3po")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_lines_name_their_process_and_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("main")
    set_up_logging("learner 3")
    logging.getLogger("da3po.sync.send").warning("late")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("learner 3 WARNING late")


def test_other_loggers_are_left_alone() -> None:
    root = list(logging.getLogger().handlers)
    set_up_logging("main")
    assert logging.getLogger().handlers == root
