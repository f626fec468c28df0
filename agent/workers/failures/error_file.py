"""Shell. Reads what a worker left in its error file, and beside it.

The format is torch's: ``{"message": {"message": …, "errorCode": …, "extraInfo":
{"py_callstack": …, "timestamp": …}}}``, or a plain text as the outer message with
``timestamp`` beside it. Whatever else is found there becomes a note; a worker
can't harm its agent through these files.
Source: ``torch/distributed/elastic/multiprocessing/errors/error_handler.py`` (2.13.0).
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.core.model import WorkerError
from worker_sdk.context import FAULT_FILE_SUFFIX

FILE_BYTES_MAX = 1024 * 1024
MESSAGE_CHARACTERS_MAX = 16 * 1024
TRACEBACK_CHARACTERS_MAX = 32 * 1024
FAULT_CHARACTERS_MAX = 32 * 1024

_TIMESTAMP_MAX = 253_402_214_400
"""The last day that a calendar of four digits knows, in seconds since 1970."""
_EXIT_CODE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFile:
    """What an error file holds: ``content``, or a ``note`` that says why there is none."""

    content: dict[str, Any] | None = None
    note: str = ""


def load_error_file(path: Path) -> ErrorFile | None:
    """Return what the file holds, ``None`` if there is no file or nothing in it."""
    try:
        text = _read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return ErrorFile(note=f"(error file unreadable: {why})")
    return _checked(text) if text else None


def read_error_file(path: Path) -> WorkerError | None:
    """Return what a worker that ended badly says of it, ``None`` if it left nothing.

    The stacks of a crash come with the traceback.
    """
    found = load_error_file(path)
    stacks = read_faults(path)
    if found is None:
        if not stacks:
            return None
        return WorkerError(message=stacks.partition("\n")[0], traceback=stacks)
    error = WorkerError(message=found.note) if found.content is None else _parse(found.content)
    if not stacks:
        return error
    if not error.traceback:
        return replace(error, traceback=stacks)
    # Together no longer than one alone: a failure record must not outgrow its limit.
    first, then = (_cut(text, TRACEBACK_CHARACTERS_MAX // 2) for text in (error.traceback, stacks))
    return replace(error, traceback=f"{first.rstrip()}\n\n{then}")


def read_faults(path: Path) -> str:
    """Return the stacks that a crash left beside the error file, those of its thread first.

    Empty if there was no crash, or nothing to be read.
    """
    try:
        text = _read(Path(f"{path}{FAULT_FILE_SUFFIX}"))
    except (OSError, ValueError):
        return ""
    blocks = text[:FILE_BYTES_MAX].decode("utf-8", "replace").strip().split("\n\n")
    # A stable sort: what happened stays first, then the thread that it happened to.
    rest = sorted(blocks[1:], key=lambda block: not block.startswith("Current thread"))
    return _cut("\n\n".join([blocks[0], *rest]), FAULT_CHARACTERS_MAX)


def timestamp_of(content: dict[str, Any]) -> int | None:
    """Return when the error was recorded, in seconds since 1970 on the worker's host."""
    message = content.get("message")
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stamp = extra.get("timestamp") if isinstance(extra, dict) else None
    else:
        stamp = content.get("timestamp")
    number = _whole(stamp)
    return number if number is not None and 0 <= number <= _TIMESTAMP_MAX else None


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


def _checked(text: bytes) -> ErrorFile:
    if len(text) > FILE_BYTES_MAX:
        return ErrorFile(note=f"(error file longer than {FILE_BYTES_MAX} bytes, not read)")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorFile(note="(error file is not JSON)")
    if not isinstance(content, dict) or not isinstance(content.get("message"), str | dict):
        return ErrorFile(note="(error file has no message)")
    return ErrorFile(content=content)


def _parse(content: dict[str, Any]) -> WorkerError:
    message = content["message"]
    timestamp = timestamp_of(content)
    if isinstance(message, str):
        return WorkerError(message=_cut(message, MESSAGE_CHARACTERS_MAX), timestamp=timestamp)
    text, extra = message.get("message"), message.get("extraInfo")
    if not isinstance(text, str):
        return WorkerError(message="(error file has no message)")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    code = _whole(message.get("errorCode"))
    return WorkerError(
        message=_cut(text, MESSAGE_CHARACTERS_MAX),
        traceback=_cut(stack, TRACEBACK_CHARACTERS_MAX) if isinstance(stack, str) else "",
        error_code=code if code is not None and abs(code) <= _EXIT_CODE_MAX else None,
        timestamp=timestamp,
    )


def _whole(value: object) -> int | None:
    """Return a whole number that is written as one, or as a text."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _cut(text: str, limit: int) -> str:
    """Keep the beginning and, more telling in a traceback, the end. No lone surrogates."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit} characters left out …\n{text[-half:]}"
