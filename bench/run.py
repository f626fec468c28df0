"""Ask every question in turn: ``python -m bench.run [--only NAME] [--side SIDE] [--repeats N]``.

Results are figures of one machine at one time. They are printed, and kept with
the circumstances under ``bench/results``; no test depends on them.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module

from bench import host, looking, recovery, scale
from bench.harness import Question, main


def questions() -> list[Question]:
    """Return the ``QUESTIONS`` of all modules in the folders of cases."""
    return [
        question
        for folder in (recovery, scale, looking, host)
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}.")
        for question in getattr(import_module(module.name), "QUESTIONS", ())
    ]


if __name__ == "__main__":
    sys.exit(main(questions()))
