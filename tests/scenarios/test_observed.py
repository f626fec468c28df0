"""Scripted stories of what is observed of runs: accounts of their time, traces, stragglers.

Each ``observed/*.txt`` holds stories; one begins with its name in brackets, and what it shows
stands below a line of dashes. ``pytest tests/scenarios --rewrite`` writes that anew.
"""

import re
from pathlib import Path

import pytest

from tests.support.watched_runs import Observed

FILES = sorted((Path(__file__).parent / "observed").glob("*.txt"))
SEPARATOR = "----\n"


def stories(path: Path) -> list[tuple[str, str, str]]:
    """Return the name, the commands and the output of each story."""
    found = re.split(r"^\[(.*)\]\n", path.read_text(), flags=re.MULTILINE)[1:]
    parts = [body.partition(SEPARATOR) for body in found[1::2]]
    return [
        (name, script, golden.strip() + "\n")
        for name, (script, _, golden) in zip(found[::2], parts, strict=True)
    ]


@pytest.mark.parametrize(
    ("path", "name", "script", "golden"),
    [pytest.param(path, *story, id=story[0]) for path in FILES for story in stories(path)],
)
def test_what_is_observed(
    path: Path, name: str, script: str, golden: str, request: pytest.FixtureRequest
) -> None:
    output = Observed().play(script)
    if request.config.getoption("--rewrite", default=False):
        shown = [
            f"[{each}]\n{commands.rstrip()}\n{SEPARATOR}{output if each == name else known}"
            for each, commands, known in stories(path)
        ]
        path.write_text("\n".join(shown))
        return
    assert output == golden
