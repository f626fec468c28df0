"""Pure. What an agent waits for, and when that is said: soon, then ever more rarely."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent.core.model import Assignment, DesiredState, GroupState, Standby, Stop
from drumbeat.durations import format_duration
from drumbeat.format import count, one_line

TOLD_AFTER_S = (1.5, 10.0, 30.0, 60.0, 120.0, 300.0)
"""How long after the beginning of a wait it is told, in seconds; at last at steps of the last."""

_GRPC = re.compile(r"^[A-Z_]+: (?:ipv[46]:\S+: )?")
_ENDS = "Ctrl-C ends this agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where an agent's core stands, for its console. Instants are monotonic."""

    coordinator: str
    is_connected: bool
    was_connected: bool
    reason: str
    """What the last attempt to connect met."""
    until: float | None
    """When the agent gives the coordinator up."""
    desired: DesiredState
    group: GroupState
    workers_alive: int
    is_stopping: bool
    """Whether processes are being ended."""
    is_ending: bool
    """Whether the agent ends as soon as its workers have."""
    is_gpu_memory_awaited: bool


Wait = tuple[str, str]
"""Which wait it is, and what is said of it."""


class WaitNotices:
    """Decides when what is waited for is said.

    ``due_at`` is when ``review`` has something to say, if nothing happens before; ``has_told``
    whether the wait that goes on was told.
    """

    def __init__(self) -> None:
        self.due_at: float | None = None
        self.has_told = False
        self._what = ""
        self._schedule: Iterator[float] = iter(())

    def review(self, wait: Wait | None, *, now: float) -> str:
        """Take note of what is waited for; return what is to be said of it, or nothing."""
        if wait is None:
            self.due_at, self.has_told, self._what = None, False, ""
            return ""
        what, text = wait
        if what != self._what:
            self.has_told, self._what = False, what
            rest = itertools.count(2 * TOLD_AFTER_S[-1], TOLD_AFTER_S[-1])
            self._schedule = (now + after_s for after_s in itertools.chain(TOLD_AFTER_S, rest))
            self.due_at = next(self._schedule)
        if self.due_at is None or now < self.due_at:
            return ""
        self.has_told = True
        self.due_at = next(due_at for due_at in self._schedule if due_at > now)
        return text


def wait_of(
    situation: Situation, kill_at: float | None, standby_until: float | None, *, now: float
) -> Wait | None:
    """Return what an agent waits for, the most pressing of it; ``None`` while it trains.

    ``kill_at`` is when workers that are being stopped get SIGKILL, ``standby_until`` until when
    the coordinator waits for other agents.
    """
    if situation.is_stopping:
        return _for_workers(situation, _left(kill_at, now))
    if situation.is_ending:
        return None
    if not situation.is_connected:
        return _for_coordinator(situation, _left(situation.until, now))
    if situation.is_gpu_memory_awaited:
        return ("GPU memory", f"waiting for the GPU memory of the workers before; {_ENDS}")
    return _for_others(situation, _left(standby_until, now))


def _for_others(situation: Situation, left: str) -> Wait | None:
    match situation.desired, situation.group:
        case Standby(reason=reason), _:
            until = f", up to {left} more" if left else ""
            return ("other agents", f"standing by: {one_line(reason)}{until}; {_ENDS}")
        case Assignment(), GroupState.STARTING:
            return ("start", f"waiting for the workers to start; {_ENDS}")
        case Assignment(), GroupState.SUCCEEDED:
            text = "all workers here succeeded; waiting for those of the other agents"
            return ("barrier", f"{text}; {_ENDS}")
        case (Assignment(), GroupState.FAILED) | (Stop(), _):
            text = "all workers here are stopped; waiting for the coordinator and the other agents"
            return ("verdict", f"{text}; {_ENDS}")
    return None


def _for_workers(situation: Situation, left: str) -> Wait:
    text = f"waiting for {count(situation.workers_alive, 'worker')} to end"
    if not left:
        return ("kill", f"{text} that got SIGKILL; the kernel holds processes of theirs")
    again = "Ctrl-C again" if situation.is_ending else f"{_ENDS}, a second one"
    return ("workers", f"{text}, SIGKILL in {left}; {again} kills at once")


def _for_coordinator(situation: Situation, left: str) -> Wait:
    # What gRPC met last; before it stands text of its own, and the address once more.
    reason = one_line(_GRPC.sub("", situation.reason.rpartition("last error: ")[2]))
    text = f"waiting for the coordinator at {situation.coordinator} ({reason})"
    if left:
        option = "--coordinator-grace" if situation.was_connected else "--join-timeout"
        text += f", up to {left} more ({option})"
    alive, ends = situation.workers_alive, _ENDS
    if alive:
        go_on = f"{count(alive, 'worker')} {'goes' if alive == 1 else 'go'} on here"
        ends = f"{go_on}; Ctrl-C stops them and ends this agent"
    return ("coordinator", f"{text}; {ends}")


def _left(until: float | None, now: float) -> str:
    """Return how long it is until then; nothing if that is over or not known."""
    left = 0.0 if until is None else until - now
    return format_duration(left if left < 1 else round(left)) if left > 0 else ""
