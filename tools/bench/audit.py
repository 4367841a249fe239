"""How long an audit takes: `python tools/bench/audit.py FILE [--against FILE ...]`. Prints one JSON object."""

from __future__ import annotations

import argparse
import json
import time

from da3po.audit import audit_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--against", nargs="+", default=[])
    options = parser.parse_args()
    start = time.perf_counter()
    found = audit_file(options.file, options.against)
    seconds = time.perf_counter() - start
    counts = {
        "contradictions": len(found.contradictions),
        "bad_golds": len(found.bad_golds),
        "overlaps": {
            overlap.benchmark: {"as_text": len(overlap.verbatim), "letters_and_digits": len(overlap.alike)}
            for overlap in found.overlaps
        },
    }
    print(json.dumps({"rows": found.num_rows, "seconds": round(seconds, 2), **counts}, indent=1))


if __name__ == "__main__":
    main()
