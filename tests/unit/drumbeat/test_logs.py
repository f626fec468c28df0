"""How the log is written."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from drumbeat.access.token import Role, Token
from drumbeat.command.console import close_console
from drumbeat.command.logs import configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave the process's logging as it was."""
    level, last_resort = logging.getLogger("grpc").level, logging.lastResort
    yield
    close_console()
    logging.lastResort = last_resort
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.getLogger("grpc").setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_are_written_on_demand() -> None:
    stream = io.StringIO()
    configure_logs("json", stream)
    structlog.contextvars.bind_contextvars(**{"run.id": "r1"})
    structlog.get_logger().info("round started", **{"run.round": 3})
    (line,) = lines_of(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "round started", "level": "info", "run.id": "r1", "run.round": 3}


@pytest.mark.parametrize("log_format", ["auto", "console"])
def test_people_get_a_plain_line_an_event_wherever_it_goes(log_format: Any) -> None:
    stream = io.StringIO()
    configure_logs(log_format, stream)
    log = structlog.get_logger()
    log.info("round started", message="round 3: 2 workers on 1 agent", **{"run.round": 3})
    log.warning("no port reserved", reason="too many open files", path="/x")
    assert [line[20:] for line in stream.getvalue().splitlines()] == [
        "agent: round 3: 2 workers on 1 agent",
        "agent: warning: no port reserved: too many open files",
    ]


def test_details_are_shown_at_the_level_debug() -> None:
    stream = io.StringIO()
    configure_logs("auto", stream, level="debug", program="coordinator")
    structlog.get_logger().debug("round started", **{"run.round": 3, "empty": None})
    assert stream.getvalue()[20:] == "coordinator: round started (run.round=3)\n"


def test_what_would_act_on_a_terminal_is_written_out() -> None:
    stream = io.StringIO()
    configure_logs("auto", stream)
    structlog.get_logger().info("said", reason="a\x1b]0;title\x07b\nc")
    assert stream.getvalue()[20:] == "agent: said: a\\x1b]0;title\\x07b c\n"


@pytest.mark.parametrize(
    ("environment", "is_colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_colours_unless_they_are_unwanted(
    environment: dict[str, str], is_colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    configure_logs("auto", stream)
    structlog.get_logger().warning("round started", **{"run.round": 3})
    assert "round started" in stream.getvalue()
    assert ("\x1b[" in stream.getvalue()) == is_colored


def test_a_level_leaves_out_what_is_below_it() -> None:
    stream = io.StringIO()
    configure_logs("auto", stream, level="warning")
    structlog.get_logger().info("round started")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_exceptions_come_with_their_traceback(log_format: Any) -> None:
    stream = io.StringIO()
    configure_logs(log_format, stream)
    try:
        raise KeyError("missing")  # noqa: TRY301
    except KeyError:
        structlog.get_logger().exception("lookup failed")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "KeyError: 'missing'" in stream.getvalue()


def test_a_value_that_json_does_not_know_is_written_anyway() -> None:
    stream = io.StringIO()
    configure_logs("json", stream)
    structlog.get_logger().info("odd", value={1}, error=ValueError("x"))
    assert lines_of(stream)[0]["value"] == "{1}"


def test_debug_lines_are_not_written() -> None:
    stream = io.StringIO()
    configure_logs("json", stream)
    structlog.get_logger().debug("detail")
    assert stream.getvalue() == ""


def test_a_lost_stream_does_not_raise() -> None:
    """A closed terminal must not end a training job."""
    configure_logs("json", Broken())
    structlog.get_logger().info("nobody reads this")
    closed = io.StringIO()
    configure_logs("json", closed)
    closed.close()
    structlog.get_logger().info("nor this")


def test_loggers_made_before_follow_as_well() -> None:
    log = structlog.get_logger()
    stream = io.StringIO()
    configure_logs("json", stream)
    log.info("late")
    assert lines_of(stream)[0]["event"] == "late"


def test_the_standard_library_is_left_alone_but_for_grpc() -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    configure_logs("json", io.StringIO())
    assert (root.level, list(root.handlers)) == before
    assert not logging.getLogger("grpc._cython").isEnabledFor(logging.WARNING)
    assert logging.getLogger("grpc._cython").isEnabledFor(logging.ERROR)


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json")
    structlog.get_logger().info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "here"


def test_what_a_library_logs_without_a_handler_takes_the_same_way() -> None:
    stream = io.StringIO()
    configure_logs("auto", stream)
    library = logging.Logger("library")  # noqa: LOG001 - without the handlers that pytest adds
    library.warning("slow %s", "disk")
    assert stream.getvalue() == "slow disk\n"


def test_a_line_has_the_advice() -> None:
    stream = io.StringIO()
    configure_logs("auto", stream, program="coordinator")
    structlog.get_logger().error("stuck", reason="the disk is full", advice="make room", since_s=0)
    assert stream.getvalue()[20:] == "coordinator: error: stuck: the disk is full; make room\n"


ACTING = "\x1b]0;pwned\x07 \x1b[2J \r \x00 \u202e \x7f \x9b2J \n2026-11-22 01:54:49 agent: forged"


def say_everywhere(text: str) -> None:
    """Log a text as a reason, as a detail, in a list, in an exception and from a library."""
    log = structlog.get_logger()
    log.warning("agent lost", reason=text)
    log.info("told", message="x", host=text, hosts=[text], sent={"authorization": text})
    try:
        raise ValueError(text)  # noqa: TRY301 - its traceback has it
    except ValueError:
        log.exception("broken")
    logging.Logger("library").warning("it sent %s", text)  # noqa: LOG001 - as above


@pytest.mark.parametrize("log_format", ["auto", "json"])
def test_foreign_text_moves_no_cursor_and_forges_no_line(log_format: str) -> None:
    stream = io.StringIO()
    configure_logs(log_format, stream, level="debug")
    say_everywhere(ACTING)
    written = stream.getvalue()
    assert [each for each in written if not each.isprintable() and each != "\n"] == []
    assert written.count("pwned") == written.count("forged") >= 6
    assert [line for line in written.splitlines() if line.startswith("2026-11-22 01:54:49")] == []


@pytest.mark.parametrize("log_format", ["auto", "json"])
def test_no_log_line_has_a_token(log_format: str) -> None:
    stream, token = io.StringIO(), Token(Role.JOIN, "abcd0123", "s3cr3t-s3cr3t_s3cr3t22")
    configure_logs(log_format, stream, level="debug")
    say_everywhere(f"Bearer {token.text()}")
    written = stream.getvalue()
    assert token.secret not in written
    assert written.count("Bearer drumbeat1.join.abcd0123.[secret]") >= 6
    if log_format == "json":
        shown = "Bearer drumbeat1.join.abcd0123.[secret]"
        assert json.loads(written.splitlines()[0])["reason"] == shown
