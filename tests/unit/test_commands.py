"""The command ``drumbeat``, and what it says where it cannot run."""

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
    assert commands.main(["--help"]) == 0


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
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: drumbeat")
    assert "  agent        Run this machine" in shown
    assert "  coordinator  Decide who trains" in shown


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["agnet"], "drumbeat"),
        (["agent", "jion"], "drumbeat agent"),
        (["agent", "join", "--nope"], "drumbeat agent join"),
        (["coordinator", "serve", "--port", "x"], "drumbeat coordinator serve"),
    ],
)
def test_hints_and_help_name_the_command_as_it_was_typed(
    argv: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(argv) == 2
    error, hint = capsys.readouterr().err.splitlines()
    program = argv[0] if argv[0] != "agnet" else "drumbeat"
    assert error.startswith(f"{program}: error: ")
    assert hint == f"{program}: hint: try '{path} --help'"
    assert commands.main([*path.split()[1:], "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: {path} [OPTIONS]")


def test_a_shell_completes_both_commands_and_what_is_below_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            commands.main([])
        return capsys.readouterr().out.split()

    monkeypatch.setenv("_DRUMBEAT_COMPLETE", "bash_complete")
    assert completed("drumbeat", "") == ["plain,agent", "plain,coordinator"]
    assert completed("drumbeat", "agent", "jo") == ["plain,join"]
    assert completed("drumbeat", "coordinator", "token", "cr") == ["plain,create"]
