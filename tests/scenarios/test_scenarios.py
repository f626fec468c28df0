"""Scripted stories beside the output that a reviewer last read.

Each ``.txt`` holds commands (see ``tests/support/script.py``), a line of dashes
and the output. ``pytest tests/scenarios --rewrite`` writes the output anew; what
changed is then to be read in the diff, sentence by sentence.
"""

from pathlib import Path

import pytest

from tests.support.script import Script

HERE = Path(__file__).parent
SEPARATOR = "----\n"


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    script, separator, golden = path.read_text().partition(SEPARATOR)
    output = Script().play(script)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(f"{script}{SEPARATOR}{output}")
        return
    assert separator, f"{path.name} has no output yet: run pytest tests/scenarios --rewrite"
    assert output == golden


def test_there_are_scenarios() -> None:
    assert len(list(HERE.glob("*.txt"))) >= 20
