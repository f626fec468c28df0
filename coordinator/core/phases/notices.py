"""Pure. The notice of a running round: given, one step chosen for all, waited for, over."""

from __future__ import annotations

import math

from msgspec.structs import replace

from coordinator.core.effects import TellNotice
from coordinator.core.inprocess.records import IterationPhase
from coordinator.core.model import Round
from coordinator.core.phases.phase import RunContext
from coordinator.core.progress.notice import (
    Leaving,
    NoticeEnded,
    NoticeGiven,
    NoticeKind,
    NoticeReport,
    PendingNotice,
    StepChosen,
)
from drumbeat.format import count

# The longest wait for where workers are; hosts that have not said it by then may miss the step,
# unless the coordinator was away and they are not back yet.
REPORTS_WAIT_S = 1.0
# What a choice is given to arrive, at least; else twice as long as the reports took.
LEAD_MIN_S = 0.1
# A time that ends little sooner is the same, said again.
SOONER_MIN_S = 1.0
MARGIN_MAX = 1_000_000
STEP_MAX = 2**62  # no training has so many; a worker may say anything


class Notices:
    """The notices of one round. Not thread-safe; one owner calls it.

    ``review_at`` says when to call ``review`` again. All but ``give``, a new choice and the end
    cost the same in a run of any size.
    """

    def __init__(self, run: RunContext, current: Round, *, now: float) -> None:
        self.review_at: float | None = None
        self._run, self._round = run, current
        self._told_at = now
        self._misses = 0
        self._is_missed = False
        self._spoken = set[str]()  # who has said anything of the one that is pending
        self._asked: int | None = None  # the latest step of any worker
        self._step_time_s: float | None = None  # the shortest
        self._awaited: set[str] = set()  # whose word is missing: where they are, or that they saved
        self._answers_by: float | None = None  # then those that have not spoken are awaited no more
        self._untold: set[str] = set()
        self._over: PendingNotice | None = None  # the latest that has ended
        # Participants that will go away, and those of them that were told that they may.
        self._leaving: set[str] = set()
        self._dismissed: set[str] = set()
        if run.state.notice is not None:  # of an earlier life of the coordinator
            self._tell(now)

    def give(self, kind: NoticeKind, reason: str, *, until: float, now: float) -> None:
        """Give notice to all ranks until ``until``; one that is pending stands for this as well.

        It ends no later then: who is to wait for it waits for the shorter time.
        """
        if (pending := self._run.state.notice) is not None:
            if until < pending.until_s - (SOONER_MIN_S if until > now else 0.0):
                shorter = replace(pending, reason=reason, until_s=until)
                self._run.decide(NoticeGiven(notice=shorter, at_s=now))
                self._untold.update(self._round.seats)
            return
        if until <= now or not self._round.seats:
            return
        number = self._run.state.notices_count + 1
        notice = PendingNotice(notice_id=number, kind=kind, reason=reason, until_s=until)
        self._run.decide(NoticeGiven(notice=notice, at_s=now))
        self._misses, self._asked, self._step_time_s = 0, None, None
        self._spoken.clear()
        self._tell(now)
        self.review_at = min(until, now + REPORTS_WAIT_S)

    def leaving(self, incarnation: str, leaving: Leaving, *, now: float) -> None:
        """Take in that a participant's host will go away, as often as it says so."""
        if incarnation in self._dismissed:
            self._untold.add(incarnation)  # it was told that it may go, perhaps in vain
            return
        self._leaving.add(incarnation)
        reason = f"{self._round.seats[incarnation].agent.name} {leaving.reason}"
        until = now + leaving.time_left_s
        self.give(NoticeKind.PREEMPTION, reason, until=until, now=now)

    def reported(self, incarnation: str, report: NoticeReport) -> None:
        """Take in what the workers of a participant say."""
        notice = self._run.state.notice
        if notice is None or report.notice_id != notice.notice_id:
            return
        self._spoken.add(incarnation)
        if report.asked is not None:
            self._asked = max(report.asked, self._asked or 0)
        if report.step_time_s is not None:
            self._step_time_s = min(report.step_time_s, self._step_time_s or math.inf)
        if report.chosen == notice.chosen:
            self._is_missed |= report.is_missed
            if notice.chosen is None or report.is_saved:
                self._awaited.discard(incarnation)
            elif self._run.state.is_awaited(incarnation):
                self._awaited.add(incarnation)

    def connected(self, incarnation: str, *, now: float) -> None:
        """Tell a member that has a new session what it may not have heard."""
        self._untold.add(incarnation)
        if self._run.state.notice is not None and incarnation not in self._spoken:
            self._answers_by = now + REPORTS_WAIT_S

    def lost(self, incarnation: str) -> None:
        """Wait for a member no more."""
        self._awaited.discard(incarnation)
        if incarnation in self._dismissed:
            self._untold.update(self._round.seats)

    def review(self, *, now: float) -> None:
        """Journal what follows."""
        self.review_at = None
        notice = self._run.state.notice
        if notice is None:
            return
        if self._answers_by is not None and now >= self._answers_by:
            self._answers_by = None
            self._awaited &= self._spoken | self._run.members.missed
        if now >= notice.until_s:
            self._end(notice, self._time_is_up(notice), now)
        elif self._is_missed and notice.chosen is not None:
            self._misses += 1
            self._choose(notice, now)
        elif notice.chosen is not None and not self._awaited:
            self._end(notice, f"all have saved, at step {notice.chosen} or right after", now)
        elif notice.chosen is None and not self._awaited and self._asked is None:
            self._end(notice, "training does not ask when to save", now)
        elif notice.chosen is None and not self._awaited:
            self._choose(notice, now)
        if (pending := self._run.state.notice) is not None:
            instants = (pending.until_s, self._answers_by)
            self.review_at = min(at for at in instants if at is not None)

    def effects(self, *, now: float) -> list[TellNotice]:
        """Return what to tell participants, once."""
        pending, iterations = self._run.state.notice, self._run.state.iterations
        is_interrupted = iterations is not None and iterations.phase is IterationPhase.INTERRUPTED
        if not self._untold or (pending is None and is_interrupted):
            return []  # as at `_end`: what waits for the change is about to be interrupted
        untold, self._untold = self._untold & self._round.seats.keys(), set()
        if (notice := pending or self._over) is None:
            return []
        told = []
        for incarnation in sorted(untold):
            presence = self._run.members.presences.get(incarnation)
            if presence is not None and presence.session_id is not None:
                told.append(
                    TellNotice(
                        session_id=presence.session_id,
                        notice=notice,
                        round_id=self._round.round_id,
                        time_left_s=max(0.0, notice.until_s - now),
                        is_over=pending is None,
                    )
                )
        return told

    def _choose(self, notice: PendingNotice, now: float) -> None:
        """Choose a step that no worker has passed, nor will have when it hears of it."""
        assert self._asked is not None, "a choice without any step"
        lead_s = max(LEAD_MIN_S, 2 * (now - self._told_at))
        steps = math.ceil(lead_s / self._step_time_s) if self._step_time_s else 1
        margin = min(steps * 2**self._misses, MARGIN_MAX)
        step = max(self._asked + 1 + margin, (notice.chosen or 0) + 1)
        if step > STEP_MAX:
            self._end(notice, f"there is no step after {self._asked}", now)
            return
        self._run.commit(StepChosen(notice_id=notice.notice_id, step=step))
        self._run.log("step chosen", f"all save at step {step}, for the latest is {self._asked}")
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Have all participants told, and their word awaited. Linear in them."""
        state = self._run.state
        awaited = {i for i in self._round.seats if state.is_awaited(i) and i in state.members}
        self._awaited, self._told_at, self._is_missed = awaited, now, False
        self._answers_by = now + REPORTS_WAIT_S
        self._untold.update(self._round.seats)

    def _end(self, notice: PendingNotice, reason: str, now: float) -> None:
        leaving = self._leaving - self._dismissed
        self._over, self._dismissed = notice, self._dismissed | leaving
        self._run.decide(NoticeEnded(notice_id=notice.notice_id, reason=reason, at_s=now))
        # While a host leaves, the others hear nothing: training that waits for the change to come
        # would go on, and make steps in vain.
        self._untold.update(leaving & self._run.state.members.keys() or self._round.seats)
        self._awaited = set()

    def _time_is_up(self, notice: PendingNotice) -> str:
        missing = count(len(self._awaited), "host")
        if notice.chosen is None:
            return f"its time is up, and no step was chosen: {missing} did not say where they are"
        return f"its time is up: {missing} did not save at step {notice.chosen}"
