"""Pure. What an agent says on its console: one line an event, said once; a wait ever more rarely.

It decides nothing: without it the agent does exactly the same.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import SIGNAL_REPEAT_S, AgentCore
from drumbeat.agent.core.failure_records import EXIT_NOT_STARTED
from drumbeat.agent.core.link import CoordinatorLink
from drumbeat.agent.core.model import DesiredState, Exit, Failure
from drumbeat.agent.failures.exit_status import describe_exit, signal_name
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.command.leader_search import NO_LEADER, short_reason
from drumbeat.model import Assignment, GroupState, Standby, Stop
from drumbeat.text.durations import format_duration
from drumbeat.text.format import count, one_line

HOLD_S = 1.0  # how long the line of a failed worker waits for what the coordinator decides about it
FAILURES_TOLD_MAX = 4  # of one host that fail together and get a line each; the rest is a number
# How long after the beginning of a wait it is told, in seconds; at last at steps of the last.
TOLD_AFTER_S = (1.5, 10.0, 30.0, 60.0, 120.0, 300.0)
SIGINT = 2

_ENDS = "Ctrl-C ends this agent"
_WAITS = {
    "GPU memory": "waiting for the GPU memory of the workers before",
    "start": "waiting for the workers to start",
    "barrier": "all workers here succeeded; waiting for those of the other agents",
    "verdict": "all workers here are stopped; waiting for the coordinator and the other agents",
}
_WARNINGS = frozenset(
    {
        "coordinator lost",
        "fenced",
        "host unhealthy",
        "processes stuck",
        "refused",
        "supervisor died",
    }
)
_OF_ASSIGNMENT = (
    "restart_count", "group_rank", "world_size", "role_world_size", "master_addr", "master_port",
    "reason",
)  # fmt: skip


class _Standing(NamedTuple):  # what of the core's state an event changes
    is_connected: bool
    was_connected: bool
    desired: DesiredState
    is_ending: bool
    is_stopping: bool
    workers_alive: int


class Line(Struct, frozen=True):
    """One line. ``event`` and the keys of ``details`` are fixed words, for a search."""

    event: str
    text: str
    level: str = "info"
    details: Mapping[str, object] = field(default_factory=dict)


class History:
    """The history of the agent of ``core``, from its start at ``now`` (monotonic seconds) on."""

    def __init__(self, core: AgentCore, facts: AgentFacts, *, now: float) -> None:
        self._core, self._facts = core, facts
        self._now = self._began_at = self._away_since = now
        self._standing = self._read_standing()
        self._leader = "", 0  # the last that let this agent in: its address, and its term
        # What is waited for, when that is to be said next and after that, and whether it was.
        self._awaited = ""
        self._wait_due_at: float | None = None
        self._wait_schedule: Iterator[float] = iter(())
        self._has_told_wait = False
        # When workers that are being stopped get SIGKILL, and until when the run waits for agents.
        self._kill_at: float | None = None
        self._standby_until: float | None = None
        self._assignment: Assignment | None = None
        self._broken_at: float | None = None
        # Failures whose line waits for the decision, and since when; and those of this round
        # that have theirs.
        self._held: list[Failure] = []
        self._held_since = 0.0
        self._shown: list[Failure] = []
        self._lines: list[Line] = []

    def next_deadline(self) -> float | None:
        """Return when there is something to say even if nothing happens."""
        held_until = [self._held_since + HOLD_S] if self._held else []
        wait_due = [] if self._wait_due_at is None else [self._wait_due_at]
        return min(held_until + wait_due, default=None)

    def saw(
        self, event: ev.Event | None, effects: Sequence[fx.Effect], *, now: float
    ) -> list[Line]:
        """Take in an event (``None``: the start); return what there is to say, in order."""
        before, current = self._standing, self._read_standing()
        self._standing, self._now, self._lines = current, now, []
        if isinstance(event, ev.SuspendRequested):
            why = "other hosts would declare this agent lost; Ctrl-C ends it and its workers"
            self._say("not suspended", f"not suspended: {why}", "warning")
        if before.is_connected and not current.is_connected:
            self._away_since = now
        elif current.is_connected and not before.is_connected:
            self._on_connected(before, self._core.link)
        if current.desired != before.desired:
            self._on_desired(before.desired, current.desired)
        for effect in effects:
            self._on_effect(effect)
        match event:
            case ev.SignalReceived(is_for_workers=False, is_preemption=False) if effects:
                self._on_signal(event.signum, before)
        is_final = any(isinstance(effect, fx.Finish) for effect in effects)
        if is_final or not current.is_connected or now >= self._held_since + HOLD_S:
            self._show_held()
        if not is_final:
            self._review_wait(*self._wait_of())
        return self._lines

    def waits_for(self, *, now: float) -> str:
        """Return what is waited for at present, and for how long; empty in training."""
        self._now = now
        return self._wait_of()[1]

    # What happened.

    def _read_standing(self) -> _Standing:
        core, link, workers = self._core, self._core.link, self._core.workers
        of_workers = core.ending is not None, workers.is_stopping, workers.workers_alive
        return _Standing(link.is_open, link.was_open, core.desired, *of_workers)

    def _on_connected(self, before: _Standing, link: CoordinatorLink) -> None:
        away, where = format_duration(self._now - self._away_since), link.search.address
        leader = where, link.term
        former, self._leader = self._leader, leader
        details = {"coordinator": where, "term": link.term or None}
        if before.was_connected and link.search.has_others and leader != former:
            leads = f"the coordinator at {where} leads now, in term {link.term}"
            self._say("coordinator back", f"{leads}; found after {away}", "info", **details)
        elif before.was_connected:
            self._say("coordinator back", f"the coordinator is back after {away}")
        else:
            level = "info" if self._has_told_wait else "debug"
            at = f" at {where}" if link.search.has_others else ""
            text = f"the coordinator{at} answered after {away}"
            self._say("coordinator answered", text, level, **details)

    def _on_desired(self, before: DesiredState, desired: DesiredState) -> None:
        reason = one_line(desired.reason)
        match desired:
            case Standby(time_left_s=left):
                self._standby_until = None if left is None else self._now + left
                time_left = None if left is None else format_duration(round(left))
                details = {"reason": desired.reason, "time_left": time_left}
                self._say("standing by", f"standing by: {reason}", "debug", **details)
            case Assignment():
                former, self._assignment = self._assignment, desired
                if former is None and not desired.round_id:
                    return
                decision = ""
                if former is not None and desired.restart_count > former.restart_count:
                    # A loss that was first taken for a failure is given back.
                    used = desired.restarts_used
                    is_free = used <= former.restarts_used
                    budget = "not charged" if is_free else f"{used} of {desired.restarts_max}"
                    decision = f"restarting, {budget}"
                self._say_decision(decision, "restarting", desired.reason)
            case Stop():
                self._say_decision(self._budget_spent(), "stopping", desired.reason)
            case Exit(is_drained=True):
                self._say("drained", f"leaving: {reason}", "debug")  # it ends with that
            case Exit(is_released=True):
                self._say("released", f"done, not waiting for the others any more: {reason}")
            case Exit(is_success=True):
                took = format_duration(self._now - self._began_at)
                self._say("run ended", f"run succeeded after {took}: {reason}")
            case Exit(is_stopped=True):
                self._say("run ended", f"run {desired.reason}", "debug")  # it ends with that
            case Exit():
                if not isinstance(before, Stop):
                    self._show_held(self._budget_spent())
                # The report has the rest.
                self._say("run ended", f"run failed: {desired.reason}", "debug")

    def _on_signal(self, signum: int, before: _Standing) -> None:
        name = "Ctrl-C" if signum == SIGINT else signal_name(-signum)
        if before.is_ending:
            if before.is_stopping:
                self._say("killing", f"{name} again: killing the workers at once")
        elif before.workers_alive:
            text = f"{name}: stopping {count(before.workers_alive, 'worker')}"
            if self._kill_at is not None:
                text += f", SIGKILL in {format_duration(round(self._kill_at - self._now))}"
            again = "again" if signum == SIGINT else f"again after {SIGNAL_REPEAT_S:g} s"
            self._say("signal", f"{text}; {name} {again} kills at once")
        else:
            self._say("signal", f"{name}: leaving the run")

    def _on_effect(self, effect: fx.Effect) -> None:
        match effect:
            case fx.WriteFailure(failure=failure):
                self._on_failure(failure)
            case fx.StartRound(assignment=assignment):
                self._on_start(assignment)
            case fx.StopWorkers(timeout_s=timeout_s):
                self._kill_at = self._now + timeout_s
                self._broken_at = self._broken_at or self._now
            case fx.KillWorkers():
                self._kill_at = self._now
            case fx.Tell(what=what, why=why, round_id=round_id, details=traceback):
                level = "warning" if what in _WARNINGS else "info"
                details = {"run.round": round_id, "exception": traceback or None}
                self._say(what, f"{what}: {one_line(why)}", level, **details)

    def _on_start(self, assignment: Assignment) -> None:
        self._show_held()
        first, more = assignment.rank_first, self._facts.local_world_size - 1
        size = count(assignment.world_size, "worker")
        agents = count(assignment.group_world_size, "agent")
        text = f"round {assignment.round_id}: {size} on {agents}"
        if assignment.group_world_size > 1:
            here = f"ranks {first}-{first + more}" if more else f"rank {first}"
            text += f", {here} here, master {assignment.master_addr}:{assignment.master_port}"
        if self._broken_at is not None:
            text += f", {format_duration(self._now - self._broken_at)} later"
        self._broken_at = self._kill_at = None
        self._shown.clear()
        role_first = assignment.role_rank_first
        details: dict[str, object] = {
            "run.round": assignment.round_id,
            "ranks": f"{first}-{first + more}",
            "role_ranks": f"{role_first}-{role_first + more}",
            **{name: getattr(assignment, name) for name in _OF_ASSIGNMENT},
        }
        self._say("round started", text, "info", **details)

    # Failed workers.

    def _on_failure(self, failure: Failure) -> None:
        who = f"rank {failure.rank}"
        if failure.is_stopped_by_agent:
            text = f"{who} was stopped: {describe_exit(failure.exit_code)}"
            self._say("worker stopped", text, "debug", **_place(failure))
        elif failure.is_survived:
            pass  # the restart that follows says it
        elif failure.interruption is not None:
            text = f"{who} left iteration {failure.iteration}: {_how(failure)}"
            self._say("worker failed", text, "warning", **_place(failure))
        else:
            self._broken_at = self._broken_at or self._now
            if not self._held:
                self._held_since = self._now
            self._held.append(failure)

    def _say_decision(self, decision: str, event: str, reason: str) -> None:
        """Say what the coordinator decided, with the local failures that it is about."""
        is_news = not self._shown or bool(self._held)
        self._show_held(decision)
        failures = self._shown[:FAILURES_TOLD_MAX]
        is_alone = self._assignment is None or self._assignment.group_world_size == 1
        name = self._facts.name  # of this agent, as the coordinator's sentences have it
        if not any(is_alone or f"rank {failure.rank} on {name}" in reason for failure in failures):
            self._say(event, f"{event}: {one_line(reason)}")
        elif decision and not is_news:
            self._say(event, decision)

    def _show_held(self, decision: str = "") -> None:
        held, self._held = self._held, []
        self._shown += held
        shown = held[:FAILURES_TOLD_MAX]
        for failure in shown:
            text = f"rank {failure.rank} failed: {_how(failure)}"
            if failure.exit_code == EXIT_NOT_STARTED and not failure.pid:
                text = f"rank {failure.rank} could not be started: {_first_line(failure)}"
            if failure is shown[-1]:
                if hidden := len(held) - len(shown):
                    text += f"; {count(hidden, 'more worker')} here failed too"
                text += f"; {decision}" if decision else ""
            self._say("worker failed", text, "warning", **_place(failure))

    def _budget_spent(self) -> str:
        current = self._assignment
        if current is None or current.restarts_used < current.restarts_max:
            return "the run stops"
        if not current.restarts_max:
            return "no restarts are allowed (--max-restarts)"
        return f"no restart is left of {current.restarts_max}"

    # What is waited for.

    def _review_wait(self, what: str, text: str) -> None:
        """Say what is waited for if that is due; ``what`` tells one wait from another."""
        if what != self._awaited:
            self._awaited, self._has_told_wait, began_at = what, False, self._now
            rest = itertools.count(2 * TOLD_AFTER_S[-1], TOLD_AFTER_S[-1])
            steps = itertools.chain(TOLD_AFTER_S, rest) if what else ()
            self._wait_schedule = (began_at + after_s for after_s in steps)
            self._wait_due_at = next(self._wait_schedule, None)
        if self._wait_due_at is not None and self._now >= self._wait_due_at:
            self._has_told_wait = True
            self._wait_due_at = next(at for at in self._wait_schedule if at > self._now)
            self._say("waiting", text)

    def _wait_of(self) -> tuple[str, str]:
        """Return which wait is the most pressing, and what to say of it; nothing in training."""
        what, current = "", self._standing
        match current.desired, self._core.workers.state:
            case _ if current.is_stopping:
                text = f"waiting for {count(current.workers_alive, 'worker')} to end"
                if not (left := self._left(self._kill_at)):
                    return "kill", f"{text} that got SIGKILL; the kernel holds processes of theirs"
                again = "Ctrl-C again" if current.is_ending else f"{_ENDS}, a second one"
                return "workers", f"{text}, SIGKILL in {left}; {again} kills at once"
            case _ if current.is_ending:
                pass
            case _ if not current.is_connected:
                return "coordinator", self._wait_for_coordinator()
            case _ if self._core.is_gpu_memory_awaited:
                what = "GPU memory"
            case Standby(reason=reason), _:
                left = self._left(self._standby_until)
                until = f", up to {left} more" if left else ""
                return "other agents", f"standing by: {one_line(reason)}{until}; {_ENDS}"
            case Assignment(), GroupState.STARTING:
                what = "start"
            case Assignment(), GroupState.SUCCEEDED:
                what = "barrier"
            case (Assignment(), GroupState.FAILED) | (Stop(), _):
                what = "verdict"
        return what, f"{_WAITS[what]}; {_ENDS}" if what else ""

    def _wait_for_coordinator(self) -> str:
        link = self._core.link
        reason = one_line(short_reason(link.reason))
        text = f"waiting for the coordinator at {link.coordinator} ({reason})"
        more = ", up to"
        if link.search.has_others:
            is_said = reason.startswith(NO_LEADER)
            text = reason if is_said else f"looking for the coordinator that leads: {reason}"
            more = "; waiting up to"
        if left := self._left(link.deadline):
            option = "--coordinator-grace" if link.was_open else "--join-timeout"
            text += f"{more} {left} more ({option})"
        if not (alive := self._standing.workers_alive):
            return f"{text}; {_ENDS}"
        go_on = f"{count(alive, 'worker')} {'goes' if alive == 1 else 'go'} on here"
        return f"{text}; {go_on}; Ctrl-C stops them and ends this agent"

    def _left(self, until: float | None) -> str:
        """Return how long it is until then; nothing if that is over or not known."""
        left = 0.0 if until is None else until - self._now
        return format_duration(left if left < 1 else round(left)) if left > 0 else ""

    def _say(self, event: str, text: str, level: str = "info", /, **details: object) -> None:
        self._lines.append(Line(event, text, level, details))


def _how(failure: Failure) -> str:
    """Say how a worker ended, and with which exception."""
    how = describe_exit(failure.exit_code)
    if failure.hang is not None:
        return f"{how}, ended because it hung"
    first = _first_line(failure)
    return f"{how}, {first}" if first else how


def _first_line(failure: Failure) -> str:
    return one_line(failure.message.strip().partition("\n")[0])


def _place(failure: Failure) -> dict[str, object]:
    return {
        "run.round": failure.round_id,
        "worker.rank": failure.rank,
        "worker.local_rank": failure.local_rank,
        "worker.pid": failure.pid or None,
        "exit_code": failure.exit_code,
        "run.iteration": failure.iteration if failure.interruption is not None else None,
    }
