"""Shell. Error files in torch's format: made from an error, written and read.

Source: ``torch/distributed/elastic/multiprocessing/errors/error_handler.py`` (2.13.0).
"""

import errno
import json
import os
import stat
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

# Even if JSON writes each byte as six, both fit into the file.
MESSAGE_BYTES_MAX = 64 * 1024
STACK_BYTES_MAX = 64 * 1024
FILE_BYTES_MAX = 1024 * 1024

NO_ERROR_FILE = "<N/A>"
"""What stands for the error file of a process that left none."""

_LEFT_OUT = "\n… (left out) …\n"

Content = dict[str, Any]


def compose(message: str, *, stack: str, error_code: int | None = None) -> Content:
    """Return the content of an error file, its texts cut; a code is that of another process."""
    code = {} if error_code is None else {"errorCode": error_code}
    callstack = bounded(stack, STACK_BYTES_MAX)
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    return {"message": {"message": bounded(message, MESSAGE_BYTES_MAX), **code, "extraInfo": extra}}


def describe(error: BaseException) -> Content:
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
    return compose(message, stack=stack, error_code=code if isinstance(code, int) else None)


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


def parse(text: bytes) -> Content:
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


def write(path: str, content: Content) -> None:
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
    if len(text) <= bytes_max:
        encoded = text.encode("utf-8", "backslashreplace")
        if len(encoded) <= bytes_max:
            return encoded.decode()
    half = (bytes_max - len(_LEFT_OUT.encode())) // 2
    # Cut before it is encoded as well: the text may be many times the limit.
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
