"""Shell. How both commands write their log: for people on a terminal, JSON lines elsewhere.

Keys are dotted and static, events are static strings, so that logs of many
hosts can be searched: ``log.info("worker failed", **{"run.id": run_id})``.
"""

import logging
import sys
from typing import TYPE_CHECKING, Literal, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor

LogFormat = Literal["auto", "console", "json"]

FORMATS: tuple[LogFormat, ...] = ("auto", "console", "json")
"""What ``--log-format`` takes; "auto" is "console" on a terminal and "json" elsewhere."""


class _Stream:
    """Writes to a stream for as long as that works.

    A closed terminal or a reader that went away must never end a training job,
    so what can no longer be written is dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed, or cannot encode
            return

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def configure_logs(log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Set up structlog for this process; to be called once, before the first line.

    Args:
        log_format: "auto" decides by whether ``stream`` is a terminal.
        stream: Where lines go; standard error if not given.

    The standard library's ``logging`` stays as it is, for it belongs to whoever
    embeds this, except that the loggers of grpc speak up for errors only: it
    reports every lost connection, which our own lines do with their context.
    """
    target = sys.stderr if stream is None else stream
    is_terminal = target.isatty()
    is_console = log_format == "console" or (log_format == "auto" and is_terminal)
    structlog.configure(
        processors=_console(is_colored=is_terminal) if is_console else _json(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stream(target))),
        cache_logger_on_first_use=False,  # loggers made before this call follow it as well
    )
    logging.getLogger("grpc").setLevel(logging.ERROR)


def _console(*, is_colored: bool) -> "list[Processor]":
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(
            colors=is_colored,
            # Plain tracebacks: the fancy ones fill pages and need another package.
            exception_formatter=structlog.dev.plain_traceback,
        ),
    ]


def _json() -> "list[Processor]":
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
