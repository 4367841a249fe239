"""The `da3po` command. Each subcommand is imported when it is called, so that none waits for another's libraries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": (
        "da3po.train",
        "train a model with reinforcement learning: da3po train experiment=quickstart [key=value ...]",
    ),
    "plan": ("da3po.forecast", "what a run would take: da3po plan [--search] [--json] experiment=NAME [key=value ...]"),
    "doctor": ("da3po.doctor", "can this machine do it: da3po doctor [--cluster] [--json] [key=value ...]"),
    "eval": ("da3po.evaluate", "evaluate a model: da3po eval model.path=DIR data.eval=FILE [key=value ...]"),
    "convert": ("da3po.convert", "convert between checkpoints and Hugging Face models: da3po convert export RUN OUT"),
    "grade": ("da3po.grade", "grade answers in a file: da3po grade FILE.jsonl [--grader NAME]"),
    "rollouts": (
        "da3po.browse",
        "show what a run's model answered: da3po rollouts RUN [--step N] [--prompt UID] [--jsonl]",
    ),
    "data": ("da3po.audit", "audit data files: da3po data audit FILE... [--against FILE...] [--json OUT]"),
}

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit code is its own, 2 for a command line that cannot be used."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else USAGE_ERROR
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"da3po: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return USAGE_ERROR
    module, _ = COMMANDS[name]
    return int(importlib.import_module(module).main(rest))


def usage() -> str:
    lines = [f"  {name:10}{text}" for name, (_, text) in COMMANDS.items()]
    return "usage: da3po COMMAND ...\n\n" + "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
