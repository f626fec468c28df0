"""One round in namespaces of its own; ``python -m tests.chaos.round --seed N --directory DIR``.

The namespaces are made before anything is imported that has threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import network, plan

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Live a round; return 0 if all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.round")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="where it keeps its logs")
    parser.add_argument("--only", action="append", default=[], help="a kind of run or of fault")
    parser.add_argument("--before", default="", help="checkout that coordinators begin with")
    parser.add_argument("--mistake", default="", help="mistake of coordinators, see mistakes.py")
    options = parser.parse_args(arguments)
    directory: Path = options.directory.resolve()
    directory.mkdir(parents=True)
    drawn = plan.draw(options.seed, tuple(options.only))
    network.enter_namespaces()
    heads = dict.fromkeys((*drawn.coordinators, *drawn.members))
    hosts = network.Network(["op", *heads, *drawn.hosts])
    how = {"before": options.before, "mistake": options.mistake}

    from tests.chaos.life import Round

    lived = Round(drawn, hosts, directory, how)
    began_at = time.monotonic()
    lived.run()
    result = {
        "seed": options.seed,
        "took_s": round(time.monotonic() - began_at, 1),
        "problems": lived.problems,
        "skipped": sorted(lived.faults.skipped),
        "plan": str(drawn),
    }
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    print(f"seed {options.seed}: {drawn}")
    for problem in lived.problems:
        print(f"problem: {problem}")
    return 1 if lived.problems else 0


if __name__ == "__main__":
    sys.exit(main())
