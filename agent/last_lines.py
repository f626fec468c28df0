"""Pure. The last lines of a worker's standard error, fit for a report."""

from __future__ import annotations

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


def _visible(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
