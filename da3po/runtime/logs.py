"""One format for the log lines of every process of a run."""

from __future__ import annotations

import logging
import sys


def set_up_logging(process: str, level: int = logging.INFO) -> None:
    """Send da3po's log lines to standard error, each with the process it comes from ("main", "learner 3", ...).

    Only da3po's own loggers are touched: what a library logs stays as it was. Calling it again replaces the first.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {process} %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("da3po")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
