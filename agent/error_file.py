"""Shell. Reads what a worker left in its error file.

The format is torch's: ``{"message": {"message": …, "extraInfo": {"py_callstack":
…}}}``, or a plain text as the outer message. Whatever else is found there
becomes a note; a worker can't harm its agent through this file.
Source: ``torch/distributed/elastic/multiprocessing/errors/error_handler.py`` (2.13.0).
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from agent.model import WorkerError

FILE_BYTES_MAX = 1024 * 1024
MESSAGE_CHARACTERS_MAX = 16 * 1024
TRACEBACK_CHARACTERS_MAX = 32 * 1024


def read_error_file(path: Path) -> WorkerError | None:
    """Return what the file says, a note if it is unreadable, ``None`` if there is none."""
    try:
        text = _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return WorkerError(message=f"(error file unreadable: {error.strerror})")
    if not text:
        return None
    if len(text) > FILE_BYTES_MAX:
        return WorkerError(message=f"(error file longer than {FILE_BYTES_MAX} bytes, not read)")
    try:
        return _parse(json.loads(text))
    except (ValueError, RecursionError):
        return WorkerError(message="(error file is not JSON)")


def _read(path: Path) -> bytes:
    """Read at most one byte more than the limit, from a regular file only."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        # Only now, because a file object of a directory is refused and leaves it open.
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)


def _parse(content: Any) -> WorkerError:
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return WorkerError(message=_cut(message, MESSAGE_CHARACTERS_MAX))
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return WorkerError(message="(error file has no message)")
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return WorkerError(
        message=_cut(message["message"], MESSAGE_CHARACTERS_MAX),
        traceback=_cut(stack, TRACEBACK_CHARACTERS_MAX) if isinstance(stack, str) else "",
    )


def _cut(text: str, limit: int) -> str:
    """Keep the beginning and, more telling in a traceback, the end. No lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"
