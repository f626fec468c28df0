"""Pure. Which lines of workers' output a reader wants: by a text in them, or by their level."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

LEVELS = ("debug", "info", "warning", "error", "critical")
# A level as programs write it: in capitals, in brackets, as a field, or a letter as glog does.
_LEVEL = re.compile(
    r"\b(DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL)|^([DIWEF])\d{4} "
    r"|(?:\[|\blevel[\"']?[=:] ?[\"']?)(debug|info|warn|error|critical|fatal)",
)
_BEGIN_CHARACTERS = 200  # of a line, where its level is looked for
_RANKS = {name[0]: place for place, name in enumerate(LEVELS)} | {"f": LEVELS.index("critical")}


def level_of(line: str) -> int | None:
    """Return the place of a line's level in ``LEVELS``; ``None``: it is no record of a log."""
    match = _LEVEL.search(line[:_BEGIN_CHARACTERS])
    return _RANKS[match[match.lastindex or 0][0].lower()] if match else None


class LineFilter:
    """What lines need to be shown. Lines behind a record, as tracebacks, have its level."""

    def __init__(self, text: str = "", level: str | None = None) -> None:
        self._text = text.lower()
        self._least = None if level is None else LEVELS.index(level)
        self._latest: dict[tuple[int, str], int] = {}  # the level of each stream

    def __call__(self, documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the documents of lines that are wanted, and all that are of no line."""
        return (of for of in documents if "line" not in of or self._is_wanted(of))

    def _is_wanted(self, of: dict[str, Any]) -> bool:
        if self._least is not None:
            stream, level = (of["rank"], of["stream"]), level_of(of["line"])
            if level is not None:
                self._latest[stream] = level
            if self._latest.get(stream, -1) < self._least:
                return False
        return self._text in of["line"].lower()
