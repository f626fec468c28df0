"""Shell. How both commands write their log: a plain line an event, or JSON lines on demand.

Events are static strings and keys are static, so that JSON logs of many hosts can
be searched: ``log.info("worker failed", message=..., **{"run.round": 3})``. Of it
people read ``message``, else the event and its ``reason``; the rest is details, which
``--log-level debug`` shows. Nothing that is logged blocks: see ``drumbeat.console``.
"""

import logging
import os
import sys
from dataclasses import dataclass
from typing import Any, TextIO, cast

import structlog

from drumbeat.console import STALL_S, Console
from drumbeat.format import printable

_DIM, _YELLOW, _RED, _PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


@dataclass(slots=True)
class _Output:
    """Where this process writes; one at a time."""

    console: Console | None = None


_output = _Output()


def configure_logs(
    log_format: str = "auto",
    stream: TextIO | None = None,
    *,
    level: str = "info",
    program: str = "agent",
) -> None:
    """Set up structlog for this process; to be called once, before the first line.

    Args:
        log_format: "json", or else lines for people.
        stream: Where lines go; standard error if not given.
        level: The least that is written: debug, info, warning or error.
        program: Who speaks, for lines for people.

    Loggers of the standard library keep their levels and handlers, for they belong to
    the program that embeds this, except that those of grpc speak up for errors only: it
    reports every lost connection, which our own lines do with their context. What has no
    handler at all comes here as well, for it must not block either.
    """
    target = sys.stderr if stream is None else stream
    close_logs()
    _output.console = Console(target)
    is_debug = level == "debug"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_json() if log_format == "json" else _console(target, program, is_debug=is_debug)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _output.console)),
        cache_logger_on_first_use=False,  # loggers made before this call follow it as well
    )
    logging.getLogger("grpc").setLevel(logging.ERROR)
    logging.lastResort = _LastResort(logging.WARNING)


def write_text(text: str) -> None:
    """Write what is no log line, such as a report, behind the lines logged so far."""
    if _output.console is not None:
        _output.console.write(text)
    else:
        print(text, end="", file=sys.stderr, flush=True)


def close_logs(stall_s: float = STALL_S) -> None:
    """Write what is left for as long as the console takes it; what comes then goes unqueued."""
    console, _output.console = _output.console, None
    if console is not None:
        console.close(stall_s)


def _console(target: TextIO, program: str, *, is_debug: bool) -> list[Any]:
    # https://no-color.org
    is_colored = (
        target.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    return [
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.processors.format_exc_info,
        _Line(program, is_colored=is_colored, has_details=is_debug),
    ]


def _json() -> list[Any]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]


class _LastResort(logging.Handler):
    """Writes what libraries log and nothing else takes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. ``logging`` calls this."""
        write_text(f"{printable(self.format(record))}\n")


class _Line:
    """Renders an event as one line, and a traceback below it."""

    def __init__(self, program: str, *, is_colored: bool, has_details: bool) -> None:
        self._program = program
        self._is_colored = is_colored
        self._has_details = has_details

    def __call__(self, _logger: Any, _method: str, event: Any) -> str:
        """Return the line. structlog calls this last."""
        level, stamp = event.pop("level"), event.pop("timestamp")
        name, traceback = event.pop("event"), event.pop("exception", None)
        reason, advice = event.pop("reason", None), event.pop("advice", "")
        text = event.pop("message", None) or (name if reason in (None, "") else f"{name}: {reason}")
        if level not in ("debug", "info"):
            text = f"{level}: {text}"
        if advice:
            text = f"{text}; {advice}"
        details = ", ".join(f"{key}={value}" for key, value in event.items() if value is not None)
        if self._has_details and details:
            text = f"{text} ({details})"
        line = printable(text).replace("\n", " ")
        line = self._colored(stamp, line, level)
        return f"{line}\n{printable(traceback)}" if traceback else line

    def _colored(self, stamp: str, line: str, level: str) -> str:
        if not self._is_colored:
            return f"{stamp} {self._program}: {line}"
        color = {"debug": _DIM, "warning": _YELLOW, "error": _RED, "critical": _RED}.get(level, "")
        line = f"{color}{line}{_PLAIN}" if color else line
        return f"{_DIM}{stamp} {self._program}:{_PLAIN} {line}"
