"""Shell. A failed worker as a value of the Python API.

Names, fields and text are those of ``torch.distributed.elastic.multiprocessing.errors`` (2.13.0),
so that a program changes an import and nothing else. What differs: an error file that cannot be
read becomes a note instead of an error, and values of this process's environment that are secrets
are left out.
"""

import os
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from drumbeat.access.redactor import Redactor
from drumbeat.agent.failures.error_file import load_error_file, read_faults, timestamp_of
from drumbeat.agent.failures.exit_status import signal_name
from drumbeat.agent.failures.report import FailedWorker
from drumbeat.text.format import one_line, printable
from worker_sdk.errors import NO_ERROR_FILE, compose

_HINT = (
    "none was recorded; put @record of worker_sdk on the program's entry point "
    "to see one here (docs/errors.md)"
)


@dataclass
class ProcessFailure:
    """How one worker failed. What it recorded is read when this is made, and only then."""

    local_rank: int
    pid: int
    exitcode: int  # a signal's number, negated, if that ended it
    error_file: str  # where it recorded its error; ``<N/A>`` if it left nothing there
    error_file_data: dict[str, Any] = field(init=False)
    message: str | dict[str, Any] = field(init=False)
    """That of the error file, which torch's format makes an object; else a sentence of ours."""
    timestamp: int = field(init=False)
    """When it failed, in seconds since 1970: by its error file, or when this was made."""
    host: str = field(init=False)

    def __post_init__(self) -> None:
        self.host, self.timestamp = socket.gethostname(), int(time.time())
        self.error_file_data = {"message": "<NONE>"}
        content: dict[str, Any] | str | None = None
        stacks = ""
        if self.error_file != NO_ERROR_FILE:
            redact = Redactor(os.environ, os.path.exists)
            content = redact.content(load_error_file(self.error_file))
            stacks = redact(read_faults(self.error_file))
        ending = _HINT
        if self.exitcode < 0:
            ending = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        self.message = f"{ending}\n{stacks}" if stacks else ending
        if content is None:
            self.error_file = NO_ERROR_FILE
        else:
            self.error_file_data = {"message": content} if isinstance(content, str) else content
            self.message = self.error_file_data["message"] or self.message
            stamp = timestamp_of(self.error_file_data)
            self.timestamp = self.timestamp if stamp is None else stamp

    @classmethod
    def of(cls, worker: FailedWorker, error_file: str = NO_ERROR_FILE) -> Self:
        """Return a worker of a report, of any host, as if its error file was here.

        ``error_file`` is where it really is, if it is.
        """
        failure = cls(worker.local_rank, worker.pid, worker.exit_code, error_file)
        failure.host = worker.host
        if failure.error_file == NO_ERROR_FILE and worker.message:
            content = compose(worker.message, stack=worker.traceback, error_code=worker.exit_code)
            failure.error_file_data = content
            failure.message = content["message"] if worker.traceback else worker.message
        return failure

    def signal_name(self) -> str:
        """Return the name of the signal that ended it, ``<N/A>`` if none did."""
        return signal_name(self.exitcode) or NO_ERROR_FILE

    def timestamp_isoformat(self) -> str:
        """Return when it failed as YYYY-MM-DD_HH:MM:SS, in the time zone of this process."""
        local = datetime.fromtimestamp(self.timestamp)  # noqa: DTZ006 - to be read on the spot
        return local.isoformat(sep="_")

    def describe(self, rank: int) -> str:
        """Return it as lines of ``ChildFailedError``; the stack, else the message, comes last."""
        signal = f" ({self.signal_name()})" if self.exitcode < 0 else ""
        text: object = self.message
        if isinstance(text, dict):
            extra = text.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, dict) else None
            text = text.get("message") if stack is None else stack
        shown = printable(text).replace("\n", "\n  ") if isinstance(text, str) else NO_ERROR_FILE
        return (
            f"  time      : {self.timestamp_isoformat()}\n"
            f"  host      : {one_line(self.host)}\n"
            f"  rank      : {rank} (local_rank: {self.local_rank})\n"
            f"  exitcode  : {self.exitcode} (pid: {self.pid}){signal}\n"
            f"  error_file: {self.error_file}\n"
            f"  traceback : {shown}"
        )
