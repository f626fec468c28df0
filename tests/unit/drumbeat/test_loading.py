"""What the commands load."""

import subprocess
import sys

import pytest

from drumbeat.command.loading import load_structlog_alone


@pytest.mark.parametrize(
    "command",
    [
        "agent join --standalone",  # and nothing to run
        "coordinator serve --state-dir /dev/null/state",
    ],
)
def test_a_command_that_draws_nothing_loads_nothing_to_draw_with(command: str) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "drumbeat", *command.split()]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 2
    assert "structlog" in loaded
    assert "rich.console" not in loaded


def test_what_is_there_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the program that embeds this."""
    theirs = type(sys)("rich")
    monkeypatch.setitem(sys.modules, "rich", theirs)
    load_structlog_alone()
    assert sys.modules["rich"] is theirs


def test_what_was_hidden_can_be_loaded_later() -> None:
    code = "from drumbeat.command.loading import *; load_structlog_alone(); import structlog, rich"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
