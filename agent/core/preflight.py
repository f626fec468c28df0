"""Pure. Whom a worker of the preflight names with its last line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from drumbeat.model import PreflightFinding
from drumbeat.text.format import one_line

FINDINGS_MAX, RANKS_MAX, REASON_CHARACTERS_MAX = 16, 1024, 256
_PREFIX = "drumbeat: exclude"
_LINE = re.compile(rf"{_PREFIX} ([0-9]{{1,9}}(?:, ?[0-9]{{1,9}})*)(?:: ?(.*))?", re.ASCII)


def findings_in(lines: Iterable[str]) -> tuple[PreflightFinding, ...]:
    """Return what lines name; one that is not as it must be has no ranks, and is the reason."""
    named = [line.strip() for line in lines if line.strip().startswith(_PREFIX)]
    return tuple(map(_finding, named, map(_LINE.fullmatch, named)))


def _finding(line: str, match: re.Match[str] | None) -> PreflightFinding:
    ranks = sorted({int(rank) for rank in match[1].split(",")})[:RANKS_MAX] if match else ()
    reason = (match[2] or "no reason is given") if match else line
    return PreflightFinding(ranks=tuple(ranks), reason=one_line(reason, REASON_CHARACTERS_MAX))
