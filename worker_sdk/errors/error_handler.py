"""Shell. Records what ends training code, for the agent it runs under.

Names and meanings are those of ``torch.distributed.elastic.multiprocessing.errors``. What differs:
nothing here raises into training, and a KeyboardInterrupt is recorded as well.
"""

import faulthandler
import functools
import logging
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from worker_sdk.context import ERROR_FILE, FAULT_FILE_SUFFIX
from worker_sdk.errors import error_file

log = logging.getLogger("worker_sdk")

P = ParamSpec("P")
R = TypeVar("R")

_owners: dict[str, int] = {}
"""Process by the error file that it took for its own: a forked child inherits the entry."""


class ErrorHandler:
    """Writes what went wrong into the file that ``TORCHELASTIC_ERROR_FILE`` names.

    Without that variable, nothing. May be subclassed, for ``initialize`` and ``record_exception``.
    """

    def _get_error_file_path(self) -> str | None:
        return os.environ.get(ERROR_FILE) or None

    def initialize(self) -> None:
        """Have a fatal signal leave the stacks of all threads from here on. Never raises."""
        path = self._get_error_file_path()
        is_ours = path is not None and _owners.setdefault(path, os.getpid()) == os.getpid()
        enable_faults(path if is_ours else None)

    def record_exception(self, e: BaseException) -> None:
        """Write ``e`` and its traceback to the error file. Never raises."""
        path = self._get_error_file_path()
        if path:
            _write(path, error_file.describe(e))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Set the exit code in the content of another process's error file, if it has a place."""
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            log.warning("no place for an exit code in %s", rootcause_error_file)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Make another process's error file this one's own. Never raises.

        ``error_code`` is its exit code, 0: unknown. One in the file is of a process further in.
        """
        try:
            content = error_file.parse(error_file.read_bytes(rootcause_error_file))
        except (OSError, ValueError) as error:
            text = f"(the error file {rootcause_error_file} cannot be read: {error})"
            content = error_file.compose(text, stack="")
        self.dump_error_data(content, error_code, rootcause_error_file)

    def dump_error_data(
        self, content: dict[str, Any], error_code: int = 0, rootcause_error_file: str = "a launcher"
    ) -> None:
        """Do the same with what its error file has, or had where it failed."""
        message = content.get("message")
        has_code = isinstance(message, dict) and bool(message.get("errorCode"))
        if error_code and not has_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, content, error_code)
        path = self._get_error_file_path()
        if path:
            _write(path, content)
        else:
            log.error("%s is not set: nowhere to copy %s", ERROR_FILE, rootcause_error_file)


def get_error_handler() -> ErrorHandler:
    """Return a new handler of the default kind."""
    return ErrorHandler()


@overload
def record(
    fn: Callable[P, R], error_handler: ErrorHandler | None = None
) -> Callable[P, R | None]: ...


@overload
def record(
    fn: ErrorHandler | None = None, error_handler: ErrorHandler | None = None
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...


def record(fn: Any = None, error_handler: ErrorHandler | None = None) -> Any:
    """Record what ends a function; for the entry point of a program, once per process.

    Used as ``@record``, ``@record(error_handler)`` or ``record(fn, error_handler)``. The result
    passes through, and so do all errors, but ``SystemExit(0)``, which becomes ``None``; no exit is
    recorded. An error that a launcher raises for a failed child is recorded as the child's own.
    """
    if fn is None or hasattr(fn, "record_exception"):
        return functools.partial(record, error_handler=error_handler or fn)
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                return None
            raise
        except BaseException as error:
            _record(handler, error)
            raise

    return wrapper


def _record(handler: ErrorHandler, error: BaseException) -> None:
    """Have ``error`` recorded; the handler may be the user's and must not hide it."""
    try:
        failure: Any = error_file.first_failure(error)
        file = getattr(failure, "error_file", None)
        data: Any = getattr(failure, "error_file_data", None)
        has_content = isinstance(data, dict) and isinstance(data.get("message"), dict)
        if isinstance(file, str) and file != error_file.NO_ERROR_FILE:
            handler.dump_error_file(file, failure.exitcode)
        elif has_content and isinstance(handler, ErrorHandler):
            # Of another host, or of files that are gone: the launcher has what was in it.
            handler.dump_error_data(dict(data), failure.exitcode)
        else:
            handler.record_exception(error)
    except Exception:
        log.exception("an error could not be recorded")


def _write(path: str, content: error_file.Content) -> None:
    owner = _owners.get(path, os.getpid())
    if owner != os.getpid():
        log.info("%s is left to the process %d", path, owner)
        return
    try:
        error_file.write(path, content)
    except (OSError, RecursionError, ValueError) as error:
        log.warning("an error could not be written to %s: %s", path, error)


class _FaultFile:
    """What the one fault handler of this process writes to, if not to the standard error.

    Under an agent, that is a file beside the error file: the agent reads it, and repeats it on the
    standard error that it shares with its workers.
    """

    path = ""
    descriptor: int | None = None


def enable_faults(error_file: str | None) -> None:
    """Have stacks written on a fatal signal, beside ``error_file`` if given. Never raises."""
    path = f"{error_file}{FAULT_FILE_SUFFIX}" if error_file else ""
    former = _FaultFile.descriptor
    is_open = former is not None and path == _FaultFile.path
    descriptor = former if is_open else _open_fault_file(path)
    try:
        faulthandler.enable(sys.stderr if descriptor is None else descriptor)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # No standard error, or one that is no file.
        log.warning("no stacks will be written on a crash: %s", error)
        return
    _FaultFile.path, _FaultFile.descriptor = path, descriptor
    if former is not None and former != descriptor:
        os.close(former)


def _leave_faults_to_parent() -> None:
    """In a forked child: write to the standard error, the file tells of the parent."""
    if _FaultFile.descriptor is not None:
        faulthandler.disable()
        enable_faults(None)


os.register_at_fork(after_in_child=_leave_faults_to_parent)


def _open_fault_file(path: str) -> int | None:
    """Return a descriptor of a plain file that is there already."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(path, flags) if stat.S_ISREG(os.lstat(path).st_mode) else None
    except OSError:
        return None
