"""Pure. The last lines of a worker's standard error, fit for a report."""

from __future__ import annotations

import re

LINES_MAX = 50
BYTES_MAX = 32 * 1024
"""Most that is kept; more than what fifty lines usually have, and little for a record."""


def last_lines(data: bytes) -> str:
    """Return the last lines of what was written, as a terminal would leave them.

    What a progress bar has overwritten is left out. Undecodable bytes are replaced.
    """
    # The first line is incomplete if bytes before it were cut off; it may still be all there is.
    lines = data[-BYTES_MAX:].decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return "\n".join(_visible(line) for line in lines[-LINES_MAX:])


_TRACEBACK = "Traceback (most recent call last):"
# torch says so at the beginning of each line once workers are connected.
_RANK = re.compile(r"^\[rank[0-9]+\]: ?")
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?:: .*)?")
# These come without the line above, for nothing has run.
_SYNTAX_ERROR = re.compile(r"(?:SyntaxError|IndentationError|TabError): .*")


def exception_in(text: str) -> str:
    """Return the first line of the exception that the last traceback ends with, "" if none."""
    lines = [_RANK.sub("", line) for line in text.splitlines()]
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].strip() == _TRACEBACK:
            behind = (line for line in lines[index + 1 :] if line and not line[0].isspace())
            found = next(behind, "")
            return found if _EXCEPTION.fullmatch(found) else ""
    return next((line for line in reversed(lines) if _SYNTAX_ERROR.fullmatch(line)), "")


def _visible(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
