"""The command ``drumbeat``, and what it says where it cannot run."""

from __future__ import annotations

import sys

import pytest

import drumbeat
from drumbeat import __main__ as commands


def test_other_systems_are_told_that_it_takes_linux(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(drumbeat, "launch", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert commands.coordinator() == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == ("coordinator: error: this system is 'darwin', and drumbeat runs on Linux only")
    assert "Linux machine or container" in hint
    with pytest.raises(ImportError, match="'darwin', allowed is 'linux'"):
        _ = drumbeat.launch


def test_its_commands_are_those_that_exist_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["agent", "--version"]) == 0
    assert commands.main(["coordinator", "--version"]) == 0
    assert commands.main(["--version"]) == 0
    version = drumbeat.VERSION
    assert capsys.readouterr().out.splitlines() == [
        f"agent, drumbeat {version}",
        f"coordinator, drumbeat {version}",
        f"drumbeat {version}",
    ]


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_a_command_it_names_them(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(argv) == 0
    assert capsys.readouterr().out.startswith("Usage: drumbeat")


def test_an_unknown_command_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert commands.main(["agnet"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == (
        "drumbeat: error: 'agnet' is no command, allowed are 'agent' and 'coordinator'"
    )
    assert hint == "drumbeat: hint: try 'drumbeat --help'"
