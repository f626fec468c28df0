"""Pure. The limits of one worker that run: which is next, and which are over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.watchdog.hang import HangKind, Purpose
from drumbeat.deadlines import Deadlines

LimitKey = tuple[Literal["slot"], int] | tuple[Literal["call", "kind"], str]
"""A slot's by its number, a call's by its scope, those of which there is one by ``HangKind``."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The watchdog stood still: it was last awake at ``awake_at``, due at ``due_at``.

    When between the two it stopped is not known. A limit is given the whole span the first
    time, because the worker may have stood still as long; later only what is certain, else
    a watchdog that is always late would never notice anything.
    """

    awake_at: float
    due_at: float
    ended_at: float

    @property
    def lateness_s(self) -> float:
        """For how long it certainly stood still."""
        return self.ended_at - self.due_at

    def forgiven_s(self, *, is_graced: bool) -> float:
        """How much more time is given; ``is_graced``: the uncertain part was given already."""
        return self.lateness_s + (0.0 if is_graced else max(0.0, self.due_at - self.awake_at))

    def overlap_s(self, since: float) -> float:
        """How much of it lies after ``since``."""
        return max(0.0, self.ended_at - max(since, self.awake_at))


NEVER_STALLED = Stall(float("-inf"), float("-inf"), float("-inf"))


@dataclass(slots=True, eq=False, kw_only=True)
class Armed:
    """A limit that runs, from ``since`` to ``due``.

    ``signal``, ``purpose`` and ``grace_s`` as in ``Slot``, ``pid`` as in ``TimerAcquired``.
    ``is_graced``: it had its share of an uncertain stall.
    """

    key: LimitKey
    kind: HangKind
    scope: str = ""
    since: float
    limit_s: float
    due: float
    signal: int | None = None
    pid: int = 0
    is_graced: bool = False
    purpose: Purpose = Purpose.USER
    grace_s: float | None = None

    @property
    def is_deadly(self) -> bool:
        """Whether a worker gets a signal for it."""
        return self.signal is None or self.signal > 0


class Limits:
    """The limits of one worker. Those that are handled are kept, but have no deadline."""

    def __init__(self) -> None:
        self._armed: dict[LimitKey, Armed] = {}
        self._deadlines: Deadlines[LimitKey] = Deadlines()

    def __len__(self) -> int:
        return len(self._armed)

    def get(self, key: LimitKey) -> Armed | None:
        """Return the limit of this key."""
        return self._armed.get(key)

    def put(self, armed: Armed) -> None:
        """Let a limit run, in the place of an earlier one of its key."""
        self._armed[armed.key] = armed
        self._deadlines.set(armed.key, armed.due)

    def drop(self, key: LimitKey) -> None:
        """Forget a limit, if it is there."""
        self._armed.pop(key, None)
        self._deadlines.clear(key)

    def next(self) -> float | None:
        """Return when the next one is over, which may be in the past."""
        return self._deadlines.next()

    def expired(self, now: float) -> list[Armed]:
        """Return those that are over and not handled, in the order in which they were."""
        first = self.next()
        if first is None or first > now:
            return []
        over = [each for key, each in self._armed.items() if key in self._deadlines]
        return sorted((each for each in over if each.due <= now), key=lambda each: each.due)

    def handle(self, armed: Armed) -> None:
        """Note that nothing more is to be done about a limit until it is put anew."""
        if self._armed.get(armed.key) is armed:
            self._deadlines.clear(armed.key)

    def postpone(self, armed: Armed, due: float) -> None:
        """Let a limit, handled or not, be over at ``due``; unless it was replaced or dropped."""
        if self._armed.get(armed.key) is armed:
            armed.due = due
            self.put(armed)

    def extend(self, stall: Stall) -> None:
        """Give every limit the time of a stall."""
        for key, armed in self._armed.items():
            if key in self._deadlines:
                armed.due += stall.forgiven_s(is_graced=armed.is_graced)
                armed.is_graced = True
                self._deadlines.set(key, armed.due)

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        due = {key: self._deadlines.get(key) for key in self._armed if key in self._deadlines}
        assert len(due) == len(self._deadlines), "a deadline of nothing"
        assert all(self._armed[key].due == at for key, at in due.items()), "a stale deadline"
