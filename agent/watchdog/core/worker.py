"""Pure. One worker: what it said, which limits follow from that, and how far its hang is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from agent.watchdog.core.limits import NEVER_STALLED, Armed, LimitKey, Limits, Stall
from agent.watchdog.core.messages import TimerAcquired
from agent.watchdog.core.model import Auto, Limit, Slot, Snapshot, Tally, WatchdogPolicy, WorkerKey
from agent.watchdog.hang import Evidence, HangKind, Purpose, Standing

# What fits in a beat: of a name, and how many of them. The rest is left out.
SCOPE_BYTES_MAX = 128
NAMES_MAX = 65


class Stage(Enum):
    """How far an investigation is.

    It begins when something is over on a board just read. CONFIRMED ends it if nothing is over
    any more, or with a report, one signal, limits that count anew, or KILLING. A process that
    was stopped goes from EXAMINED straight to its verdict.
    """

    EXAMINED = "its stacks are awaited, or given up"
    CONFIRMED = "what it says now is awaited"
    KILLING = "its end is awaited, or SIGKILL after the grace"


@dataclass(slots=True, eq=False)
class Investigation:
    """A worker that seems to hang. ``deadline``: when to go on regardless, monotonic seconds.

    ``expired`` is what was over when it began, in order; all of it is of one process.
    """

    stage: Stage
    deadline: float | None = None
    expired: tuple[Armed, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    is_graced: bool = False

    @property
    def pid(self) -> int:
        """The process below the worker that it is about, 0 for the worker itself."""
        return self.expired[0].pid if self.expired else 0


class Worker:
    """What is known of one worker, also when it has gone. ``limits`` follow what it said last."""

    def __init__(self, key: WorkerKey, policy: WatchdogPolicy, *, now: float) -> None:
        self.key = key
        self.limits = Limits()
        self.snapshot = Snapshot()
        self.look_at = now
        self.is_reading = False
        self.investigation: Investigation | None = None
        self._policy = policy
        self._learned: Mapping[str, float] = {}
        self._stall = NEVER_STALLED
        self._started_at = now
        self._slots: dict[int, Slot] = {}
        self._calls: dict[str, Armed] = {}
        self._step: int | None = None
        self._called_at: float | None = None  # the latest heartbeat by a call
        self._gaps: Tally = (0, 0.0)

    def learn(self, learned: Mapping[str, float]) -> None:
        """Take over the limits that were learned."""
        before, self._learned = self._learned, learned
        for slot in self._slots.values():
            if before.get(slot.name) != learned.get(slot.name) and isinstance(slot.limit_s, Auto):
                self._arm_slot(slot)
        self._follow_runtime()

    def read(self, snapshot: Snapshot | None) -> None:
        """Take over what the board says; O(changed) if unchanged slots are the same objects."""
        self.snapshot = snapshot or Snapshot()
        known, self._slots = self._slots, {slot.slot: slot for slot in self.snapshot.slots}
        for number, slot in self._slots.items():
            old = known.pop(number, None)
            if old is not slot and old != slot:
                self._arm_slot(slot)
        for number in known:
            self.limits.drop(("slot", number))
        self._follow_runtime()

    def acquire(self, timer: TimerAcquired, *, now: float) -> None:
        """Start a timer, or start it again, if there is room."""
        if not self.may_acquire(timer.scope):
            return
        self._calls[timer.scope] = armed = Armed(
            key=("call", timer.scope),
            kind=HangKind.TIMER,
            scope=timer.scope,
            since=now,
            limit_s=timer.timeout_s,
            due=now + timer.timeout_s,
            signal=timer.signal,
            pid=timer.pid,
        )
        self.limits.put(armed)

    def may_acquire(self, scope: str) -> bool:
        """Whether there is room for a timer of this name."""
        return scope in self._calls or len(self._calls) < self._policy.timers_max

    def release(self, scope: str) -> None:
        """Forget a timer, if it is there."""
        self._calls.pop(scope, None)
        self.limits.drop(("call", scope))

    def forget(self, armed: Armed) -> None:
        """Let go of a limit of which nothing more follows."""
        self.limits.handle(armed)
        if self._calls.get(armed.scope) is armed:
            self.release(armed.scope)

    def heartbeat(self, step: int | None, *, now: float) -> None:
        """Note progress that came by a call."""
        if self._called_at is not None:
            count, longest = self._gaps
            self._gaps = (count + 1, max(longest, now - self._called_at))
        self._called_at, self._step = now, step
        self._follow_runtime()

    def extend(self, stall: Stall) -> None:
        """Give all limits the time of a stall, also those not read yet."""
        self._stall = stall
        self.limits.extend(stall)
        found = self.investigation
        if found is not None and found.deadline is not None:
            found.deadline += stall.forgiven_s(is_graced=found.is_graced)
            found.is_graced = True

    # What is known of it.

    def next(self) -> float:
        """Return when something is to be done about it."""
        deadline = self.investigation.deadline if self.investigation is not None else None
        return self.look_at if deadline is None else min(self.look_at, deadline)

    def observed(self) -> dict[str, Tally]:
        """Return how often and how long at most: of each section, and "" between heartbeats."""
        board = self.snapshot
        seen = dict(board.sections)
        gaps, longest = self._gaps
        if board.gaps or gaps:
            seen[""] = (board.gaps + gaps, max(board.gap_max_s, longest))
        return seen

    def standing(self) -> Standing:
        """Return where it stands, as it said last."""
        board = self.snapshot
        called, heartbeat_at = self._called_at, board.heartbeat_at
        is_by_call = called is not None and (heartbeat_at is None or called > heartbeat_at)
        # Limits of in-process restart are always there: they say nothing of where it is.
        own = (slot for slot in board.slots if slot.purpose is Purpose.USER)
        openings = [(slot.is_section, slot.since, slot.name) for slot in own]
        openings += [(False, armed.since, armed.scope) for armed in self._calls.values()]
        _, since, scope = max(openings, default=(False, None, ""), key=lambda each: each[:2])
        return Standing(
            local_rank=self.key.local_rank,
            step=self._step if is_by_call else board.step,
            step_time_s=board.step_time_s,
            heartbeat_at=called if is_by_call else heartbeat_at,
            beat_at=board.beat_at,
            scope=scope.encode()[:SCOPE_BYTES_MAX].decode(errors="ignore"),
            scope_since=since,
            scopes_open=len(openings),
        )

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        self.limits.check_invariants()
        assert len(self._calls) <= self._policy.timers_max
        for armed in self._calls.values():
            assert self.limits.get(armed.key) is armed, "a timer that does not run"
        slots = sum(self.limits.get(("slot", number)) is not None for number in self._slots)
        kinds = sum(self.limits.get(("kind", kind)) is not None for kind in HangKind)
        assert len(self.limits) == slots + len(self._calls) + kinds, "a limit of nothing"

    # Limits that follow.

    def _arm_slot(self, slot: Slot) -> None:
        since, limit_s, due = slot.since, slot.limit_s, slot.deadline
        if due is not None:
            length_s = limit_s if isinstance(limit_s, float | int) else due - since
        else:
            learned_s = self._learned_or(limit_s, slot.name)
            if learned_s is None or not slot.is_section:
                self.limits.drop(("slot", slot.slot))
                return
            length_s, due = learned_s, since + learned_s
        armed = Armed(
            key=("slot", slot.slot),
            kind=HangKind.SECTION if slot.is_section else HangKind.TIMER,
            scope=slot.name,
            since=since,
            limit_s=length_s,
            due=due,
            signal=slot.signal,
            purpose=slot.purpose,
            grace_s=slot.grace_s,
        )
        # A slot that was suspended counts from when it was continued, or later.
        self._put(armed, counts_from=max(since, due - length_s))

    def _follow_runtime(self) -> None:
        """Let the limits run of which a worker has one each."""
        board, policy = self.snapshot, self._policy
        is_ending = board.exiting_at is not None
        has_beaten = self._called_at is not None or board.heartbeats > 0
        progress_since = board.progress_since if board.heartbeats else self._called_at
        if progress_since is not None and self._called_at is not None:
            progress_since = max(progress_since, self._called_at)
        for kind, since, limit_s in (
            (HangKind.STARTUP, None if has_beaten else self._started_at, policy.startup_timeout_s),
            (HangKind.RUNTIME, board.beat_at, policy.runtime_timeout_s),
            (HangKind.PROGRESS, progress_since, self._learned_or(policy.progress_timeout_s, "")),
        ):
            self._follow(kind, None if is_ending else since, limit_s)
        self._follow(HangKind.EXIT, board.exiting_at, policy.exit_timeout_s)

    def _follow(self, kind: HangKind, since: float | None, limit_s: float | None) -> None:
        key: LimitKey = ("kind", kind)
        if since is None or limit_s is None:
            self.limits.drop(key)
            return
        old = self.limits.get(key)
        if old is None or (old.since, old.limit_s) != (since, limit_s):
            armed = Armed(key=key, kind=kind, since=since, limit_s=limit_s, due=since + limit_s)
            self._put(armed, counts_from=since)

    def _put(self, armed: Armed, *, counts_from: float) -> None:
        """Let a limit run; it is given what it shares with the latest stall."""
        shared_s = self._stall.overlap_s(counts_from)
        armed.due += shared_s
        armed.is_graced = shared_s > 0
        self.limits.put(armed)

    def _learned_or(self, limit: Limit, name: str) -> float | None:
        return self._learned.get(name) if isinstance(limit, Auto) else limit


def merged(observed: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the sums of the counts and the longest times, by name, "" first."""
    totals: dict[str, Tally] = {}
    for name, (count, longest) in (item for each in observed for item in each.items()):
        counted, so_far = totals.get(name, (0, 0.0))
        totals[name] = (counted + count, max(so_far, longest))
    return {name: totals[name] for name in sorted(totals)[:NAMES_MAX]}
