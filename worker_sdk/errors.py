"""Shell. Records what ends training code, in torch's format, for the agent it runs under.

Names and meanings are those of ``torch.distributed.elastic.multiprocessing.errors``. What differs:
nothing here raises into training, and restarts in process are recorded as well.
Source: ``torch/distributed/elastic/multiprocessing/errors/error_handler.py`` (2.13.0).
"""

import errno
import faulthandler
import functools
import json
import logging
import os
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, overload

from worker_sdk.context import ERROR_FILE, FAULT_FILE_SUFFIX

log = logging.getLogger("worker_sdk")

P = ParamSpec("P")
R = TypeVar("R")

# Even if JSON writes each byte as six, both fit into the file.
MESSAGE_BYTES_MAX = 64 * 1024
STACK_BYTES_MAX = 64 * 1024
FILE_BYTES_MAX = 1024 * 1024
RANK_MAX = 2**32 - 1

NO_ERROR_FILE = "<N/A>"  # for a process that left none

_LEFT_OUT = "\n… (left out) …\n"

# Process by the error file that it took for its own: a forked child inherits the entry.
_owners: dict[str, int] = {}

# What the one fault handler of this process writes to, if not to the standard error: under an
# agent a file beside the error file, which the agent repeats on its own standard error.
_fault_file: list[int] = []


class ErrorHandler:
    """Writes what went wrong into the file that ``TORCHELASTIC_ERROR_FILE`` names, if it is set.

    May be subclassed, for ``initialize`` and ``record_exception``.
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
        if path := self._get_error_file_path():
            _write(path, describe(e))

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
            content = parse(read_bytes(rootcause_error_file))
        except (OSError, ValueError) as error:
            text = f"(the error file {rootcause_error_file} cannot be read: {error})"
            content = compose(text, stack="")
        self.dump_error_data(content, error_code, rootcause_error_file)

    def dump_error_data(
        self, content: dict[str, Any], error_code: int = 0, rootcause_error_file: str = "a launcher"
    ) -> None:
        """Do the same with what its error file has, or had where it failed."""
        message = content.get("message")
        has_code = isinstance(message, dict) and bool(message.get("errorCode"))
        if error_code and not has_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, content, error_code)
        if path := self._get_error_file_path():
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
    passes through, and so do all errors, but ``SystemExit(0)``, which becomes ``None``; no exit
    and no ``KeyboardInterrupt`` is recorded. An error that a launcher raises for a failed child is
    recorded as the child's own.
    """
    if fn is None or hasattr(fn, "record_exception"):
        return functools.partial(record, error_handler=error_handler or fn)
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except KeyboardInterrupt:
            raise
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
        failure: Any = first_failure(error)
        file = getattr(failure, "error_file", None)
        data: Any = getattr(failure, "error_file_data", None)
        has_content = isinstance(data, dict) and isinstance(data.get("message"), dict)
        if isinstance(file, str) and file != NO_ERROR_FILE:
            handler.dump_error_file(file, failure.exitcode)
        elif has_content and isinstance(handler, ErrorHandler):
            # Of another host, or of files that are gone: the launcher has what was in it.
            handler.dump_error_data(dict(data), failure.exitcode)
        else:
            handler.record_exception(error)
    except Exception:
        log.exception("an error could not be recorded")


def _write(path: str, content: dict[str, Any]) -> None:
    owner = _owners.get(path, os.getpid())
    if owner != os.getpid():
        log.info("%s is left to the process %d", path, owner)
        return
    try:
        write(path, content)
    except (OSError, RecursionError, ValueError) as error:
        log.warning("an error could not be written to %s: %s", path, error)


def enable_faults(error_file: str | None) -> None:
    """Have stacks written on a fatal signal, beside ``error_file`` if given. Never raises."""
    opened = []
    if error_file:
        path = f"{error_file}{FAULT_FILE_SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        with suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):  # it is there already
                opened = [os.open(path, flags)]
    try:
        faulthandler.enable(opened[0] if opened else sys.stderr)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # No standard error, or one that is no file.
        log.warning("no stacks will be written on a crash: %s", error)
        return
    while _fault_file:
        os.close(_fault_file.pop())
    _fault_file.extend(opened)


def _leave_faults_to_parent() -> None:
    """In a forked child: write to the standard error, the file tells of the parent."""
    if _fault_file:
        faulthandler.disable()
        enable_faults(None)


os.register_at_fork(after_in_child=_leave_faults_to_parent)


def compose(message: str, *, stack: str, error_code: int | None = None) -> dict[str, Any]:
    """Return the content of an error file, its texts cut; a code is that of another process."""
    code = {} if error_code is None else {"errorCode": error_code}
    callstack = bounded(stack, STACK_BYTES_MAX)
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    return {"message": {"message": bounded(message, MESSAGE_BYTES_MAX), **code, "extraInfo": extra}}


def describe(error: BaseException) -> dict[str, Any]:
    """Return the content of an error file for ``error``, whatever its methods do."""
    name = type(error).__name__
    try:
        message = f"{name}: {error}"
    except BaseException as problem:  # noqa: BLE001 - the user's __str__ may do anything
        message = f"{name}: (its message is not available: {type(problem).__name__})"
    try:
        stack = "".join(traceback.format_exception(error))
    except Exception as problem:  # noqa: BLE001 - as above, or no memory is left
        stack = f"(the traceback is not available: {type(problem).__name__})"
    code = getattr(first_failure(error), "exitcode", None)
    content = compose(message, stack=stack, error_code=code if isinstance(code, int) else None)
    if (rank := suspect_rank(error)) is not None:
        content["message"]["suspectRank"] = rank
    return content


def suspect_rank(error: BaseException) -> int | None:
    """Return the rank whose host an exception accuses, ``None`` if it accuses none."""
    try:
        return checked_rank(getattr(error, "drumbeat_suspect_rank", None))
    except Exception:  # noqa: BLE001 - the attribute may be the user's own code
        return None


def checked_rank(value: Any) -> int | None:
    """Return a whole number that can be a rank, ``None`` for anything else."""
    is_rank = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= RANK_MAX
    return int(value) if is_rank else None


def first_failure(error: BaseException) -> Any | None:
    """Return the failure that a launcher's error stands for, torch's or the agent's, if it is one.

    Known by what it offers: neither package is imported for it.
    """
    try:
        return error.get_first_failure()[1]  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - any class at all, of the user's as well
        return None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return a file, cut a byte beyond ``FILE_BYTES_MAX``. Raises ``OSError``, ``ValueError``."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        return file.read(FILE_BYTES_MAX + 1)


def parse(text: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ``ValueError``."""
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"longer than {FILE_BYTES_MAX} bytes")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - a matter of content here
    return content


def write(path: str, content: dict[str, Any]) -> None:
    """Put ``content`` into a file, whole or not at all unless it cannot be replaced, say a mount.

    A directory that a cleaner has removed is made again. Raises ``OSError`` if it can't be done.
    """
    text = json.dumps(content).encode()
    path = os.path.realpath(path)
    _make_directory(os.path.dirname(path))  # noqa: PTH120
    # Never a device or a pipe.
    if not os.path.exists(path) or os.path.isfile(path):  # noqa: PTH110, PTH113
        draft = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
        try:
            _write_to(draft, text, os.O_EXCL)
            os.replace(draft, path)  # noqa: PTH105 - no Path is needed for one call
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)  # noqa: PTH108
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # in place it would only be cut off
        else:
            return
    _write_to(path, text, os.O_TRUNC)


def bounded(text: str, bytes_max: int) -> str:
    """Return ``text`` without lone surrogates, its middle left out if it is too long."""
    # Cut before it is encoded as well: the text may be many times the limit.
    encoded = text[: bytes_max + 1].encode("utf-8", "backslashreplace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    half = (bytes_max - len(_LEFT_OUT.encode())) // 2
    head = text[:half].encode("utf-8", "backslashreplace")[:half]
    tail = text[-half:].encode("utf-8", "backslashreplace")[-half:]
    return head.decode("utf-8", "ignore") + _LEFT_OUT + tail.decode("utf-8", "ignore")


def _make_directory(path: str) -> None:
    """Make a directory, and those above it, for this user alone; as far as possible."""
    if not os.path.isdir(path):  # noqa: PTH112
        _make_directory(os.path.dirname(path))  # noqa: PTH120
        with suppress(OSError):
            os.mkdir(path, 0o700)  # noqa: PTH102


def _write_to(path: str, text: bytes, flag: int) -> None:
    # A pipe without a reader must not hold training up.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | flag
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        file.write(text)
