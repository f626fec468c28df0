"""What all command lines have in common: types, spellings, sources, help, errors."""

import io
import sys
from typing import Any

import click
import pytest

from drumbeat.command import options
from drumbeat.command.settings import (
    ADDRESSES,
    FLAG,
    LOG_LEVEL,
    Kind,
    Setting,
    named,
    number,
    seconds,
)

ANY = Kind("a text", str)


def declared(*settings: Any) -> dict[str, Setting]:
    """Settings by name, with what is said of each beside its kind."""
    common = {"default": None, "section": "Options", "help": ""}
    return named({name: Setting(kind=kind, **{**common, **more}) for name, kind, more in settings})


def command_of(*settings: Any) -> click.Command:
    """A command that returns what it was told."""
    params = [
        *options.options_of(declared(*settings)),
        click.Argument(["words"], nargs=-1, type=click.UNPROCESSED),
    ]
    return options.SectionedCommand(
        "work",
        params=params,
        callback=lambda **told: told,
        context_settings={"allow_interspersed_args": False},
    )


@click.group(no_args_is_help=False)
@options.version_option("tool")
def tool() -> None:
    """A tool."""


tool.add_command(
    command_of(
        ("wait_time", seconds(high=60.0), {"section": "Waiting", "default": 5.0}),
        ("server", ADDRESSES, {"section": "Network", "flags": ("--server", "--old-server")}),
        ("count", number(0, 9), {"section": "Network", "default": 1, "flags": ("--count", "-c")}),
        ("dry_run", FLAG, {"section": "Network", "default": False}),
        ("quick", ANY, {"is_hidden": True, "variables": ("PET_QUICK", "OLD_QUICK")}),
    )
)
ambiguous = command_of(("wait_more", ANY, {}), ("wait_less", ANY, {}))
limited = command_of(("limit", number(0, 9), {"variables": ("THEIR_LIMIT",)}))
logging_tool = options.SectionedCommand(
    "log",
    params=options.options_of(named({"log_level": LOG_LEVEL})),
    callback=lambda **told: told,
)


def read(command: click.Command, argv: list[str]) -> Any:
    """What a command line says, else the exit code."""
    return options.run(command, argv, lambda told: told, program="tool", errors=())


def parse(*argv: str) -> Any:
    return read(tool, ["work", *argv])


def test_defaults_are_converted() -> None:
    assert parse() == {
        "wait_time": 5.0,
        "server": None,
        "count": 1,
        "dry_run": False,
        "quick": None,
        "words": (),
    }


@pytest.mark.parametrize("spelling", ["--wait-time", "--wait_time"])
def test_both_spellings_are_understood(spelling: str) -> None:
    assert parse(spelling, "20s")["wait_time"] == 20.0
    assert parse(f"{spelling}=500ms")["wait_time"] == 0.5


@pytest.mark.parametrize("spelling", ["--server", "--old-server", "--old_server"])
def test_aliases_have_both_spellings_too(spelling: str) -> None:
    assert parse(spelling, "head")["server"] == "head:29400"


def test_argument_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse()["wait_time"] == 5.0
    monkeypatch.setenv("DRUMBEAT_WAIT_TIME", "7s")
    monkeypatch.setenv("DRUMBEAT_DRY_RUN", "1")
    assert parse()["wait_time"] == 7.0
    assert parse()["dry_run"] is True
    assert parse("--wait-time", "9s")["wait_time"] == 9.0


def test_help_shows_sections_variables_and_one_spelling(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse("--help") == 0
    shown = capsys.readouterr().out
    assert shown.index("Waiting:") < shown.index("--wait-time") < shown.index("Network:")
    assert "DRUMBEAT_WAIT_TIME" in shown
    assert "default: 5s" in shown
    assert "--wait_time" not in shown
    assert "quick" not in shown


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_does_not_depend_on_how_the_command_was_first_read(word: str) -> None:
    command = command_of()
    command.make_context("work", [])  # without the group, which has a short option for help
    with pytest.raises(click.exceptions.Exit):
        command.make_context("work", [word])


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(tool, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("tool, drumbeat ")


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("--wait-time", "61s"), "'61s' is given, allowed is 0 to 60 seconds."),
        (("--wait-time", "soon"), "'soon' is not a duration: give a number of seconds"),
        (("--count", "10"), "'10' is given, allowed is a whole number from 0 to 9."),
        (("--count", "-1"), "'-1' is given, allowed is a whole number from 0 to 9."),
        (("-c", "1.5"), "'1.5' is given, allowed is a whole number from 0 to 9."),
        (("--server", "a:b"), "'a:b' is not an address: give HOST:PORT"),
        (("--nope",), "--nope"),
    ],
)
def test_a_wrong_value_is_one_error_line_and_a_hint(
    argv: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error, hint = captured.err.splitlines()
    assert error.startswith("tool: error: ")
    assert problem in error
    assert hint == "tool: hint: try 'tool work --help'"


def test_an_error_names_the_option_in_one_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    parse("--wait_time", "soon")
    shown = capsys.readouterr().err
    assert "'--wait-time'" in shown
    assert "wait_time" not in shown


@pytest.mark.parametrize(
    "argv",
    [
        ("--wait", "20s"),
        ("--wait=20s",),
        ("--wait_t", "20s"),
        ("--dry", "--wai", "20s"),
        ("-c", "3", "--w", "20s"),
        ("-c3", "--w=20s"),
    ],
)
def test_options_may_be_cut_short(argv: tuple[str, ...]) -> None:
    assert parse(*argv)["wait_time"] == 20.0


def test_a_value_is_never_taken_for_an_option() -> None:
    assert parse("--qui", "--count", "--w", "20s")["quick"] == "--count"


def test_a_short_form_of_several_options_is_refused_with_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spelled with dashes or underscores is the same option."""
    assert parse("--s", "head")["server"] == "head:29400"
    assert read(ambiguous, ["--wait", "1"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == (
        "tool: error: --wait is ambiguous: it may stand for --wait-less, --wait-more."
    )
    assert read(ambiguous, ["--wait-m", "1"]) == {
        "wait_more": "1",
        "wait_less": None,
        "words": (),
    }


def test_what_follows_the_first_positional_argument_is_left_alone() -> None:
    for argv in (["x", "--wait-m", "1"], ["--", "--wait-m", "1"]):
        parsed = read(ambiguous, argv)
        assert parsed["words"] == tuple(word for word in argv if word != "--")
        assert parsed["wait_more"] is None


def test_variables_of_others_count_after_our_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLD_QUICK", "oldest")
    assert parse()["quick"] == "oldest"
    monkeypatch.setenv("PET_QUICK", "theirs")
    assert parse()["quick"] == "theirs"
    monkeypatch.setenv("DRUMBEAT_QUICK", "ours")
    assert parse()["quick"] == "ours"
    assert parse("--quick", "typed")["quick"] == "typed"
    monkeypatch.setenv("PET_COUNT", "many")
    assert parse()["count"] == 1
    monkeypatch.setenv("THEIR_LIMIT", "many")
    assert read(limited, []) == 2
    shown = capsys.readouterr().err
    assert "THEIR_LIMIT" in shown
    assert "DRUMBEAT_LIMIT" not in shown


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("debug", "debug"), ("INFO", "info"), ("Warn", "warning"), ("CRITICAL", "error"),
        ("0", "debug"), ("15", "info"), ("30", "warning"), ("50", "error"),
    ],
)  # fmt: skip
def test_a_level_may_be_one_of_pythons_logging(
    text: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because torchrun takes those, from LOGLEVEL."""
    monkeypatch.setenv("LOGLEVEL", text)
    assert read(logging_tool, [])["log_level"] == level
    monkeypatch.setenv("DRUMBEAT_LOG_LEVEL", "info")
    assert read(logging_tool, [])["log_level"] == "info"


def test_a_level_that_is_none_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGLEVEL", "loud")
    assert read(logging_tool, []) == 2
    shown = capsys.readouterr().err
    assert "LOGLEVEL" in shown
    assert "'loud' is given, allowed is one of debug, info, warning, error" in shown


def test_a_missing_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(tool, []) == 2
    assert "tool: error: Missing command." in capsys.readouterr().err


def test_ctrl_c_while_parsing_is_told_by_the_exit_code() -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert read(interrupted, []) == 130


def test_every_problem_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    options.write_error("tool", "first\nsecond", "a hint")
    assert stream.getvalue() == "tool: error: first\ntool: error: second\ntool: hint: a hint\n"
