"""Pure. The notice of a running round: given, one step chosen for all, waited for, over."""

from __future__ import annotations

import math
from collections.abc import Collection

from msgspec.structs import replace

from drumbeat.coordinator.core.effects import TellNotice
from drumbeat.coordinator.core.inprocess.records import IterationPhase
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.phases.phase import RunContext
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.notice import (
    Leaving,
    NoticeEnded,
    NoticeGiven,
    PendingNotice,
    StepChosen,
    StepProposed,
)
from drumbeat.model import NoticeKind, NoticeReport
from drumbeat.text.format import count

# The longest wait for a host's word: where its workers are, or that they will stop at a step. No
# longer than a lease: a host that is silent is given up.
ANSWERS_WAIT_S = 5.0
# The longest from the proposal of a step to its choice. Ranks stop at it for 30 s at most
# (``STOP_MAX_S`` of the worker SDK), so that a choice has 20 s to arrive.
PROPOSAL_MAX_S = 10.0
# How many steps are proposed in vain, because a host does not answer in time.
UNANSWERED_MAX = 3
# What a proposal is given to arrive, at least; else twice as long as the reports took.
LEAD_MIN_S = 0.1
# A time that ends little sooner is the same, said again.
SOONER_MIN_S = 1.0
MARGIN_MAX = 1_000_000
STEP_MAX = 2**62  # no training has so many; a worker may say anything


class Notices:
    """The notices of one round. Not thread-safe; one owner calls it.

    Hosts say where their workers are, a later step is proposed, and chosen once all hosts have said
    that their workers will stop at it. ``review_at`` says when to call ``review`` again. All but
    ``give``, a new step and the end cost the same in a run of any size.
    """

    def __init__(self, run: RunContext, current: Round, *, now: float) -> None:
        self.review_at: float | None = None
        self._run, self._round = run, current
        self._told_at = now
        self._misses = self._unanswered = 0
        self._is_missed = False
        self._spoken = set[str]()  # who has said anything of the one that is pending
        self._asked: int | None = None  # the latest step of any worker
        self._step_time_s: float | None = None  # the shortest
        self._awaited: set[str] = set()  # whose word is missing: where, ready, or saved
        self._answers_by: float | None = None  # then no more is awaited of those that are silent
        # Until when the proposed step may be chosen; None: not at all, for it was proposed in an
        # earlier life of the coordinator, and ranks stop at it since then.
        self._choice_by: float | None = None
        # Participants whose workers have ended, so the steps that they passed are unknown.
        self._ended = set(run.state.succeeded)
        self._untold: set[str] = set()
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
        last = self._run.state.notice_over
        notice = PendingNotice(
            notice_id=self._run.state.notices_count + 1,
            kind=kind,
            reason=reason,
            until_s=until,
            chosen_before=None if last is None else last.chosen or last.chosen_before,
        )
        self._run.decide(NoticeGiven(notice=notice, at_s=now))
        self._misses, self._unanswered, self._asked, self._step_time_s = 0, 0, None, None
        self._spoken.clear()
        self._choice_by = None
        self._tell(now)
        self.review_at = min(until, now + ANSWERS_WAIT_S)

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
        if self._is_asking(notice):
            self._awaited.discard(incarnation)
        elif (report.proposed, report.chosen) == (notice.proposed, notice.chosen):
            self._is_missed |= report.is_missed
            if report.is_ready if notice.proposed is not None else report.is_saved:
                self._awaited.discard(incarnation)
            elif self._run.state.is_awaited(incarnation):
                self._awaited.add(incarnation)

    def connected(self, incarnation: str, *, now: float) -> None:
        """Tell a member that has a new session what it may not have heard."""
        self._untold.add(incarnation)
        if self._run.state.notice is not None and incarnation in self._awaited:
            self._answers_by = now + ANSWERS_WAIT_S

    def succeeded(self, incarnation: str) -> None:
        """Take in that all workers of a participant have ended."""
        notice = self._run.state.notice
        is_open = notice is not None and notice.proposed is not None and self._choice_by is not None
        if not is_open or incarnation in self._awaited:
            self._ended.add(incarnation)  # else it ended before the step that it is ready for
        self.lost(incarnation)

    def lost(self, incarnation: str) -> None:
        """Wait for a member no more."""
        self._awaited.discard(incarnation)
        if incarnation in self._dismissed:
            self._untold.update(self._round.seats)

    def review(self, *, now: float, judged_at: float) -> None:
        """Journal what follows."""
        self.review_at = None
        notice = self._run.state.notice
        if notice is None:
            return
        is_late = self._answers_by is not None and judged_at >= self._answers_by
        if is_late:
            self._answers_by = None
        if judged_at >= notice.until_s:
            self._end(notice, self._time_is_up(notice), now)
        elif notice.chosen is not None and notice.proposed is None:
            self._review_saving(notice, now, is_late=is_late)
        elif self._ended:
            self._end(
                notice, f"no rank saves: training has ended on {self._hosts(self._ended)}", now
            )
        elif self._is_asking(notice):
            self._review_asking(notice, now, is_late=is_late)
        else:
            self._review_proposal(notice, now, is_late=is_late)
        if (pending := self._run.state.notice) is not None:
            choice_by = self._choice_by if pending.proposed is not None else None
            instants = (pending.until_s, self._answers_by, choice_by)
            self.review_at = min(at for at in instants if at is not None)

    def _is_asking(self, notice: PendingNotice) -> bool:
        """Whether it is asked where workers are, to propose a step."""
        is_open = notice.proposed is not None and self._choice_by is not None
        return not is_open and (notice.chosen is None or notice.proposed is not None)

    def _review_asking(self, notice: PendingNotice, now: float, *, is_late: bool) -> None:
        silent = self._awaited - self._run.members.missed
        if is_late and silent:
            why = f"{self._hosts(silent)} did not say within {ANSWERS_WAIT_S:g} s where training is"
            self._end(notice, f"no rank saves: {why}", now)
        elif not self._awaited and self._asked is None:
            self._end(notice, "training does not ask when to save", now)
        elif not self._awaited:
            self._propose(notice, now)

    def _review_proposal(self, notice: PendingNotice, now: float, *, is_late: bool) -> None:
        """Choose the proposed step if all are ready for it in time, else propose a later one."""
        assert notice.proposed is not None, "nothing is proposed"
        is_late |= self._choice_by is None or now >= self._choice_by
        if self._is_missed:
            self._misses += 1
            self._propose(notice, now)
        elif not self._awaited and not is_late:
            step = notice.proposed
            self._run.commit(StepChosen(notice_id=notice.notice_id, step=step))
            self._run.log("step chosen", f"all save at step {step}: every host will stop at it")
            self._tell(now)
        elif is_late:
            self._unanswered += 1
            silent = self._hosts(self._awaited) if self._awaited else "the coordinator"
            why = f"{silent} did not answer in time about step {notice.proposed}"
            if self._unanswered >= UNANSWERED_MAX:
                self._end(notice, f"no rank saves: {why}", now)
            else:
                self._run.log("step given up", why)
                self._propose(notice, now)

    def _review_saving(self, notice: PendingNotice, now: float, *, is_late: bool) -> None:
        if is_late:
            self._awaited &= self._spoken | self._run.members.missed
        if self._is_missed and self._ended:
            self._end(notice, f"a rank did not save at step {notice.chosen}", now)
        elif self._is_missed:
            self._misses += 1
            self._propose(notice, now)
        elif not self._awaited:
            saved = f"all have saved, at step {notice.chosen} or right after"
            self._end(notice, saved, now, is_saved=True)

    def effects(self, *, now: float) -> list[TellNotice]:
        """Return what to tell participants, once."""
        pending, iterations = self._run.state.notice, self._run.state.iterations
        is_interrupted = iterations is not None and iterations.phase is IterationPhase.INTERRUPTED
        if not self._untold or (pending is None and is_interrupted):
            return []  # as at `_end`: what waits for the change is about to be interrupted
        untold, self._untold = self._untold & self._round.seats.keys(), set()
        if (notice := pending or self._run.state.notice_over) is None:
            return []
        notices = []
        for incarnation in sorted(untold):
            presence = self._run.members.presences.get(incarnation)
            if presence is not None and presence.session_id is not None:
                notices.append(
                    TellNotice(
                        session_id=presence.session_id,
                        notice=notice,
                        round_id=self._round.round_id,
                        time_left_s=max(0.0, notice.until_s - now),
                        is_over=pending is None,
                    )
                )
        return notices

    def _propose(self, notice: PendingNotice, now: float) -> None:
        """Propose a step that no worker has passed, nor will have when it hears of it."""
        assert self._asked is not None, "a step after none"
        lead_s = max(LEAD_MIN_S, 2 * (now - self._told_at))
        steps = math.ceil(lead_s / self._step_time_s) if self._step_time_s else 1
        margin = min(steps * 2**self._misses, MARGIN_MAX)
        least = max(notice.chosen or 0, notice.proposed or 0) + 1
        step = max(self._asked + 1 + margin, least)
        if step > STEP_MAX:
            self._end(notice, f"there is no step after {self._asked}", now)
            return
        self._run.commit(StepProposed(notice_id=notice.notice_id, step=step))
        why = f"all may save at step {step}, for the latest is {self._asked}"
        self._run.log("step proposed", why)
        self._tell(now)
        self._choice_by = now + PROPOSAL_MAX_S

    def _tell(self, now: float) -> None:
        """Have all participants told, and their word awaited. Linear in them."""
        state = self._run.state
        awaited = {i for i in self._round.seats if state.is_awaited(i) and i in state.members}
        self._awaited, self._told_at, self._is_missed = awaited, now, False
        self._answers_by = now + ANSWERS_WAIT_S
        self._untold.update(self._round.seats)

    def _end(
        self, notice: PendingNotice, reason: str, now: float, *, is_saved: bool = False
    ) -> None:
        leaving = self._leaving - self._dismissed
        self._dismissed |= leaving
        notice_id = notice.notice_id
        ended = NoticeEnded(notice_id=notice_id, reason=reason, at_s=now, is_saved=is_saved)
        self._run.decide(ended)
        # While a host leaves, the others hear nothing: training that waits for the change to come
        # would go on, and make steps in vain.
        self._untold.update(leaving & self._run.state.members.keys() or self._round.seats)
        self._awaited = set()

    def _time_is_up(self, notice: PendingNotice) -> str:
        missing = count(len(self._awaited), "host")
        if notice.chosen is None and notice.proposed is not None:
            why = f"{missing} did not answer about step {notice.proposed}"
            return f"its time is up, and no rank saves: {why}"
        if notice.chosen is None:
            return f"its time is up, and no rank saves: {missing} did not say where training is"
        return f"its time is up: {missing} did not save at step {notice.chosen}"

    def _hosts(self, incarnations: Collection[str]) -> str:
        return reasons.hosts(self._round, incarnations)
