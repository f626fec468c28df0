"""Shell. How both commands write their log: a plain line an event, or JSON lines on demand.

Events are static strings and keys are static, so that JSON logs of many hosts can
be searched: ``log.info("worker failed", message=..., **{"run.round": 3})``. A plain line is
the ``message``, else the event and its ``reason``; the rest is details, which
``--log-level debug`` shows. Nothing that is logged blocks: see ``drumbeat.command.console``.
"""

import json
import logging
import os
import sys
from functools import partial
from typing import Any, TextIO, cast

import structlog

from drumbeat.command.console import open_console, write_text
from drumbeat.text.format import printable

_DIM, _YELLOW, _RED, _PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_COLORS = {"debug": _DIM, "warning": _YELLOW, "error": _RED, "critical": _RED}


def configure_logs(
    log_format: str = "auto",
    stream: TextIO | None = None,
    *,
    level: str = "info",
    program: str = "agent",
) -> None:
    """Set up structlog for this process, on standard error; to be called once, before all lines.

    Loggers of the standard library keep their levels and handlers, for they belong to
    the program that embeds this, except that those of grpc speak up for errors only: it
    reports every lost connection, which our own lines do with their context. What has no
    handler at all comes here as well, for it must not block either.
    """
    target = sys.stderr if stream is None else stream
    is_json = log_format == "json"
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"  # no-color.org
    is_colored = target.isatty() and not is_plain
    line = partial(_line, program=program, is_colored=is_colored, has_details=level == "debug")
    stamp = "iso" if is_json else "%Y-%m-%d %H:%M:%S"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=stamp, utc=is_json),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json) if is_json else line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", open_console(target))),
        cache_logger_on_first_use=False,  # loggers made before this call follow it as well
    )
    logging.getLogger("grpc").setLevel(logging.ERROR)
    logging.lastResort = _LastResort(logging.WARNING)


def _json(event: Any, **options: Any) -> str:
    """Write ASCII without the one control character that JSON leaves as it is."""
    return json.dumps(event, **options).replace("\x7f", "\\u007f")


class _LastResort(logging.Handler):
    """Writes what libraries log and nothing else takes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. ``logging`` calls this."""
        write_text(f"{_indented(printable(self.format(record)))}\n")


def _line(
    _logger: Any, _method: str, event: Any, *, program: str, is_colored: bool, has_details: bool
) -> str:
    """Render an event as one line, and a traceback below it. structlog calls this last."""
    level, stamp = event.pop("level"), event.pop("timestamp")
    name, traceback = event.pop("event"), event.pop("exception", None)
    reason, advice = event.pop("reason", None), event.pop("advice", "")
    text = event.pop("message", None) or (name if reason in (None, "") else f"{name}: {reason}")
    if level not in ("debug", "info"):
        text = f"{level}: {text}"
    if advice:
        text = f"{text}; {advice}"
    details = ", ".join(f"{key}={value}" for key, value in event.items() if value is not None)
    if has_details and details:
        text = f"{text} ({details})"
    head, line = f"{stamp} {program}:", printable(text).replace("\n", " ")
    if is_colored:
        color = _COLORS.get(level, "")
        head, line = f"{_DIM}{head}{_PLAIN}", f"{color}{line}{_PLAIN if color else ''}"
    return f"{head} {line}" + (
        f"\n{_indented(printable(traceback), first='  ')}" if traceback else ""
    )


def _indented(text: str, first: str = "") -> str:
    """Move lines in, below one of ours: no foreign text can look like a line of the log."""
    return first + text.replace("\n", "\n  ")
