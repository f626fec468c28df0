"""Pure. One watched worker: what it said, its limits, and the state of its hang."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from drumbeat.agent.core.watchdog import model as msg
from drumbeat.agent.core.watchdog.model import Tally, WorkerKey
from drumbeat.agent.model.hang import BoardProgress, HangEvidence, Purpose, WorkerProgress
from drumbeat.model import HangKind

# What fits in a beat: of a name, and how many of them. The rest is left out.
SCOPE_BYTES_MAX, NAMES_MAX = 128, 65
# A rank that takes so many times as long to its first heartbeat as ever before is reported; what it
# does at a start differs more than steps do, so it has longer at least.
START_FACTOR, START_LIMIT_MIN_S = 5.0, 30.0
# An interpreter that takes longer to end is reported, not killed: a thread may finish an upload
# after the peers of the worker have ended.
EXIT_REPORT_S = 300.0
# A worker that waits so long in a collective is reported: one rank may evaluate for longer.
COLLECTIVE_REPORT_S = 300.0
# How often a worker is asked how far its process groups are: so many times within the limit.
COLLECTIVE_LOOKS, COLLECTIVE_LOOK_MIN_S, COLLECTIVE_LOOK_MAX_S = 20, 0.25, 10.0
NO_SIGNAL = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Armed:
    """A limit that runs until ``due``: infinity if nothing more is to be done about it.

    ``slot`` says of what, ``pid`` as in ``TimerAcquired``. ``is_graced``: it had its share of
    an uncertain stall. ``number``: counts those that were reported, 0 before that.
    """

    kind: HangKind
    slot: msg.Slot
    limit_s: float
    due: float
    pid: int = 0
    is_graced: bool = False
    number: int = 0

    @property
    def is_deadly(self) -> bool:
        """Whether a worker gets a signal for it."""
        return self.slot.signal is None or self.slot.signal > 0


class Stage(Enum):
    """How far an investigation is.

    It begins when something is over on a board just read; from then on that is a fact, which is
    reported whatever follows. CONFIRMED ends it if the worker has left all that was over, or with
    a report, one signal, limits that count anew, CONDEMNED or KILLING. A worker that is condemned
    is killed, whatever it does or says meanwhile.
    """

    EXAMINED = "the answer of a worker that is only asked is awaited, or given up"
    CONFIRMED = "what it says now is awaited"
    CONDEMNED = "stacks are awaited that only a signal could get"
    HELD = "the coordinator's evidence of all ranks is awaited"
    KILLING = "its end is awaited, or SIGKILL after the grace"


@dataclass(slots=True, eq=False)
class Investigation:
    """A worker that seems to hang. ``due``: when to go on regardless.

    ``expired`` is what was over when it began, in order; all of it is of one process, which
    had that ``standing``. ``killed_at``: when it got SIGKILL.
    """

    stage: Stage
    due: float = math.inf
    expired: tuple[Armed, ...] = ()
    standing: WorkerProgress | None = None
    killed_at: float | None = None
    evidence: HangEvidence = field(default_factory=HangEvidence)
    is_graced: bool = False


class Worker:
    """What is known of one worker, also when it has gone. Its limits follow what it said last."""

    def __init__(
        self,
        key: WorkerKey,
        policy: msg.WatchdogPolicy,
        *,
        now: float,
        usual_start_s: float | None = None,
    ) -> None:
        """Watch a worker from ``now`` on; ``usual_start_s``: from its start to its first heartbeat.

        That is the longest time of this rank in earlier rounds, None if it never had a heartbeat.
        """
        self.key = key
        self.snapshot = msg.Snapshot()
        self.look_at = now
        self.is_reading = False
        self.investigation: Investigation | None = None
        self._policy = policy
        self._learned: Mapping[str, float] = {}
        self._stalled = (-math.inf, -math.inf)  # the latest stall: its earliest begin, and its end
        self._started_at, self._usual_start_s = now, usual_start_s
        self.start_s: float | None = None  # the same of this round, once it is known
        self._slots: dict[int, Armed] = {}
        self._calls: dict[str, Armed] = {}
        self._kinds: dict[HangKind, Armed] = {}
        self._step: int | None = None
        self._called_at: float | None = None  # the latest heartbeat by a call
        self._gaps: Tally = (0, 0.0)
        self._collectives: msg.CollectivesRead | None = None
        self.moved_at: float | None = None  # when a process group of it moved; None: it has none
        self._first_move_at: float | None = None  # seen from one look to the next
        self.ask_at = math.inf  # when it is asked again how far these are
        if policy.observes_workers and self._collective_limit() is not None:
            self.ask_at = now + self._ask_every_s()

    def learn(self, learned: Mapping[str, float]) -> None:
        """Take over the limits that were learned."""
        before, self._learned = self._learned, learned
        for number, armed in self._slots.items():
            slot = armed.slot
            if before.get(slot.name) != learned.get(slot.name) and slot.limit_s == msg.AUTO:
                self._slots[number] = self._armed(slot)
        self._follow_runtime()

    def read(self, snapshot: msg.Snapshot | None) -> None:
        """Take over what the board says; little is done for slots that are the same objects."""
        self.snapshot = snapshot or msg.Snapshot()
        known, self._slots = self._slots, {}
        for slot in self.snapshot.slots:
            if slot.purpose is Purpose.OUTPUT and self.snapshot.exiting_at is not None:
                continue  # an interpreter that ends need not write anything
            old = known.get(slot.slot)
            if old is None or (old.slot is not slot and old.slot != slot):
                old = self._armed(slot)
            self._slots[slot.slot] = old
        self._note_start(self.snapshot.heartbeat_at)
        self._follow_runtime()

    def acquire(self, timer: msg.TimerAcquired, *, now: float) -> float:
        """Start a timer, or start it again, if there is room. Return when it is over."""
        if not self.may_acquire(timer.scope):
            return math.inf
        name, limit_s, due = timer.scope, timer.timeout_s, now + timer.timeout_s
        slot = msg.Slot(name=name, since=now, deadline=due, limit_s=limit_s, signal=timer.signal)
        self._calls[name] = self._armed(slot, pid=timer.pid)
        return due

    def may_acquire(self, scope: str) -> bool:
        """Whether there is room for a timer of this name."""
        return scope in self._calls or len(self._calls) < self._policy.timers_max

    def release(self, scope: str, acquired: Armed | None = None) -> None:
        """Forget a timer of a call, if it is there; only ``acquired``, if that is given."""
        if acquired in (None, self._calls.get(scope)):
            self._calls.pop(scope, None)

    def heartbeat(self, step: int | None, *, now: float) -> None:
        """Note progress that came by a call."""
        if self._called_at is not None:
            count, longest = self._gaps
            self._gaps = (count + 1, max(longest, now - self._called_at))
        self._called_at, self._step = now, step
        self._note_start(now)
        self._follow_runtime()

    def ask_collectives(self, *, now: float) -> None:
        """Take note that it is asked how far its process groups are."""
        self.ask_at = now + self._ask_every_s()

    def read_collectives(self, read: msg.CollectivesRead, *, now: float) -> None:
        """Take in how far its process groups are."""
        if read.progress is None:
            return  # it has none yet, or native code keeps the observer from answering
        if self._collectives is None:
            self.moved_at = now
        elif read.progress != self._collectives.progress:
            self.moved_at = now
            self._first_move_at = now if self._first_move_at is None else self._first_move_at
        self._collectives = read
        self._follow_runtime()

    @property
    def collectives_moved_s(self) -> float:
        """For how long its process groups have moved, from the first move seen to the latest."""
        first, latest = self._first_move_at, self.moved_at
        return 0.0 if first is None or latest is None else latest - first

    def extend(self, awake_at: float, due_at: float, *, now: float) -> None:
        """Give all limits the time of a stall of the watchdog, also those not read yet.

        When between ``awake_at`` and ``due_at`` it stopped is not known. A limit is given the whole
        span the first time, because the worker may have stood still as long; later only what is
        certain, else a watchdog that is always late would never notice anything.
        """
        self._stalled = (awake_at, now)
        case = self.investigation
        for timed in (*self.limits(), *([case] if case else ())):
            if case is not None and timed in case.expired:
                continue  # it was over before
            timed.due += now - (due_at if timed.is_graced else min(due_at, awake_at))
            timed.is_graced = True

    def limits(self) -> Iterator[Armed]:
        """Yield all that run, and those that were handled."""
        return chain(self._slots.values(), self._calls.values(), self._kinds.values())

    def expired(self, now: float) -> list[Armed]:
        """Return the limits that are over and not handled, in the order in which they were."""
        return sorted(
            (armed for armed in self.limits() if armed.due <= now), key=lambda armed: armed.due
        )

    def has_left(self, armed: Armed) -> bool:
        """Return whether a limit that ran is gone; it may have been extended, or learned anew."""
        of_it = armed.kind, armed.slot.name, armed.slot.since
        return all(
            (other.kind, other.slot.name, other.slot.since) != of_it for other in self.limits()
        )

    def next(self) -> float:
        """Return when something is to be done about it."""
        due = self.investigation.due if self.investigation else math.inf
        return min(self.look_at, due, self.ask_at)

    def observed(self) -> dict[str, Tally]:
        """Return how often and how long at most: of each section, and "" between heartbeats."""
        board, (gaps, longest) = self.snapshot, self._gaps
        between = {"": (board.gaps + gaps, max(board.gap_max_s, longest))}
        return {**board.sections, **(between if board.gaps or gaps else {})}

    def evidence_held(self) -> HangEvidence | None:
        """Return what was seen of it before it was held to be killed, None if it is not."""
        case = self.investigation
        is_held = case is not None and case.stage in (Stage.HELD, Stage.KILLING)
        return case.evidence if case is not None and is_held else None

    def exceeded(self) -> Iterator[msg.Exceeded]:
        """Yield the limits that were reported and not left since, and those it is killed for."""
        case, limits = self.investigation, list[Armed]()
        if case is not None and case.stage in (Stage.HELD, Stage.KILLING):
            limits += case.expired
        limits += (armed for armed in self.limits() if armed not in limits)
        for armed in limits:
            if armed.number and not armed.pid:
                yield msg.Exceeded(
                    worker=self.key,
                    number=armed.number,
                    kind=armed.kind,
                    scope=_short(armed.slot.name),
                    limit_s=armed.limit_s,
                    since=armed.slot.since,
                    is_held=(case is not None and armed in case.expired)
                    or self.is_ended_on_order(armed),
                )

    def is_ended_on_order(self, armed: Armed) -> bool:
        """Whether the worker is killed for a limit if the coordinator says so, and only then."""
        is_ended = not isinstance(self._policy.collective_timeout_s, str)
        return armed.kind is HangKind.COLLECTIVE and is_ended

    def standing(self) -> WorkerProgress:
        """Return where it stands, as it said last."""
        board = self.snapshot
        called, heartbeat_at = self._called_at, board.heartbeat_at
        is_by_call = called is not None and (heartbeat_at is None or called > heartbeat_at)
        # Limits of in-process restart are always there: they say nothing of where it is.
        open_ = [slot for slot in board.slots if slot.purpose is Purpose.USER]
        open_ += [armed.slot for armed in self._calls.values()]
        latest = max(open_, key=lambda slot: (slot.is_section, slot.since), default=None)
        said = {name: getattr(board, name) for name in BoardProgress.__struct_fields__}
        said["progress_since"] = self._progress_since()
        if is_by_call:
            said |= {"step": self._step, "heartbeat_at": called}
        if not self._policy.tells_step_sums:
            said["steps_timed"] = 0
        return WorkerProgress(
            local_rank=self.key.local_rank,
            scope=_short(latest.name) if latest else "",
            scope_since=latest.since if latest else None,
            scopes_open=len(open_),
            **said,
        )

    def _armed(self, slot: msg.Slot, kind: HangKind | None = None, pid: int = 0) -> Armed:
        """Let a limit run; it is given what it shares with the latest stall."""
        counts_from, due = slot.since, slot.deadline
        limit_s = self._learned_or(slot.limit_s, slot.name)
        if due is None:
            limit_s = limit_s if limit_s is not None and slot.is_section else math.inf
            due = slot.since + limit_s
        else:
            limit_s = due - slot.since if limit_s is None else limit_s
            # One that was suspended counts from when it was continued, or later.
            counts_from = max(counts_from, due - limit_s)
        stalled_from, stalled_to = self._stalled
        shared_s = max(0.0, stalled_to - max(counts_from, stalled_from))
        if kind is None:
            kind = HangKind.SECTION if slot.is_section else HangKind.TIMER
            kind = HangKind.OUTPUT if slot.purpose is Purpose.OUTPUT else kind
        return Armed(
            kind=kind,
            slot=slot,
            limit_s=limit_s,
            due=due + shared_s,
            pid=pid,
            is_graced=shared_s > 0,
        )

    def _follow_runtime(self) -> None:
        """Start the limits that a worker has once each: startup, runtime, progress, exit."""
        board, policy = self.snapshot, self._policy
        has_beaten = self._called_at is not None or board.heartbeats > 0
        runtime: dict[HangKind, tuple[float | None, float | None]] = {
            HangKind.STARTUP: (None if has_beaten else self._started_at, self._startup_limit()),
            HangKind.RUNTIME: (board.beat_at, policy.runtime_timeout_s),
            HangKind.PROGRESS: (
                self._progress_since(),
                self._learned_or(policy.progress_timeout_s, ""),
            ),
        }
        if self._collectives is not None and self._collectives.is_waiting:
            runtime[HangKind.COLLECTIVE] = (self.moved_at, self._collective_limit())
        if board.exiting_at is not None:  # nothing but its end is expected
            runtime = {HangKind.EXIT: (board.exiting_at, self._exit_limit())}
        known, self._kinds = self._kinds, {}
        for kind, (since, limit_s) in runtime.items():
            if since is None or limit_s is None:
                continue
            old = known.get(kind)
            if old is None or (old.slot.since, old.limit_s) != (since, limit_s):
                signal = NO_SIGNAL if self._is_only_reported(kind) else None
                deadline = since + limit_s
                slot = msg.Slot(since=since, deadline=deadline, limit_s=limit_s, signal=signal)
                old = self._armed(slot, kind)
            self._kinds[kind] = old

    def _startup_limit(self) -> float | None:
        """Return the configured limit, else the one learned from this rank's earlier rounds."""
        set_s, usual_s = self._policy.startup_timeout_s, self._usual_start_s
        is_learned = self._policy.progress_timeout_s in (msg.AUTO, msg.REPORT)
        if set_s is not None or usual_s is None or not is_learned:
            return set_s
        return max(START_LIMIT_MIN_S, START_FACTOR * usual_s)

    def _exit_limit(self) -> float | None:
        limit = self._policy.exit_timeout_s
        return EXIT_REPORT_S if isinstance(limit, str) else limit

    def _collective_limit(self) -> float | None:
        limit = self._policy.collective_timeout_s
        return COLLECTIVE_REPORT_S if isinstance(limit, str) else limit

    def _ask_every_s(self) -> float:
        every_s = (self._collective_limit() or math.inf) / COLLECTIVE_LOOKS
        return min(max(every_s, COLLECTIVE_LOOK_MIN_S), COLLECTIVE_LOOK_MAX_S)

    def _is_only_reported(self, kind: HangKind) -> bool:
        if kind is HangKind.COLLECTIVE:
            return True  # what is done beyond that, is the coordinator's to say
        if kind is HangKind.EXIT:
            return self._policy.exit_timeout_s == msg.REPORT
        is_set = kind is HangKind.STARTUP and self._policy.startup_timeout_s is not None
        is_progress = kind is HangKind.PROGRESS or (kind is HangKind.STARTUP and not is_set)
        return is_progress and self._policy.progress_timeout_s == msg.REPORT

    def _note_start(self, heartbeat_at: float | None) -> None:
        is_new = self.start_s is None and not self._policy.is_preflight
        if is_new and heartbeat_at is not None:
            self.start_s = max(0.0, heartbeat_at - self._started_at)

    def _progress_since(self) -> float | None:
        """Return since when the next heartbeat is expected; ``None``: none is."""
        board, called_at = self.snapshot, self._called_at
        since = board.progress_since if board.heartbeats else called_at
        if since is None or board.exiting_at is not None:
            return None
        return since if called_at is None else max(since, called_at)

    def _learned_or(self, limit: msg.Limit, name: str) -> float | None:
        return self._learned.get(name) if isinstance(limit, str) else limit


def _short(name: str) -> str:
    return name.encode()[:SCOPE_BYTES_MAX].decode(errors="ignore")


def merged(observed: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the sums of the counts and the longest times, by name, "" first."""
    totals: dict[str, Tally] = {}
    for name, (count, longest) in (item for tallies in observed for item in tallies.items()):
        counted, so_far = totals.get(name, (0, 0.0))
        totals[name] = (counted + count, max(so_far, longest))
    return {name: totals[name] for name in sorted(totals)[:NAMES_MAX]}
