"""Whom the last line of a worker of the preflight names."""

import pytest

from drumbeat.agent.core.preflight import RANKS_MAX, REASON_CHARACTERS_MAX, findings_in
from drumbeat.model import PreflightFinding


@pytest.mark.parametrize(
    ("line", "ranks", "reason"),
    [
        ("drumbeat: exclude 1: slow link", (1,), "slow link"),
        ("  drumbeat: exclude 3,5, 4:slow\r", (3, 4, 5), "slow"),
        ("drumbeat: exclude 7,7", (7,), "no reason is given"),
        ("drumbeat: exclude", (), "drumbeat: exclude"),
        ("drumbeat: exclude 1-3: slow", (), "drumbeat: exclude 1-3: slow"),
        ("drumbeat: exclude ٣: odd digits", (), "drumbeat: exclude ٣: odd digits"),
        ("drumbeat: exclude 99999999999: x", (), "drumbeat: exclude 99999999999: x"),
    ],
)
def test_a_line_names_ranks_or_is_told_as_it_is(
    line: str, ranks: tuple[int, ...], reason: str
) -> None:
    assert findings_in([line]) == (PreflightFinding(ranks=ranks, reason=reason),)


def test_other_lines_name_nobody() -> None:
    assert findings_in(["", "all is well", "say drumbeat: exclude 1: x"]) == ()


def test_what_is_named_is_bounded() -> None:
    ranks = ",".join(map(str, range(5000)))
    (found,) = findings_in([f"drumbeat: exclude {ranks}: {'x' * 5000}"])
    assert len(found.ranks) == RANKS_MAX
    assert len(found.reason) <= REASON_CHARACTERS_MAX
