"""All ranks save at the same steps, whenever they hear of them."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from drumbeat.agent.core.notice import Notice, WorkerAnswer
from drumbeat.agent.watchdog.notice_page import NoticePage
from drumbeat.coordinator.core.phases.notices import Notices
from tests.simulation import checkpoints
from tests.simulation.checkpoints import Schedule
from tests.support.orders import at_most
from worker_sdk import notices
from worker_sdk.board import notice_layout as layout
from worker_sdk.board.board import Board

SCHEDULES = int(os.environ.get("DRUMBEAT_SCHEDULES", at_most(300)))
# Within so many schedules a mistake is found.
MISTAKE_SCHEDULES_MAX = 300


def live(seed: int, directory: Path) -> Schedule:
    """Live one schedule."""
    (directory := directory / str(seed)).mkdir()
    schedule = Schedule(seed, directory)
    schedule.live()
    return schedule


@pytest.mark.slow
def test_no_rank_saves_at_a_step_at_which_another_does_not(tmp_path: Path) -> None:
    disagreed, counts = dict[int, list[int]](), Counter[str]()
    for seed in range(SCHEDULES):
        schedule = live(seed, tmp_path)
        counts += schedule.counts
        if steps := schedule.disagreements():
            disagreed[seed] = steps
    print(f"{SCHEDULES} schedules, {len(disagreed)} with a disagreement: {dict(counts)}")
    assert not disagreed, f"seeds and their steps: {disagreed}"
    assert counts["steps saved at"] > SCHEDULES / 2, "they hardly ever save"
    assert counts["stops"] > SCHEDULES / 2, "ranks hardly ever come to a step before its verdict"


def stops_at_no_step(patch: pytest.MonkeyPatch) -> None:
    """Ranks go on at a step of which they do not know whether it is chosen."""

    def look(board: Board, before: int, step: int) -> bool:
        return bool(notices.look(board, before, step))

    patch.setattr(checkpoints, "look", look)


def waits_for_no_answer(patch: pytest.MonkeyPatch) -> None:
    """The coordinator chooses a step before all hosts have said that they will stop at it."""
    original = Notices._propose

    def propose(self: Notices, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._awaited = set()

    patch.setattr(Notices, "_propose", propose)


def is_always_ready(patch: pytest.MonkeyPatch) -> None:
    """A host says that its ranks will stop at a step that they have passed."""
    original = NoticePage.answer

    def answer(self: NoticePage, notice: Notice) -> WorkerAnswer:
        said = original(self, notice)
        is_open = notice.proposed is not None
        return replace(said, is_missed=said.is_missed and not is_open, is_ready=True)

    patch.setattr(NoticePage, "answer", answer)


def forgets_what_was_chosen(patch: pytest.MonkeyPatch) -> None:
    """A rank that is behind saves at no step of a notice that is over."""
    original = NoticePage.show

    def show(self: NoticePage, notice: Notice) -> None:
        original(self, notice)
        if notice.is_over:
            self._write(layout.CHOSEN, layout.NO_STEP)
            self._write(layout.PROPOSED, layout.NO_STEP)

    patch.setattr(NoticePage, "show", show)


@pytest.mark.parametrize(
    "mistake",
    [stops_at_no_step, waits_for_no_answer, is_always_ready, forgets_what_was_chosen],
)
def test_a_mistake_makes_ranks_disagree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    seeds = range(MISTAKE_SCHEDULES_MAX)
    assert any(live(seed, tmp_path).disagreements() for seed in seeds)
