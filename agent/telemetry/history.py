"""Pure. What an agent tells people on its console: one line an event, said once.

A story sees every event of the core with the effects that answered it and where
the core then stands. It decides nothing: without it the agent does exactly the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.core import effects as fx
from agent.core import events as ev
from agent.core.model import Assignment, DesiredState, Exit, Failure, Standby, Stop
from agent.telemetry.waits import REASON_CHARACTERS_MAX, Instants, Situation, WaitNotices, wait_of
from agent.workers.failures.exit_status import describe_exit, signal_name
from agent.workers.failures.records import EXIT_NOT_STARTED
from drumbeat.durations import format_duration
from drumbeat.format import count, one_line

HOLD_S = 1.0
"""How long the line of a failed worker waits for what the coordinator decides about it."""

FAILURES_TOLD_MAX = 4
"""Workers of one host that fail together and are told one by one; the rest is a number."""

SIGINT = 2

# How a reason of the coordinator's says which restart it is, of how many.
_RESTART = re.compile(r"; restart ([0-9]+ of [0-9]+)")

_WARNINGS = frozenset({"coordinator lost", "fenced", "processes stuck", "supervisor died"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. ``event`` and the keys of ``details`` are fixed words, for a search."""

    event: str
    text: str
    level: str = "info"
    details: Mapping[str, object] = field(default_factory=dict)


class Story:
    """The story of one agent, from its start at ``now`` on.

    Args:
        host: Name of this agent or its host, as the coordinator's sentences have it.
        restarts_max: The budget of the run.
        local_world_size: Workers of this host.
        now: Monotonic seconds.
    """

    def __init__(self, *, host: str, restarts_max: int, local_world_size: int, now: float) -> None:
        self._host = host
        self._restarts_max = restarts_max
        self._local_world_size = local_world_size
        self._began_at = self._away_since = now
        self._situation: Situation | None = None
        self._notices = WaitNotices()
        self._instants = Instants()
        self._assignment: Assignment | None = None
        self._broken_at: float | None = None
        # Failures whose line waits for the decision, and since when.
        self._held: list[Failure] = []
        self._held_since = 0.0
        self._told: list[Failure] = []
        self._lines: list[Line] = []

    def next_deadline(self) -> float | None:
        """Return when there is something to say even if nothing happens."""
        held = self._held_since + HOLD_S if self._held else None
        instants = (held, self._notices.next_deadline())
        return min((instant for instant in instants if instant is not None), default=None)

    def saw(
        self,
        event: ev.Event | None,
        effects: Sequence[fx.Effect],
        situation: Situation,
        *,
        now: float,
    ) -> list[Line]:
        """Take in an event (``None``: the start); return what is to be told, in order."""
        before, self._situation = self._situation, situation
        if isinstance(event, ev.SuspendRequested):
            why = "the others would give a silent agent up; Ctrl-C ends it and its workers"
            self._say("not suspended", f"not suspended: {why}", level="warning")
        if isinstance(event, ev.SignalReceived):
            self._on_signal(event, before, effects, now)
        if before is not None:
            self._on_connection(before, situation, now)
            if situation.desired != before.desired:
                self._on_desired(before.desired, situation.desired, now)
        for effect in effects:
            self._on_effect(effect, now)
        is_final = any(isinstance(effect, fx.Finish) for effect in effects)
        if is_final or not situation.line.is_open or now >= self._held_since + HOLD_S:
            self._tell_held("")
        if not is_final:
            wait = wait_of(situation, self._instants, now=now)
            if text := self._notices.review(wait, now=now):
                self._say("waiting", text)
        done, self._lines = self._lines, []
        return done

    # What happened.

    def _on_connection(self, before: Situation, situation: Situation, now: float) -> None:
        if before.line.is_open and not situation.line.is_open:
            self._away_since = now
        elif situation.line.is_open and not before.line.is_open:
            away = format_duration(now - self._away_since)
            if before.line.was_open:
                self._say("coordinator back", f"the coordinator is back after {away}")
            else:
                level = "info" if self._notices.has_told else "debug"
                text = f"the coordinator answered after {away}"
                self._say("coordinator answered", text, level=level)

    def _on_desired(self, before: DesiredState, desired: DesiredState, now: float) -> None:
        match desired:
            case Standby(reason=reason, time_left_s=left):
                until = None if left is None else now + left
                self._instants = replace(self._instants, standby_until=until)
                time_left = None if left is None else format_duration(round(left))
                text = f"standing by: {one_line(reason, REASON_CHARACTERS_MAX)}"
                details = {"reason": reason, "time_left": time_left}
                self._say("standing by", text, level="debug", details=details)
            case Assignment() as assignment:
                self._on_assignment(assignment)
            case Stop(reason=reason):
                self._tell_decision(self._budget_spent(), "stopping", reason)
            case Exit() as verdict:
                self._on_verdict(before, verdict, now)

    def _on_assignment(self, assignment: Assignment) -> None:
        before, used = self._assignment, assignment.restart_count
        self._assignment = assignment
        if before is None and not assignment.round_id:
            return
        is_charged = before is not None and used > before.restart_count
        decision = "restarting" if is_charged else ""
        if (found := _RESTART.search(assignment.reason)) is not None:
            decision = f"restarting, {found[1]}"  # it may have given some back
        elif is_charged and used <= self._restarts_max:
            decision = f"restarting, {used} of {self._restarts_max}"
        self._tell_decision(decision, "restarting", assignment.reason)

    def _on_verdict(self, before: DesiredState, verdict: Exit, now: float) -> None:
        if verdict.is_released:
            reason = one_line(verdict.reason, REASON_CHARACTERS_MAX)
            self._say("released", f"done, not waiting for the others any more: {reason}")
            return
        if verdict.is_success:
            took = format_duration(now - self._began_at)
            reason = one_line(verdict.reason, REASON_CHARACTERS_MAX)
            self._say("run ended", f"run succeeded after {took}: {reason}")
            return
        if not isinstance(before, Stop):
            self._tell_held(self._budget_spent())
        # The report tells the rest.
        self._say("run ended", f"run failed: {verdict.reason}", level="debug")

    def _on_signal(
        self,
        event: ev.SignalReceived,
        before: Situation | None,
        effects: Sequence[fx.Effect],
        now: float,
    ) -> None:
        name = "Ctrl-C" if event.signum == SIGINT else signal_name(-event.signum)
        if before is None or not effects:
            return
        if before.is_ending:
            if before.is_stopping:
                self._say("killing", f"{name} again: killing the workers at once")
            return
        if before.workers_alive:
            stop = next((e for e in effects if isinstance(e, fx.StopWorkers)), None)
            until = self._instants.kill_at if stop is None else now + stop.timeout_s
            left = "" if until is None else f", SIGKILL in {format_duration(round(until - now))}"
            alive = count(before.workers_alive, "worker")
            text = f"{name}: stopping {alive}{left}; {name} again kills at once"
        else:
            text = f"{name}: leaving the run"
        self._say("signal", text)

    def _on_effect(self, effect: fx.Effect, now: float) -> None:
        match effect:
            case fx.WriteFailure(failure=failure):
                self._on_failure(failure, now)
            case fx.StartWorkers(assignment=assignment):
                self._on_start(assignment, now)
            case fx.StopWorkers(timeout_s=timeout_s):
                self._instants = replace(self._instants, kill_at=now + timeout_s)
                self._broken_at = now if self._broken_at is None else self._broken_at
            case fx.KillWorkers():
                self._instants = replace(self._instants, kill_at=now)
            case fx.Tell(what=what, why=why, round_id=round_id, details=traceback):
                level = "warning" if what in _WARNINGS else "info"
                text = f"{what}: {one_line(why, REASON_CHARACTERS_MAX)}"
                details = {"run.round": round_id, "exception": traceback or None}
                self._say(what, text, level=level, details=details)

    def _on_start(self, assignment: Assignment, now: float) -> None:
        self._tell_held("")
        first, last = assignment.rank_first, assignment.rank_first + self._local_world_size - 1
        size = count(assignment.world_size, "worker")
        agents = count(assignment.group_world_size, "agent")
        text = f"round {assignment.round_id}: {size} on {agents}"
        if assignment.group_world_size > 1:
            here = f"rank {first}" if first == last else f"ranks {first}-{last}"
            master = f"{assignment.master_addr}:{assignment.master_port}"
            text += f", {here} here, master {master}"
        if self._broken_at is not None:
            text += f", {format_duration(now - self._broken_at)} later"
        self._broken_at = None
        self._told.clear()
        role_first = assignment.role_rank_first
        details: dict[str, object] = {
            "run.round": assignment.round_id,
            "restart_count": assignment.restart_count,
            "group_rank": assignment.group_rank,
            "ranks": f"{first}-{last}",
            "world_size": assignment.world_size,
            "role_ranks": f"{role_first}-{role_first + last - first}",
            "role_world_size": assignment.role_world_size,
            "master_addr": assignment.master_addr,
            "master_port": assignment.master_port,
            "reason": assignment.reason,
        }
        self._say("round started", text, details=details)

    # Failed workers.

    def _on_failure(self, failure: Failure, now: float) -> None:
        if failure.is_stopped_by_agent:
            how = describe_exit(failure.exit_code)
            text = f"rank {failure.rank} was stopped: {how}"
            self._say("worker stopped", text, level="debug", details=_place(failure))
            return
        if failure.is_survived:
            return  # it is told with the restart that follows
        if failure.interruption is not None:
            text = f"rank {failure.rank} left iteration {failure.iteration}: {_how(failure)}"
            self._say("worker failed", text, level="warning", details=_place(failure))
            return
        self._broken_at = now if self._broken_at is None else self._broken_at
        if not self._held:
            self._held_since = now
        self._held.append(failure)

    def _tell_decision(self, decision: str, event: str, reason: str) -> None:
        """Tell what the coordinator decided, with the local failures that it is about."""
        held, told = bool(self._held), bool(self._told)
        self._tell_held(decision)
        failures = self._told[:FAILURES_TOLD_MAX]
        if any(f"rank {each.rank} on {self._host}" in reason for each in failures) or (
            failures and (self._assignment is None or self._assignment.group_world_size == 1)
        ):
            if told and not held and decision:
                self._say(event, decision)
            return
        self._say(event, f"{event}: {one_line(reason, REASON_CHARACTERS_MAX)}")

    def _tell_held(self, decision: str) -> None:
        held, self._held = self._held, []
        if not held:
            return
        self._told += held
        shown = held[:FAILURES_TOLD_MAX]
        for index, failure in enumerate(shown):
            text = f"rank {failure.rank} {_failed(failure)}"
            if index == len(shown) - 1:
                if hidden := len(held) - len(shown):
                    text += f"; {count(hidden, 'more worker')} here failed too"
                text += f"; {decision}" if decision else ""
            self._say("worker failed", text, level="warning", details=_place(failure))

    def _budget_spent(self) -> str:
        used = self._assignment.restart_count if self._assignment is not None else 0
        if used < self._restarts_max:
            return "the run stops"
        if not self._restarts_max:
            return "no restarts are allowed (--max-restarts)"
        return f"no restart is left of {self._restarts_max}"

    def _say(
        self,
        event: str,
        text: str,
        *,
        level: str = "info",
        details: Mapping[str, object] | None = None,
    ) -> None:
        self._lines.append(Line(event=event, text=text, level=level, details=details or {}))


def _failed(failure: Failure) -> str:
    if failure.exit_code == EXIT_NOT_STARTED and not failure.pid:
        return f"could not be started: {_first_line(failure)}"
    return f"failed: {_how(failure)}"


def _how(failure: Failure) -> str:
    """Say how a worker ended, and with which exception."""
    how = describe_exit(failure.exit_code)
    if failure.hang is not None:
        return f"{how}, ended because it hung"
    first = _first_line(failure)
    return f"{how}, {first}" if first else how


def _first_line(failure: Failure) -> str:
    lines = failure.message.strip().splitlines()
    return one_line(lines[0], REASON_CHARACTERS_MAX) if lines else ""


def _place(failure: Failure) -> dict[str, object]:
    return {
        "run.round": failure.round_id,
        "worker.rank": failure.rank,
        "worker.local_rank": failure.local_rank,
        "worker.pid": failure.pid or None,
        "exit_code": failure.exit_code,
        "run.iteration": failure.iteration if failure.interruption is not None else None,
    }
