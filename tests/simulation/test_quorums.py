"""Replica groups that die, hang and come back train on together, whatever the coordinator does."""

import os
from collections import Counter
from collections.abc import Callable

import pytest

from drumbeat.coordinator.core.quorum.model import QuorumEffect
from drumbeat.coordinator.core.quorum.quorum import JobQuorum
from tests.simulation.quorums import Schedule
from tests.support.orders import at_most

SCHEDULES = int(os.environ.get("DRUMBEAT_SCHEDULES", at_most(200)))
# Within so many schedules a mistake is found.
MISTAKE_SCHEDULES_MAX = 300


@pytest.mark.slow
def test_no_two_quorums_share_an_id_none_splits_and_no_group_waits_for_ever() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        try:
            schedule.live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, at {schedule.now:.3f} s") from error
        counts += schedule.counts
    print(f"{SCHEDULES} schedules: {dict(counts)}")
    for wanted in ("kills", "hangs", "cuts", "failovers", "failed steps", "repeated answers"):
        assert counts[wanted] > 0, f"no {wanted}"
    assert counts["steps"] > 30 * SCHEDULES


def knows_no_earlier_quorum(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that starts again begins with the first id."""
    begin = JobQuorum.__init__
    patch.setattr(
        JobQuorum,
        "__init__",
        lambda self, job, policy, _kept, running, *, now: begin(
            self, job, policy, None, running, now=now
        ),
    )


def waits_for_no_journal(patch: pytest.MonkeyPatch) -> None:
    """A quorum with another id is given before that is durable."""
    form, kept = JobQuorum._form, JobQuorum._kept

    def form_and_give(self: JobQuorum, reason: str, now: float) -> list[QuorumEffect]:
        effects = form(self, reason, now)
        return effects if self._pending is None else [*effects, *kept(self, now)]

    patch.setattr(JobQuorum, "_form", form_and_give)
    patch.setattr(JobQuorum, "_kept", lambda *_: [])


def repeats_no_answer(patch: pytest.MonkeyPatch) -> None:
    """An agent that missed a quorum is not given it again."""
    patch.setattr(JobQuorum, "_repeat", lambda *_: [])


def asks_no_majority(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks first trains alone."""
    decide = JobQuorum._decide

    def hasty(self: JobQuorum, now: float) -> list[QuorumEffect]:
        if self._asking and self._pending is None and self._absent:
            return self._form("", now)
        return decide(self, now)

    patch.setattr(JobQuorum, "_decide", hasty)


def live_all(count: int) -> None:
    for seed in range(count):
        Schedule(seed).live()


@pytest.mark.parametrize(
    "mistake",
    [
        knows_no_earlier_quorum,
        waits_for_no_journal,
        repeats_no_answer,
        asks_no_majority,
    ],
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError) as found:
        live_all(MISTAKE_SCHEDULES_MAX)
    print(f"{mistake.__name__}: {found.value}")
