"""Pure. Tables on a terminal: aligned columns, one line a row."""

from __future__ import annotations

from collections.abc import Sequence

from drumbeat.text.durations import format_duration
from drumbeat.text.format import one_line

CELL_CHARACTERS_MAX = 128
_NOTHING = "-"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows below their heads. No cell is empty, so that scripts can count columns."""
    shown = [list(heads), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)
    return "\n".join(lines)


def short(seconds: float) -> str:
    """Return a duration without spaces: "3d4h", "90s"."""
    return format_duration(seconds).replace("min", "m").replace(" ", "")


def _cell(text: str) -> str:
    return one_line(text, CELL_CHARACTERS_MAX) or _NOTHING
