"""Shell. Failed workers as values of the Python API, and the error that stands for them.

Names, fields and text are those of ``torch.distributed.elastic.multiprocessing.errors``,
so that a program changes an import and nothing else. What differs: an error file
that cannot be read becomes a note instead of an error.
Source: ``torch/distributed/elastic/multiprocessing/errors/__init__.py`` (2.13.0).
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import AgentError
from agent.workers.failures.error_file import load_error_file, read_faults, timestamp_of
from agent.workers.failures.exit_status import signal_name
from worker_sdk.errors.error_file import NO_ERROR_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_DATA = {"message": "<NONE>"}
_WIDTH_MAX = 60
_HINT = (
    "none was recorded; put @record of worker_sdk on the program's entry point "
    "to see one here (docs/errors.md)"
)


@dataclass
class ProcessFailure:
    """How one worker failed. What it recorded is read at once, and only then."""

    local_rank: int
    """Its rank on its host."""
    pid: int
    """Its process id."""
    exitcode: int
    """Its exit code; a signal's number, negated, if that ended it."""
    error_file: str
    """Where it recorded its error; ``<N/A>`` if it left nothing there."""
    error_file_data: dict[str, Any] = field(init=False)
    """Content of the error file."""
    message: str | dict[str, Any] = field(init=False)
    """Its outer message, which torch's format makes an object; else a sentence of ours."""
    timestamp: int = field(init=False)
    """When it failed, in seconds since 1970: by its error file, or when this was made."""
    host: str = field(init=False)
    """Name of its host."""

    def __post_init__(self) -> None:
        self.host = socket.gethostname()
        path = Path(self.error_file)
        now = int(time.time())
        found = None if self.error_file == NO_ERROR_FILE else load_error_file(path)
        self.error_file_data = dict(_NO_DATA)
        self.message, self.timestamp = "", now
        stacks = read_faults(path)
        if found is None:
            self.error_file = NO_ERROR_FILE
        elif found.content is None:
            self.message = found.note
            self.error_file_data = {"message": found.note}
        else:
            self.error_file_data = found.content
            self.message = found.content["message"]
            stamp = timestamp_of(found.content)
            self.timestamp = now if stamp is None else stamp
        if not self.message:
            self.message = "\n".join(part for part in (self._ending(), stacks) if part)

    def signal_name(self) -> str:
        """Return the name of the signal that ended it, ``<N/A>`` if none did.

        A signal without a name is told by its number.
        """
        return signal_name(self.exitcode) or NO_ERROR_FILE

    def timestamp_isoformat(self) -> str:
        """Return when it failed as YYYY-MM-DD_HH:MM:SS, in the time zone of this process."""
        local = datetime.fromtimestamp(self.timestamp)  # noqa: DTZ006 - for people, on the spot
        return local.isoformat(sep="_")

    def _ending(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return _HINT


class ChildFailedError(AgentError):
    """Workers failed. ``failures`` has them by their rank in the world.

    Of a launcher of one's own it has those of this host. Of ``agent.launch`` it has the
    root causes of the run, of whatever host; several are too close in time to be told apart.

    Raised within a function that ``worker_sdk.record`` decorates, it is the root
    cause's own error file that reaches the launcher further out.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        assert failures, "an error about failed workers needs one"
        super().__init__(name, failures)
        self.name = name
        self.failures = dict(failures)
        self._text = self.format_msg()

    def __str__(self) -> str:
        return self._text

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the earliest failure and its rank; of equals, the one listed first."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return all failures in words; the arguments are what the lines are drawn with."""
        title = f"{self.name} FAILED"
        root_rank, _ = self.get_first_failure()
        texts = {
            rank: _describe(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *(line for text in texts.values() for line in text.splitlines())]
        width = min(max(map(len, lines)), _WIDTH_MAX)
        border, section = boarder_delim * width, section_delim * width
        root = texts.pop(root_rank)
        return "\n".join(
            [
                "",
                border,
                title,
                section,
                "Failures:",
                *(texts.values() or ["  <NO_OTHER_FAILURES>"]),
                section,
                "Root Cause (first observed failure):",
                root,
                border,
            ]
        )


def _describe(index: int, rank: int, failure: ProcessFailure) -> str:
    signal = f" ({failure.signal_name()})" if failure.exitcode < 0 else ""
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {failure.timestamp_isoformat()}",
            f"  host      : {failure.host}",
            f"  rank      : {rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exitcode} (pid: {failure.pid}){signal}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {_traceback(failure.message)}",
        ]
    )


def _traceback(message: str | dict[str, Any]) -> str:
    """Return the stack, else the message, with all lines but the first indented."""
    text: object = message
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        text = extra.get("py_callstack") if isinstance(extra, dict) else None
        text = message.get("message") if text is None else text
    if not isinstance(text, str):
        return NO_ERROR_FILE
    return text.replace("\n", "\n  ")
