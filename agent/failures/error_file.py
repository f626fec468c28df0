"""Shell. Reads a worker's error file, and the stacks beside it.

The format is torch's, see ``worker_sdk.errors``, or a plain text as the outer message. Whatever
else is found there becomes a note; a worker can't harm its agent through these files.
"""

from os import PathLike
from typing import Any

from msgspec.structs import replace

from drumbeat.agent.model.messages import WorkerError
from worker_sdk.context import FAULT_FILE_SUFFIX
from worker_sdk.errors import FILE_BYTES_MAX, RANK_MAX, bounded, parse, read_bytes

MESSAGE_BYTES_MAX = 16 * 1024
TRACEBACK_BYTES_MAX = 32 * 1024

_TIMESTAMP_MAX = 253_402_214_400  # the last day of a calendar of four digits, since 1970
_EXIT_CODE_MAX = 2**31 - 1
_NO_MESSAGE = "(error file unreadable: it has no message)"


def load_error_file(path: str | PathLike[str]) -> dict[str, Any] | str | None:
    """Return what the file holds, a note if it can't be read, ``None`` if there is nothing."""
    try:
        text = read_bytes(path)
        content = parse(text) if text else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return f"(error file unreadable: {why})"
    if content is not None and not isinstance(content.get("message"), str | dict):
        return _NO_MESSAGE
    return content


def read_error_file(path: str | PathLike[str]) -> WorkerError | None:
    """Return what a worker that ended badly says of it, ``None`` if it left nothing."""
    match load_error_file(path):
        case None:
            return None
        case str(note):
            return WorkerError(message=note)
        case {"message": str(text)}:
            return WorkerError(message=bounded(text, MESSAGE_BYTES_MAX))
        case {"message": {"message": str(text), **message}}:
            extra = message.get("extraInfo")
            stack = extra.get("py_callstack") if isinstance(extra, dict) else None
            return WorkerError(
                message=bounded(text, MESSAGE_BYTES_MAX),
                traceback=bounded(stack, TRACEBACK_BYTES_MAX) if isinstance(stack, str) else "",
                error_code=_whole(message.get("errorCode"), -_EXIT_CODE_MAX, _EXIT_CODE_MAX),
                suspect_rank=_whole(message.get("suspectRank"), 0, RANK_MAX),
            )
    return WorkerError(message=_NO_MESSAGE)


def with_stacks(error: WorkerError | None, stacks: str) -> WorkerError | None:
    """Add the stacks of a crash, if there are any, to the traceback."""
    if not stacks:
        return error
    if error is None:
        return WorkerError(message=stacks.partition("\n")[0], traceback=stacks)
    if error.traceback:
        # Together no longer than one alone: a failure record must not outgrow its limit.
        half = TRACEBACK_BYTES_MAX // 2
        stacks = f"{bounded(error.traceback, half).rstrip()}\n\n{bounded(stacks, half)}"
    return replace(error, traceback=stacks)


def read_faults(path: str | PathLike[str]) -> str:
    """Return the stacks that a crash left beside the error file, those of its thread first."""
    try:
        text = read_bytes(f"{path}{FAULT_FILE_SUFFIX}")
    except (OSError, ValueError):
        return ""
    blocks = text[:FILE_BYTES_MAX].decode("utf-8", "replace").strip().split("\n\n")
    # A stable sort: what happened stays first, then the thread that it happened to.
    rest = sorted(blocks[1:], key=lambda block: not block.startswith("Current thread"))
    return bounded("\n\n".join([blocks[0], *rest]), TRACEBACK_BYTES_MAX)


def timestamp_of(content: dict[str, Any]) -> int | None:
    """Return when the error was recorded, in seconds since 1970 on the worker's host."""
    message = content.get("message")
    holder: object = message.get("extraInfo") if isinstance(message, dict) else content
    return _whole(holder.get("timestamp"), 0, _TIMESTAMP_MAX) if isinstance(holder, dict) else None


def _whole(value: object, low: int, high: int) -> int | None:
    """Return a whole number within bounds that is written as one, or as a text."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        return None
    try:
        return int(value) if low <= int(value) <= high else None
    except ValueError:
        return None
