"""Shell. Timers, sections and heartbeats: how long things may take, and that they go on.

Times are seconds or a ``timedelta``. A wrong argument raises ``TypeError`` or
``ValueError``; the agent, its absence and its end never raise.
"""

from __future__ import annotations

import functools
import inspect
import logging
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from operator import index
from time import monotonic_ns
from typing import ClassVar, Literal, ParamSpec, Self, SupportsFloat, SupportsIndex, TypeVar
from weakref import ref

from worker_sdk.board.board import REFUSED, Board, Thread
from worker_sdk.board.layout import (
    AUTO,
    BUSY_TIME,
    GAP_MAX,
    GAPS,
    HEARTBEAT_AT,
    HEARTBEATS,
    KIND_SECTION,
    KIND_TIMER,
    LOSS,
    NO_STEP,
    PROGRESS_SINCE,
    SIGNAL_DEFAULT,
    SLOT_SINCE,
    SLOT_WORDS,
    SLOTS_FROM,
    STEP,
    STEP_TIME,
    STEPS_BUSY,
    STEPS_TIME,
    STEPS_TIMED,
    STEPS_TOTAL,
)
from worker_sdk.interpreter.signal_numbers import ALLOWED, is_signal
from worker_sdk.runtime import STATE, attachment, start

log = logging.getLogger("worker_sdk")

P = ParamSpec("P")
R = TypeVar("R")

AFTER_MAX_S = 1e9  # longer limits, of more than thirty years, are taken for this one
CONFIRM_TIMEOUT_S = 5.0  # the longest wait for the agent to confirm a timer
PLACES_KEPT = 1024  # places in the code whose names are remembered
STEP_MAX = 2**63 - 1
_DOUBLE, _WORD = struct.Struct("d"), struct.Struct("q")
_DURATIONS = timedelta | SupportsFloat | SupportsIndex
_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@functools.lru_cache(PLACES_KEPT)
def _place(path: str, line: int) -> str:
    return f"{path.rpartition('/')[2]}:{line}"


class _Block:
    """What a ``with`` block of ours has in common; each instance is for one block at a time."""

    __slots__ = ("__weakref__", "_board", "_name", "_slot", "_thread")

    _given: ClassVar[tuple[str, ...]]  # the attributes that its arguments give
    _board: Board
    _name: str
    _slot: int
    _thread: Thread | None

    def __enter__(self) -> Self:
        raise AssertionError  # each kind has its own

    def __exit__(self, _kind: object, /, *_: object) -> None:
        # What `close_slot` does, without a call: at each, an exception may strike.
        slot = self._slot
        if slot >= 0:
            board = self._board
            board.words[SLOTS_FROM + slot * SLOT_WORDS] = 0
            self._slot = -1
            board.leak_guards[slot] = None
            held = board.holders[slot]
            if held and held[-1] == slot:
                del held[-1]
            elif slot in held:
                held.remove(slot)
            board.free.append(slot)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make each call of ``function`` such a block, with a slot of its own."""
        if any(is_later(function) for is_later in _RUN_LATER):
            raise TypeError(f"{function!r} runs after its call: use `with` inside of it")

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            block = object.__new__(type(self))
            block._slot, block._thread = -1, None
            for name in self._given:
                setattr(block, name, getattr(self, name))
            with block:
                return function(*args, **kwargs)

        return wrapper


class expires(_Block):  # noqa: N801 - used like a function
    """Have the agent end this worker if the block takes longer than ``after``.

    Used as ``with expires(after=60):`` or as a decorator. Costs about a microsecond. ``scope`` is
    its name in reports, by default the place in the code. ``signal`` is what the worker gets:
    ``None`` for SIGTERM, then SIGKILL; above 0 that signal, once; else nothing, the expiry is only
    reported.
    """

    __slots__ = ("_after_ns", "_signal")
    _given = ("_name", *__slots__)

    def __init__(
        self, after: float | timedelta, scope: str | None = None, signal: int | None = None
    ) -> None:
        self._slot = -1
        self._after_ns = duration_ns("after", after)
        if scope is None:
            frame = sys._getframe(1)  # noqa: SLF001 - the cheap way to the caller
            scope = _place(frame.f_code.co_filename, frame.f_lineno)
        elif type(scope) is not str or not scope:
            scope = checked_name("scope", scope)
        self._name = scope
        self._signal = SIGNAL_DEFAULT if signal is None else signal_word(signal)

    def __enter__(self) -> Self:
        if self._slot >= 0:
            raise RuntimeError(f"the block {self._name!r} is open already; make one for each")
        board = self._board = STATE.board or start()
        after_ns = self._after_ns
        guard = ref(self, board.on_lost)
        self._slot = board.open_slot(self._name, after_ns, after_ns, self._signal, KIND_TIMER)
        board.leak_guards[self._slot] = guard
        return self


class section(_Block):  # noqa: N801 - used like a function
    """Give the block its own limit, and suspend those around it.

    While it lasts, the timers and sections that this thread has open do not count, nor
    does the limit between heartbeats if this is the thread that sends them. Afterwards
    they have the time left that they had before. Of nested sections the innermost counts.
    ``timeout`` is ``None`` for no limit, ``"auto"`` for the one that was learned of its name.
    """

    __slots__ = ("_after_ns", "_began", "_limit", "_paused")
    _given = ("_name", "_after_ns", "_limit")

    def __init__(
        self, name: str, timeout: float | timedelta | Literal["auto"] | None = None
    ) -> None:
        self._thread: Thread | None = None
        self._slot = -1
        self._name = checked_name("name", name)
        self._after_ns = 0
        if timeout is None:
            self._limit = 0
        elif isinstance(timeout, str) and timeout == "auto":
            self._limit = AUTO
        else:
            self._limit = self._after_ns = duration_ns("timeout", timeout, '"auto" or None')

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError(f"the section {self._name!r} is open already; make one for each")
        board = self._board = STATE.board or start()
        mine = board.threads.mine
        around = tuple(mine.held)
        self._paused: list[tuple[int, int]] = []
        try:
            guard = ref(self, board.on_lost)
            self._began = monotonic_ns()
            self._thread = mine
            mine.sections += 1
            after_ns, limit, kind = self._after_ns, self._limit, KIND_SECTION
            self._slot = board.open_slot(self._name, after_ns, limit, SIGNAL_DEFAULT, kind)
            board.leak_guards[self._slot] = guard
            for slot in around:
                at = SLOTS_FROM + slot * SLOT_WORDS
                self._paused.append((slot, board.words[at]))
                board.words[at] = 0
            if board.beater is None or board.beater is mine:
                board.has_section_between = True
                board.words[PROGRESS_SINCE] = 0
        except BaseException:
            self._end(is_complete=False)
            raise
        return self

    def __exit__(self, kind: object, /, *_: object) -> None:
        slot = self._slot
        if slot >= 0:
            self._board.words[SLOTS_FROM + slot * SLOT_WORDS] = 0
        self._end(is_complete=kind is None)

    def _end(self, *, is_complete: bool) -> None:
        """Close the section, and resume what it suspended. Its time counts if it was whole."""
        mine, board, slot = self._thread, self._board, self._slot
        if mine is None:
            return
        self._thread = None
        self._slot = -1
        mine.sections -= 1
        now = monotonic_ns()
        if slot != REFUSED:
            board.leak_guards[slot] = None
            # Pauses are left out.
            began = board.words[SLOTS_FROM + slot * SLOT_WORDS + SLOT_SINCE]
            board.close_slot(slot)
        else:
            began = self._began
        for held, deadline in self._paused:
            if deadline:
                board.resume(held, deadline, now - self._began, mine.held)
        if not mine.sections and board.beater is mine:
            board.paused_ns += now - max(self._began, board.beat_before)
            board.words[PROGRESS_SINCE] = now
        if is_complete:
            board.note_section(self._name, now - began)


def acquire(
    scope: str, after: float | timedelta, signal: int | None = None, *, confirm: bool = False
) -> bool:
    """Start the timer ``scope``, or start it again; ``release`` ends it.

    There is one timer of each scope per process; the other arguments are those of ``expires``.
    Returns whether it is watched. With ``confirm`` the agent has said so: it is waited for, at
    most ``CONFIRM_TIMEOUT_S``.
    """
    name = checked_name("scope", scope)
    after_ns = duration_ns("after", after)
    word = SIGNAL_DEFAULT if signal is None else signal_word(signal)
    board = STATE.board or start()
    if not board.free:
        release(name)  # else there would be no slot for the renewal of an open one
    slot = board.open_slot(name, after_ns, after_ns, word, KIND_TIMER)
    try:
        # From the look to the store there is no call, so no other thread comes in between.
        acquired = board.acquired
        earlier = acquired[name] if name in acquired else REFUSED  # noqa: SIM401
        acquired[name] = slot
        if earlier != REFUSED:
            board.close_slot(earlier)
        is_watched = slot != REFUSED and board.is_watched
        return _confirmed() if confirm and is_watched else is_watched
    except BaseException:
        release(name)
        raise


def release(scope: str) -> None:
    """End the timer ``scope``; harmless if there is none."""
    if not isinstance(scope, str):
        raise TypeError(f"scope is {scope!r}; it must be a str")
    board = STATE.board or start()
    if scope in board.acquired:
        # Disarmed at once, and forgotten afterwards: see `_Block.__exit__`.
        slot = board.acquired[scope]
        if slot >= 0:
            board.words[SLOTS_FROM + slot * SLOT_WORDS] = 0
        slot = board.acquired.pop(scope, REFUSED)
        if slot != REFUSED:
            board.close_slot(slot)


def heartbeat(
    step: int | None = None,
    *,
    total_steps: int | None = None,
    busy: float | timedelta | None = None,
    loss: float | None = None,
) -> None:
    """Say that this worker makes progress. Costs about a microsecond.

    From the first one on the agent may expect more of them. ``step``, 0 or more, is shown in
    reports, and tells how long a step takes. ``total_steps`` is how many there will be, for the
    time that is left. ``busy`` is how long this worker worked since its latest heartbeat, waits for
    other ranks left out: it tells a rank that is slow from those that wait for it. ``loss`` is that
    of the step, for rehearsals; a tensor on a GPU would be waited for, so give it a number.
    """
    # Called at every step: the usual one is checked without a call.
    if type(step) is int and 0 <= step <= STEP_MAX:
        mark = step
    else:
        mark = NO_STEP if step is None else checked_step(step)
    total = 0 if total_steps is None else checked_step(total_steps, field="total_steps")
    busy_ns = -1
    if busy is not None:
        is_idle = isinstance(busy, int | float) and busy == 0
        busy_ns = 0 if is_idle else duration_ns("busy", busy, "0 or None")
    loss_bits = 0 if loss is None else _bits_of(loss)
    board = STATE.board or start()
    words = board.words
    mine = board.threads.mine
    before = board.beat_before
    is_outside = not mine.sections
    now = monotonic_ns()
    if before and is_outside:
        gap = now - before
        if not board.has_section_between:
            if words[GAP_MAX] < gap:  # noqa: PLR1730 - a call would let others in
                words[GAP_MAX] = gap
            words[GAPS] += 1
        steps = mark - board.step_before if mark >= 0 and board.step_before >= 0 else 1
        if steps > 0:
            took = gap - board.paused_ns
            words[STEP_TIME] = took // steps
            words[STEPS_TIMED] += steps
            words[STEPS_TIME] += took
            if busy_ns >= 0:
                words[STEPS_BUSY] += steps
                words[BUSY_TIME] += busy_ns
    board.beat_before = now
    board.step_before = mark
    board.beater = mine
    board.paused_ns = 0
    board.has_section_between = not is_outside
    if total:
        words[STEPS_TOTAL] = total
    if loss_bits:
        words[LOSS] = loss_bits
    words[STEP] = mark
    words[HEARTBEAT_AT] = now
    words[HEARTBEATS] += 1
    words[PROGRESS_SINCE] = now if is_outside else 0


def _bits_of(loss: object) -> int:
    """Return a loss as its word on the board. Raises ``TypeError``."""
    if isinstance(loss, bool | str | bytes) or not isinstance(loss, SupportsFloat):
        raise TypeError(f"loss is {loss!r}; it must be a number or None")
    (bits,) = _WORD.unpack(_DOUBLE.pack(float(loss)))
    return int(bits) or 1  # next to nothing; 0 is that none was told


def checked_step(step: object, allowed: str = "an int or None", field: str = "step") -> int:
    """Return ``step`` as a plain int. Raises ``TypeError``, ``ValueError``."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"{field} is {step!r}; it must be {allowed}")
    if not 0 <= (plain := index(step)) <= STEP_MAX:
        raise ValueError(f"{field} is {step!r}; it must be from 0 to {STEP_MAX}")
    return plain


def duration_ns(field: str, value: object, alternatives: str = "") -> int:
    """Return a duration in nanoseconds; ``AFTER_MAX_S`` for what is longer.

    Raises ``TypeError``, and ``ValueError`` if it is not finite or not above 0.
    """
    if (type(value) is float or type(value) is int) and 0 < value < AFTER_MAX_S:
        return int(value * 1e9) or 1
    allowed = f", {alternatives}" if alternatives else ""
    # numpy's texts can be converted as well.
    if isinstance(value, bool | str | bytes) or not isinstance(value, _DURATIONS):
        kinds = "a number of seconds or a timedelta"
        raise TypeError(f"{field} is {value!r}; it must be {kinds}{allowed}")
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except OverflowError:
        seconds = AFTER_MAX_S if value > 0 else -1.0  # type: ignore[operator]
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{field} is {value!r}; it must be finite and above 0{allowed}")
    return max(int(min(seconds, AFTER_MAX_S) * 1e9), 1)


def signal_word(signal: object) -> int:
    """Return a signal as a slot holds it. Raises ``TypeError``, ``ValueError``."""
    if isinstance(signal, bool) or not isinstance(signal, int):
        raise TypeError(f"signal is {signal!r}; it must be an int or None")
    if signal > 0 and not is_signal(signal):
        raise ValueError(f"signal is {signal!r}; it must be {ALLOWED}, or at most 0 to only report")
    return max(int(signal), 0)


def checked_name(field: str, name: object) -> str:
    """Return a name as a plain ``str``. Raises ``TypeError``, ``ValueError``."""
    if not isinstance(name, str):
        raise TypeError(f"{field} is {name!r}; it must be a str")
    if not name:
        raise ValueError(f"{field} is empty; it must have at least one character")
    return str(name)


def _confirmed() -> bool:
    """Ask the agent whether it has seen the board as it is now. Never raises on its own."""
    try:
        attached = attachment()
    except Exception:
        # gRPC is missing, or of a version that the protocol's code refuses.
        log.exception("the agent cannot be asked to confirm a timer")
        return False
    return attached.confirm(CONFIRM_TIMEOUT_S)
