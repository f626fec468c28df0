"""Pure. One worker: what it said, and which limits follow from that."""

from __future__ import annotations

from collections.abc import Mapping

from agent.watchdog.core.events import TimerAcquired
from agent.watchdog.core.limits import (
    NEVER_STALLED,
    Armed,
    LimitKey,
    Limits,
    Stall,
    call_key,
    kind_key,
    slot_key,
)
from agent.watchdog.core.model import (
    Auto,
    HangKind,
    Limit,
    Purpose,
    Slot,
    Snapshot,
    Standing,
    WatchdogPolicy,
    WorkerKey,
)

NOBODYS = Snapshot()

# As much of a name as a standing may hold; see ``drumbeat.v1.WorkerProgress``.
SCOPE_BYTES_MAX = 128

NO_LIMITS: Mapping[str, float] = {}


class Watched:
    """What is known of one worker. ``limits`` always follow what it said last."""

    def __init__(self, key: WorkerKey, policy: WatchdogPolicy, *, now: float) -> None:
        self.key = key
        self.limits = Limits()
        self.snapshot = NOBODYS
        self._policy = policy
        self._learned = NO_LIMITS
        self._stall: Stall = NEVER_STALLED
        self._started_at: float | None = now
        self._slots: dict[int, Slot] = {}
        self._calls: dict[str, Armed] = {}
        self._step: int | None = None
        self._called_at: float | None = None  # the latest heartbeat by a call
        self._gaps: tuple[int, float] = (0, 0.0)
        self._voided_pid: int | None = None
        self._follow_runtime()

    # What a worker says.

    def learn(self, learned: Mapping[str, float]) -> None:
        """Take over the limits that were learned."""
        before, names = self._learned, {*learned, *self._learned}
        changed = {name for name in names if learned.get(name) != before.get(name)}
        self._learned = learned
        for slot in self._slots.values():
            if slot.name in changed and isinstance(slot.limit_s, Auto):
                self._arm_slot(slot)
        self._follow_runtime()

    def read(self, snapshot: Snapshot | None) -> None:
        """Take over what the board says; O(changed) if unchanged slots are the same objects."""
        self.snapshot = snapshot or NOBODYS
        if self._voided_pid not in (None, self.snapshot.owner_pid):
            self._voided_pid = None
        self._follow_slots(self.snapshot.slots if self._voided_pid is None else ())
        self._follow_runtime()

    def acquire(self, timer: TimerAcquired, *, now: float) -> bool:
        """Start a timer, or start it again; ``False`` if there are too many."""
        scope = timer.scope
        if not self.may_acquire(scope):
            return False
        self._calls[scope] = armed = Armed(
            key=call_key(scope),
            kind=HangKind.TIMER,
            scope=scope,
            since=now,
            limit_s=timer.timeout_s,
            due=now + timer.timeout_s,
            signal=timer.signal,
            pid=timer.pid,
        )
        self.limits.put(armed)
        return True

    def may_acquire(self, scope: str) -> bool:
        """Whether there is room for a timer of this name."""
        return scope in self._calls or len(self._calls) < self._policy.timers_max

    def release(self, scope: str) -> None:
        """Forget a timer, if it is there."""
        self._calls.pop(scope, None)
        self.limits.drop(call_key(scope))

    def forget(self, armed: Armed) -> None:
        """Let go of a limit whose being over was only to be told."""
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

    def void(self) -> None:
        """Forget every limit: the process that owned them is gone."""
        self._voided_pid = self.snapshot.owner_pid
        self._started_at = self._called_at = None
        self._slots.clear()
        self._calls.clear()
        self.limits.clear()

    def extend(self, stall: Stall) -> None:
        """Give all limits the time during which nobody could look, also those not read yet."""
        self._stall = stall
        self.limits.extend(stall)

    # What is known of it.

    def observed(self) -> dict[str, tuple[int, float]]:
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
        # Limits of in-process restart are always there: they tell nothing of where it is.
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
        slots = sum(self.limits.get(slot_key(number)) is not None for number in self._slots)
        kinds = sum(self.limits.get(kind_key(kind)) is not None for kind in HangKind)
        assert len(self.limits) == slots + len(self._calls) + kinds, "a limit of nothing"

    # Limits that follow.

    def _follow_slots(self, slots: tuple[Slot, ...]) -> None:
        known, self._slots = self._slots, {slot.slot: slot for slot in slots}
        for number, slot in self._slots.items():
            old = known.pop(number, None)
            if old is not slot and old != slot:
                self._arm_slot(slot)
        for number in known:
            self.limits.drop(slot_key(number))

    def _arm_slot(self, slot: Slot) -> None:
        key, since, limit_s = slot_key(slot.slot), slot.since, slot.limit_s
        if slot.deadline is not None:
            length_s = limit_s if isinstance(limit_s, float | int) else slot.deadline - since
            due = slot.deadline
        else:
            learned_s = self._learned_or(limit_s, slot.name)
            if learned_s is None or not slot.is_section:
                self.limits.drop(key)
                return
            length_s, due = learned_s, since + learned_s
        self._put(
            Armed(
                key=key,
                kind=HangKind.SECTION if slot.is_section else HangKind.TIMER,
                scope=slot.name,
                since=since,
                limit_s=length_s,
                due=due,
                signal=slot.signal,
                purpose=slot.purpose,
                grace_s=slot.grace_s,
            ),
            # A slot that was suspended counts from when it was continued, or later.
            counts_from=max(since, due - length_s),
        )

    def _follow_runtime(self) -> None:
        """Let the limits run of which a worker has one each."""
        board, policy = self.snapshot, self._policy
        is_void = self._voided_pid is not None
        exiting_at = None if is_void else board.exiting_at
        is_ending = exiting_at is not None
        is_live = not is_void and not is_ending
        has_beaten = self._called_at is not None or board.heartbeats > 0
        self._follow(HangKind.EXIT, exiting_at, policy.exit_timeout_s)
        self._follow(
            HangKind.STARTUP,
            None if has_beaten or is_ending else self._started_at,
            policy.startup_timeout_s,
        )
        self._follow(HangKind.RUNTIME, board.beat_at if is_live else None, policy.runtime_timeout_s)
        self._follow(
            HangKind.PROGRESS,
            None if is_ending else self._progress_since(),
            self._learned_or(policy.progress_timeout_s, ""),
        )

    def _progress_since(self) -> float | None:
        board = self.snapshot
        if self._voided_pid is not None or not board.heartbeats:
            return self._called_at
        if board.progress_since is None or self._called_at is None:
            return board.progress_since
        return max(board.progress_since, self._called_at)

    def _follow(self, kind: HangKind, since: float | None, limit_s: float | None) -> None:
        key: LimitKey = kind_key(kind)
        if since is None or limit_s is None:
            self.limits.drop(key)
            return
        old = self.limits.get(key)
        if old is None or (old.since, old.limit_s) != (since, limit_s):
            armed = Armed(key=key, kind=kind, since=since, limit_s=limit_s, due=since + limit_s)
            self._put(armed, counts_from=since)

    def _put(self, armed: Armed, *, counts_from: float) -> None:
        """Let a limit run; what it shares with the latest stall it is given."""
        shared_s = self._stall.overlap_s(counts_from)
        armed.due += shared_s
        armed.is_graced = shared_s > 0
        self.limits.put(armed)

    def _learned_or(self, limit: Limit, name: str) -> float | None:
        return self._learned.get(name) if isinstance(limit, Auto) else limit
