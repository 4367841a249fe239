"""What every experiment takes by plan, as the table of docs/planning.md, or as JSON.

python tools/bench/plan_experiments.py [--json]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from da3po.config.load import conf_dir, load
from da3po.forecast import plan_of
from da3po.models.published import find_model_spec

HEADINGS = (
    "experiment",
    "learner (tp x pp x dp)",
    "engines (number x tp)",
    "precision",
    "free",
    "s/step",
    "learner waits",
)


def rows() -> list[dict[str, Any]]:
    found = []
    for file in sorted((conf_dir() / "experiment").glob("*-*n*g.yaml"), key=lambda file: _size(file.stem)):
        config = load([f"experiment={file.stem}"])
        plan = plan_of(find_model_spec(config.model.path), config)
        parallel, time = config.parallel, plan.time
        assert time is not None and plan.learner_free is not None, f"{file.stem}: {plan.problems}"
        values = (
            file.stem,
            f"{parallel.tp} x {parallel.pp} x {parallel.dp}",
            f"{config.engine.num_engines} x {config.engine.tp}",
            config.learner.precision,
            f"{plan.learner_free:.0%}",
            round(time.total),
            f"{time.learner_wait:.0%}",
        )
        found.append(dict(zip(HEADINGS, values, strict=True)))
    return found


def _size(name: str) -> tuple[str, int]:
    model, _, size = name.rpartition("-")
    return model, int(size.partition("n")[0])


def table() -> str:
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(tuple(map(str, row.values())) for row in rows())]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")
    )


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2) if "--json" in sys.argv[1:] else table())
