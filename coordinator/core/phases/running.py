"""Pure. A running round: who failed, was lost or came late, and what follows."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import Any

from msgspec.structs import replace

from drumbeat.coordinator.core.effects import ToWorkers
from drumbeat.coordinator.core.events import EvidenceTaken
from drumbeat.coordinator.core.failures.root_cause import (
    explains,
    failed_alike,
    root_causes,
    signature,
)
from drumbeat.coordinator.core.failures.verdict import known_failures
from drumbeat.coordinator.core.inprocess.restarts import InProcessRestarts
from drumbeat.coordinator.core.membership.exclusion import is_most
from drumbeat.coordinator.core.model import Beat, FailureRecord, HangDiagnosis, VerdictCause
from drumbeat.coordinator.core.phases.hangs import Hangs
from drumbeat.coordinator.core.phases.notices import Notices
from drumbeat.coordinator.core.phases.phase import RunContext, RunPhase, Transition
from drumbeat.coordinator.core.phases.preflight import Preflight
from drumbeat.coordinator.core.phases.rendezvous import Wait, last_call_deadline
from drumbeat.coordinator.core.phases.seating import count_seatable
from drumbeat.coordinator.core.restarts.decision import after_failure, attempted
from drumbeat.coordinator.core.run import reasons
from drumbeat.coordinator.core.run.records import (
    EndingStarted,
    GroupSucceeded,
    RoundEnd,
    RoundEnded,
)
from drumbeat.coordinator.observe.failures import LEFT, LOST
from drumbeat.coordinator.observe.goodput.stretches import Cause, StretchEnd
from drumbeat.coordinator.observe.steps.worker_progress import Standing, Standings, most_telling
from drumbeat.model import GroupState, NoticeKind
from drumbeat.text.durations import nanoseconds
from drumbeat.text.format import are

_PLANNED = (
    RoundEnd.AGENT_JOINED, RoundEnd.RESTART_ASKED, RoundEnd.REHEARSED, VerdictCause.STOPPED,
)  # fmt: skip
# Ranks and agents that are named of one failure.
HIT_MAX = 64


class Running(RunPhase):
    """Waits for the round to succeed, to fail or to lose an agent.

    At the exit barrier those who have succeeded wait for the others. ``released`` have waited
    long enough: they have succeeded, whatever becomes of the others, who train on.
    """

    def __init__(self, run: RunContext, *, now: float) -> None:
        super().__init__(run, now=now)
        run.done.clear()
        assert run.state.round is not None, "running without a round"
        self._round = run.state.round
        run.members.observer.enter_round(self._round, run.state.spec, run.state.observed)
        self._failed: set[str] = set()  # participants whose group failed
        self._failed_since: float | None = None
        self._undecided = ""  # what a failure waits for before it is judged
        self._lost = run.state.lost_participants()  # given up before they succeeded
        self._extras = self._find_extras()  # connected members that are not in the round
        self._extra_since: float | None = None
        self._later = ""  # why there have been later rounds, of which the journal knows nothing
        # Since when participants wait at the exit barrier, the longest first; all anew after
        # a restart of the coordinator.
        self._waiting = dict.fromkeys(sorted(run.state.succeeded), now)
        self.released: dict[str, str] = {}
        self._inprocess = InProcessRestarts(run, self._round, now=now)
        self._notices = Notices(run, self._round, now=now)
        self._hangs = Hangs(run, self._round)
        self._preflight = Preflight(run, self._round, now=now)
        agents = (seat.agent for seat in self._round.seats.values())
        self._blocks = {agent.block for agent in agents} if run.state.spec.block_size else set()

    def connected(self, incarnation: str, *, now: float) -> None:
        if not self.state.is_seated(incarnation):
            self._extras.add(incarnation)
        self._inprocess.connected(incarnation)
        self._notices.connected(incarnation, now=now)

    def resumed(self, *, now: float) -> None:
        self._inprocess.resumed(now=now)

    def disconnected(self, incarnation: str, *, now: float) -> None:
        self._extras.discard(incarnation)

    def heard(self, incarnation: str, beat: Beat, *, sent_at: float, now: float) -> None:
        """Take in what a participant says of this round; of another it will hear of this one."""
        state, round_id = self.state, self._round.round_id
        held = -1 if beat.round_id is None else beat.round_id
        # A later round counts as held only from a hello on: no round of its number is begun then.
        if round_id < held < state.rounds_seen and state.is_seated(incarnation):
            name = state.members[incarnation].name
            self._later = reasons.older_journal(self._round, name, held)
        if held != round_id or not state.is_seated(incarnation):
            return
        self._preflight.heard(incarnation, beat)
        if beat.observations and not self._round.is_preflight:
            self.run.learning.observe(beat.observations, now=now)
        if beat.inprocess is not None:
            self._inprocess.reported(incarnation, beat.inprocess, now=now)
        if beat.leaving is not None:
            self._notices.leaving(incarnation, beat.leaving, now=now)
        if beat.notice is not None:
            self._notices.reported(incarnation, beat.notice)
        self._hangs.reported(incarnation, beat.expired)
        if beat.workers_done:
            self.run.done[incarnation] = beat.workers_done
        if beat.state is GroupState.FAILED:
            if incarnation not in state.excused:
                self._failed.add(incarnation)
            if beat.failure is not None:
                presence = self.members.presences[incarnation]
                presence.failure = state.accepted(beat.failure, sent_at)
        elif beat.state is GroupState.SUCCEEDED and state.is_awaited(incarnation):
            self.run.commit(GroupSucceeded(round_id=round_id, incarnation=incarnation))
            self._waiting[incarnation] = now
            self._inprocess.lost(incarnation, "its workers have ended")
            self._notices.succeeded(incarnation)

    def lost(self, incarnation: str, reason: str, *, was_silent: bool, now: float) -> bool:
        self._extras.discard(incarnation)
        self._failed.discard(incarnation)
        self._waiting.pop(incarnation, None)
        self.released.pop(incarnation, None)
        self._notices.lost(incarnation)
        self._preflight.lost(incarnation)
        is_excused = self._inprocess.lost(incarnation, reason)
        if self.state.is_awaited(incarnation) and not is_excused:
            self._lost.add(incarnation)
            self._hangs.lost(incarnation, now=now)
        return is_excused

    def stretch_end(self, transition: Transition) -> StretchEnd | None:
        if not isinstance(transition, EndingStarted | RoundEnded) or self._round.is_preflight:
            return None  # before training nothing is lost
        if transition.cause in _PLANNED or transition.cause is RoundEnd.AGENT_LOST:
            return None if transition.cause in _PLANNED else self._lost_end()
        progress, causes = self.members.observer.meter.marks.progress, self._causes()
        hit: dict[str, Any] = {
            "signature": signature(causes[0]) if causes else "a hang",
            "ranks": tuple(dict.fromkeys(cause.worker.rank for cause in causes[:HIT_MAX])),
            "names": tuple(dict.fromkeys(cause.agent for cause in causes[:HIT_MAX])),
        }
        if (judged := self._hang()) is not None:
            host, since = self.state.observed.ledger.host, nanoseconds(judged.since_s)
            return StretchEnd(cause=Cause.HANG, host=host, since=since, **hit)
        if not causes:  # no word of it came: it was after the last progress
            failed = sorted(self._failed, key=lambda i: self._round.seats[i].group_rank)
            names = tuple(self._round.seats[i].agent.name for i in failed[:HIT_MAX])
            host = names[0] if names else ""
            return StretchEnd(cause=Cause.WORKER_FAILED, host=host, since=progress, names=names)
        first, since = causes[0], nanoseconds(causes[0].happened_at)
        if (hang := first.hang) is not None:
            since = since - nanoseconds(hang.elapsed_s) if progress is None else progress
            return StretchEnd(cause=Cause.HANG, host=first.agent, since=since, **hit)
        since = since if progress is None else max(since, progress)
        host = "" if self._hits_most(causes) else first.agent
        return StretchEnd(cause=Cause.WORKER_FAILED, host=host, since=since, **hit)

    def _hits_most(self, causes: list[FailureRecord]) -> bool:
        """Return whether so many hosts failed alike that none of them is to blame. Linear."""
        known = known_failures(self.state, self.members)
        alike = failed_alike(known, self._round.round_id, causes)
        hosts = alike | {cause.incarnation for cause in causes}
        return len(hosts) > 1 and is_most(len(hosts), len(self._round.seats))

    def _lost_end(self) -> StretchEnd | None:
        """Return since when the first that was lost is silent, unless all progressed after it."""
        meter, seats = self.members.observer.meter, self._round.seats
        if not (lost := sorted(self._lost, key=lambda i: (meter.gone.get(i, 0), i))):
            return None
        names = tuple(seats[i].agent.name for i in lost)
        if self._lost <= self.state.drained.keys():
            return StretchEnd(cause=Cause.AGENT_DRAINED, host=names[0])
        instants = [at for at in (meter.gone.get(lost[0]), meter.marks.progress) if at is not None]
        since, host = max(instants, default=None), names[0] if len(names) == 1 else ""
        # Who was given up is blamed; who said goodbye is not.
        gone = tuple(seats[i].agent.name for i in lost if i in self.state.blamed)
        return StretchEnd(
            cause=Cause.AGENT_LOST,
            host=host,
            since=since,
            signature=LOST if gone else LEFT,
            names=(gone or names)[:HIT_MAX],
        )

    def orders(self, *, now: float) -> list[ToWorkers]:
        notices, held = self._notices.effects(now=now), self._hangs.effects()
        return [*self._inprocess.instructions(), *notices, *held]

    def evidence_taken(self, event: EvidenceTaken, *, now: float) -> None:
        if event.round_id == self._round.round_id:
            self._hangs.answered(event.question, event.seen, now=now)

    def give_notice(self, kind: NoticeKind, reason: str, *, until: float, now: float) -> None:
        self._notices.give(kind, reason, until=until, now=now)

    def check_invariants(self) -> None:
        assert self._lost == self.state.lost_participants(), "lost participants are not noted"
        assert self._extras == self._find_extras(), "extras are not noted"
        self._inprocess.check_invariants()

    def review(self, *, now: float, judged_at: float) -> Transition | None:
        """Journal what follows for iterations, then judge the round."""
        transition = self._review(now, judged_at)
        if isinstance(transition, RoundEnded) and transition.attempt is None:
            return replace(transition, attempt=attempted(self.run))
        return transition

    def _review(self, now: float, judged_at: float) -> Transition | None:
        inprocess, state, current = self._inprocess, self.state, self._round
        was_pending = state.notice is not None
        self._hangs.review(now=now)
        self._notices.review(now=now, judged_at=judged_at)
        self.wait, self.review_at = inprocess.review(now=now), inprocess.review_at
        if self._notices.review_at is not None:
            self._review_until(self._notices.review_at)
        are_done = len(state.succeeded) + len(state.excused) == len(current.seats)
        # An iteration that was given up is not made good by those who had ended before it.
        is_training = not current.is_preflight
        if state.succeeded and are_done and inprocess.give_up is None and is_training:
            lost = state.iterations.lost if state.iterations is not None else 0
            reason = reasons.all_succeeded(current, state.excused, lost)
            return self.run.ended(VerdictCause.SUCCEEDED, reason, now=now)
        if self._failed and not state.spec.launcher and (unable := self._unable()):
            reason = reasons.start_impossible(current, self._causes(), unable)
            self.run.silent.note(current, self.members, since=self._failed_since, charged=0)
            where, cause = self._where(judged_at), VerdictCause.START_IMPOSSIBLE
            return EndingStarted(reason=reason, at_s=now, where=where, cause=cause)
        is_behind = bool(self._later) and state.notice is None
        if self._lost or is_behind or self._is_to_end():
            return self._broken_off(now)
        if self._failed or inprocess.give_up is not None or not is_training:
            return self._review_end(now, judged_at, is_done=are_done)
        if state.succeeded:
            self._review_barrier(judged_at)
            return None
        return self._review_scale_up(now, judged_at, has_saved=was_pending)

    def _review_end(self, now: float, judged_at: float, *, is_done: bool) -> Transition | None:
        """Judge a round that failed, or a preflight, once that is over."""
        preflight = self._preflight
        if not preflight.is_judged(self._failed, is_done=is_done, judged_at=judged_at):
            self._review_until(preflight.review_at)
            return None
        if (over := preflight.verdict(is_done=is_done, now=now)) is not None:
            return over
        return self._review_failure(now, judged_at)

    def _is_to_end(self) -> bool:
        """Whether the round ends as an operator wants it: not before training could save.

        A round that fails can't save any more, and a run that is to end begins no other.
        """
        state = self.state
        if state.notice is None:
            return bool(state.stop_reason or state.restart_reason)
        return bool(state.stop_reason and self._failed)

    def _broken_off(self, now: float) -> Transition:
        """End the round for a loss, or as an operator wants it: the run with it, or for another."""
        if stop := self.state.stop_reason:
            return EndingStarted(reason=stop, at_s=now, cause=VerdictCause.STOPPED)
        if self._lost:
            reason = reasons.round_lost(self._round, self._lost)
            if self._lost <= self.state.drained.keys():
                reason = reasons.drained(self._round, self._lost, self.state.drained)
            elif all(map(self.state.is_killed, self._lost)):
                reason = f"{reason}; rehearsed"
                return RoundEnded(cause=RoundEnd.REHEARSED, reason=reason, at_s=now)
            return RoundEnded(cause=RoundEnd.AGENT_LOST, reason=reason, at_s=now)
        reason = self._later or self.state.restart_reason
        return RoundEnded(cause=RoundEnd.RESTART_ASKED, reason=reason, at_s=now)

    def _review_until(self, until: float) -> None:
        self.review_at = until if self.review_at is None else min(until, self.review_at)

    def _find_extras(self) -> set[str]:
        return self.members.connected - (self._round.seats.keys() - self.state.given_up)

    def _causes(self) -> list[FailureRecord]:
        """Return what explains the failure of the round, as far as it is known. Linear."""
        known = known_failures(self.state, self.members)
        return root_causes(known, self._round.round_id, self.state.hang)

    def _hang(self) -> HangDiagnosis | None:
        """Return the hang that explains the failure of the round, if one does. Linear."""
        round_id, hang = self._round.round_id, self.state.hang
        earliest = root_causes(known_failures(self.state, self.members), round_id)
        return hang if explains(hang, earliest, round_id) else None

    def _unable(self) -> list[str]:
        """Return failed members that can't start the command; no restart would help."""
        presences, founders = self.members.presences, self.state.founders
        return [i for i in self._failed & founders if presences[i].beat.is_start_impossible]

    def _left_to_the_launcher(self, what: str, now: float) -> RoundEnded | EndingStarted:
        """End the round of a launcher that counts restarts itself, or the run if it says so."""
        presences, launcher = self.members.presences, self.state.spec.launcher
        if any(presences[i].beat.is_start_impossible for i in self._failed):
            return EndingStarted(
                reason=f"{what}; {launcher} does not restart its workers", at_s=now
            )
        reason, cause = f"{what}; {launcher} restarts its workers", RoundEnd.WORKER_FAILED
        attempt = replace(attempted(self.run, self._causes()), is_free=True)
        return RoundEnded(cause=cause, reason=reason, at_s=now, attempt=attempt)

    def _where(self, now: float) -> Standings:
        """Return where the workers of the round stand. Linear in workers."""
        presences, round_id = self.members.presences, self._round.round_id
        standings = [
            Standing(rank=rank, host=seat.agent.name, progress=at)
            for i, seat in self._round.seats.items()
            if i in presences
            for at in presences[i].whereabouts.in_round(round_id, now=now)
            if (rank := self._inprocess.rank_of(i, at.local_rank)) is not None
        ]
        return most_telling(standings, self.run.policy.standings_shown_max)

    def _review_failure(self, now: float, judged_at: float) -> Transition | None:
        """Judge a failed round, once it is known whether a machine died before it.

        A machine's death makes workers elsewhere fail, before its own lease is over.
        """
        state, current, members = self.state, self._round, self.members
        self._failed_since = judged_at if self._failed_since is None else self._failed_since
        until = self._failed_since + self.run.policy.restart_grace_s
        if judged_at >= until:  # while others come back, those who don't have longer
            latest = self._failed_since + members.return_max_s
            until = min(latest, members.returned_at(current.seats))
        may_be_lost = chain(members.missed, members.suspects)
        if judged_at < until and not current.seats.keys().isdisjoint(may_be_lost):
            if not self._undecided:  # what it says is linear, so it is said once
                unsure = current.seats.keys() & (members.missed | members.suspects)
                what = reasons.round_failed(current, self._causes(), self._failed, self._hang())
                alive = f"{reasons.hosts(current, unsure)} {are(len(unsure))} alive"
                self._undecided = f"{what}; waiting to hear whether {alive}"
                self.run.log("decision waits", self._undecided)
            self.wait = Wait(reason=self._undecided, agents_wanted=0, until=until)
            self._review_until(until)
            return None
        where, why, causes = self._where(judged_at), self._inprocess.give_up, self._causes()
        if why is None:
            what = self._preflight.hung or reasons.round_failed(
                current, causes, self._failed, self._hang(), where
            )
        elif state.is_rehearsed(now):
            what = f"round {current.round_id} failed: {why}"
        elif state.given_up | state.succeeded >= current.seats.keys():
            which = "all hosts that had not succeeded" if state.succeeded else "all hosts"
            reason = f"round {current.round_id} lost {which}: {why}"
            return RoundEnded(cause=RoundEnd.AGENT_LOST, reason=reason, at_s=now)
        elif not causes and state.given_up and state.given_up <= state.drained.keys():
            drained = reasons.drained(current, state.given_up, state.drained)
            return RoundEnded(cause=RoundEnd.AGENT_LOST, reason=f"{drained}; {why}", at_s=now)
        else:
            what = reasons.run_failed(f"round {current.round_id} failed: {why}", causes)
        if state.is_rehearsed(causes[0].happened_at if causes else now):
            reason, cause = f"{what}; rehearsed, so no restart is charged", RoundEnd.REHEARSED
            ended: RoundEnded | EndingStarted = RoundEnded(cause=cause, reason=reason, at_s=now)
        elif state.spec.launcher:
            ended = self._left_to_the_launcher(what, now)
        else:
            ended = after_failure(self.run, causes, what, hang=self._hang(), now=now)
        is_charged = isinstance(ended, RoundEnded) and ended.is_charged
        self.run.silent.note(current, members, since=self._failed_since, charged=is_charged)
        return replace(ended, where=where)

    def _review_barrier(self, now: float) -> None:
        """Let go of those who have waited for the others as long as they may."""
        limit_s = self.state.spec.exit_barrier_timeout_s
        if limit_s is None or not self._waiting:
            return
        waiting = self._waiting
        over = list(takewhile(lambda i: waiting[i] + limit_s <= now, waiting))
        if over:
            done = self.state.succeeded | self.state.excused
            self.released |= dict.fromkeys(over, reasons.barrier_over(self._round, done, limit_s))
            self.run.tell(over)
            self._waiting = {i: since for i, since in waiting.items() if i not in self.released}
        if self._waiting:
            self._review_until(next(iter(self._waiting.values())) + limit_s)

    def _review_scale_up(
        self, now: float, judged_at: float, *, has_saved: bool
    ) -> RoundEnded | None:
        """End the round for agents that came late, if there is room; none has finished.

        Training is given notice first; ``has_saved``: one was pending until now.
        """
        state, spec, size = self.state, self.state.spec, len(self._round.seats)
        absent = self.members.suspects.union(self.members.unfit)  # few, where extras may be many
        extras = len(self._extras) - len(self._extras & absent)
        if extras and (state.left_out or spec.block_size):
            able = filter(self.members.is_present, self._extras - state.left_out.keys())
            agents = (agent for i in able if (agent := state.members[i]).block not in self._blocks)
            extras = count_seatable(agents, spec.block_size)
        if not extras or size >= spec.agents_max:
            self._extra_since = None
            return None
        self._extra_since = judged_at if self._extra_since is None else self._extra_since
        latest = self.members.latest_arrival
        due = last_call_deadline(spec, first=self._extra_since, latest=latest)
        if size + extras < spec.agents_max and judged_at < due:
            self._review_until(due)
            return None
        reason = f"{extras} more joined the {size} of the round"
        if not has_saved:
            until = now + self.run.policy.checkpoint_grace_s
            self.give_notice(NoticeKind.SCALE_UP, reason, until=until, now=now)
        if state.notice is not None:
            self._review_until(self._notices.review_at or state.notice.until_s)
            return None
        return RoundEnded(cause=RoundEnd.AGENT_JOINED, reason=reason, at_s=now)
