"""A few rounds of fixed seeds, and that rounds notice mistakes; ``make chaos`` lives more."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.chaos import network, run
from tests.chaos.mistakes import MISTAKES

if TYPE_CHECKING:
    from pathlib import Path

MISSING = network.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(run.ROUND_S + 60),
    pytest.mark.skipif(bool(MISSING), reason=f"a round needs networks of its own: {MISSING}"),
]


@dataclasses.dataclass(frozen=True)
class Made:
    """A mistake, and rounds of which one shows it."""

    mistake: str
    only: tuple[str, ...]
    seeds: tuple[int, ...]
    words: str


MADE = [
    Made("forgets_rounds", ("fail",), (2, 3), "no order explains the answers"),
    Made("forgets_notes", ("cut",), (2, 3), "no order explains the answers"),
    Made("gives_a_rank_twice", ("cut",), (2, 3, 4), "was given twice"),
    Made("charges_losses", ("kill", "plain"), (500, 507), "restarts charged for 0 faults"),
    Made("waits_for_no_workers", ("leave", "plain"), (7077, 7154), "lived twice"),
    Made("drops_records", ("fail", "plain"), (601,), "failures are kept of"),
]


LEAVES = ("--only", "leave", "--only", "plain")


@pytest.mark.parametrize(
    ("seed", "only"),
    [
        (1, ()),
        (3, ()),
        (18, ()),
        (7077, LEAVES),  # a rank lived twice while the workers of a host that left ignored SIGTERM
    ],
)
def test_a_round_keeps_the_promises(tmp_path: Path, seed: int, only: tuple[str, ...]) -> None:
    result = run.live(seed, tmp_path / f"round-{seed}", only)
    assert result.problems == ()


@pytest.mark.soak
@pytest.mark.parametrize("made", MADE, ids=lambda made: made.mistake)
def test_a_mistake_is_noticed(tmp_path: Path, made: Made) -> None:
    assert made.mistake in MISTAKES
    words = ["--mistake", made.mistake, *(w for kind in made.only for w in ("--only", kind))]
    problems = [
        problem
        for seed in made.seeds
        for problem in run.live(seed, tmp_path / f"{made.mistake}-{seed}", words).problems
    ]
    assert made.words in "\n".join(problems)
