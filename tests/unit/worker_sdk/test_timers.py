"""What timers and sections leave on the board."""

import ctypes
import gc
import queue
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic_ns
from typing import Any

import pytest

from tests.support.boards import BoardDirectory
from worker_sdk import acquire, expires, heartbeat, release, section, timers
from worker_sdk.board import layout
from worker_sdk.runtime import STATE

SECOND = 1_000_000_000
LONG_S = 3600.0
LONG_NS = 3600 * SECOND


def test_a_block_is_armed_while_it_lasts(board: BoardDirectory) -> None:
    before = monotonic_ns()
    with expires(after=60, scope="all-reduce"):
        after = monotonic_ns()
        (seen,) = board.slots()
    assert before <= seen.since <= after
    assert seen.deadline == seen.since + 60 * SECOND
    assert seen.limit == 60 * SECOND
    assert seen.signal == layout.SIGNAL_DEFAULT
    assert (seen.name, seen.kind) == ("all-reduce", layout.KIND_TIMER)
    assert board.is_idle()


@pytest.mark.parametrize(
    ("after", "limit"),
    [
        (0.5, SECOND // 2),
        (timedelta(minutes=2), 120 * SECOND),
        (1e-12, 1),
        (1e300, int(timers.AFTER_MAX_S * 1e9)),
        (10**400, int(timers.AFTER_MAX_S * 1e9)),
    ],
)
def test_durations_are_seconds_or_timedeltas(
    board: BoardDirectory, after: float, limit: int
) -> None:
    assert acquire("a", after) is True
    assert board[layout.slot_word(0, layout.SLOT_LIMIT)] == limit
    release("a")


@pytest.mark.parametrize(
    ("after", "error", "text"),
    [
        (0, ValueError, "after is 0; it must be finite and above 0"),
        (-1.5, ValueError, "after is -1.5; it must be finite and above 0"),
        (-(10**400), ValueError, "it must be finite and above 0"),
        (float("nan"), ValueError, "after is nan"),
        (float("inf"), ValueError, "after is inf"),
        (timedelta(0), ValueError, "after is datetime.timedelta(0)"),
        (True, TypeError, "after is True; it must be a number of seconds or a timedelta"),
        ("60", TypeError, "after is '60'"),
        (None, TypeError, "after is None"),
    ],
)
def test_a_wrong_duration_is_named(after: Any, error: type[Exception], text: str) -> None:
    for call in (lambda: expires(after), lambda: acquire("a", after)):
        with pytest.raises(error) as raised:
            call()
        assert text in str(raised.value)


def test_the_other_wrong_arguments_are_named() -> None:
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: expires(1, "a", True), TypeError, "signal is True; it must be an int or None"),
        (lambda: expires(1, "a", "SIGUSR1"), TypeError, "signal is 'SIGUSR1'"),  # type: ignore[arg-type]
        (lambda: expires(1, "a", 99), ValueError, "signal is 99; it must be 1 to 31 or 34 to 64"),
        (lambda: acquire("a", 1, 32), ValueError, "signal is 32; it must be"),
        (lambda: expires(1, 5), TypeError, "scope is 5; it must be a str"),  # type: ignore[arg-type]
        (lambda: expires(1, ""), ValueError, "scope is empty"),
        (lambda: acquire("", 1), ValueError, "scope is empty"),
        (lambda: release(5), TypeError, "scope is 5"),  # type: ignore[arg-type]
        (lambda: section(""), ValueError, "name is empty"),
        (lambda: section("s", "often"), TypeError, '"auto" or None'),  # type: ignore[arg-type]
        (lambda: section("s", timeout=-1), ValueError, "timeout is -1"),
    ]
    for call, error, text in calls:
        with pytest.raises(error) as raised:
            call()
        assert text in str(raised.value)


@pytest.mark.parametrize(
    ("signal", "word"), [(None, layout.SIGNAL_DEFAULT), (10, 10), (0, 0), (-7, 0), (-1000, 0)]
)
def test_a_signal_of_one_s_own(board: BoardDirectory, signal: int | None, word: int) -> None:
    with expires(1, "a", signal):
        assert board.slots()[0].signal == word


def test_a_block_without_a_name_is_named_for_its_place(board: BoardDirectory) -> None:
    with expires(60):
        line = sys._getframe().f_lineno - 1
        assert board.names() == [f"test_timers.py:{line}"]


def test_names_of_any_length_are_cut_at_a_whole_character(board: BoardDirectory) -> None:
    with expires(60, "ä" * 1000), expires(60, "x" + "ä" * 1000), expires(60, "\ud800"):
        assert board.names() == ["ä" * 64, "x" + "ä" * 63, "?"]


def test_a_slot_used_again_has_the_new_name(board: BoardDirectory) -> None:
    for name in ("a much longer name", "short", "a much longer name"):
        with expires(60, name):
            assert board.names() == [name]
            assert board.slots()[0].slot == 0


def test_each_call_of_a_decorated_function_has_its_own_slot(board: BoardDirectory) -> None:
    seen = []

    @expires(after=60, scope="step", signal=10)
    def step(depth: int) -> int:
        """Step."""
        seen.append([(slot.name, slot.signal) for slot in board.slots()])
        return step(depth - 1) + 1 if depth else 0

    assert (step(1), step.__doc__) == (1, "Step.")
    assert seen == [[("step", 10)], [("step", 10)] * 2]
    assert board.is_idle()


def test_a_function_that_runs_after_its_call_is_refused() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="use `with` inside of it"):
        expires(60)(later)
    with pytest.raises(TypeError, match="use `with` inside of it"):
        section("s")(later)


def test_the_same_scope_within_and_beside_cancels_no_other(board: BoardDirectory) -> None:
    opened, done = threading.Event(), threading.Event()

    def other() -> None:
        with expires(60, "a"):
            opened.set()
            done.wait(5)

    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(5)
    with expires(60, "a"):
        with expires(30, "a"):
            assert board.names() == ["a"] * 3
        assert board.names() == ["a"] * 2
    (left,) = board.slots()
    done.set()
    thread.join()
    assert left.slot == 0, "that of the other thread"
    assert board.is_idle()


def test_one_instance_is_for_one_block_at_a_time(board: BoardDirectory) -> None:
    for block in (expires(60, "a"), section("a")):
        with block:
            with pytest.raises(RuntimeError, match="is open already"), block:
                pass
            assert board.names() == ["a"]
        with block:
            assert board.names() == ["a"]
    assert board.is_idle()


def test_acquiring_again_replaces_and_releasing_forgets(board: BoardDirectory) -> None:
    assert acquire("a", 60)
    assert acquire("b", 60)
    assert acquire("a", 30, signal=0)
    assert sorted((seen.name, seen.limit, seen.signal) for seen in board.slots()) == [
        ("a", 30 * SECOND, 0),
        ("b", 60 * SECOND, layout.SIGNAL_DEFAULT),
    ]
    release("a")
    release("a")
    assert board.names() == ["b"]
    release("b")
    assert board.is_idle()


def test_a_timer_may_be_released_by_another_thread(board: BoardDirectory) -> None:
    acquire("a", 60)
    thread = threading.Thread(target=release, args=("a",))
    thread.start()
    thread.join()
    assert board.is_idle()


def test_the_agent_is_asked_to_look_only_if_it_would_come_too_late(board: BoardDirectory) -> None:
    acquire("before the agent looks", 60)
    board.kicks()
    board[layout.LOOK_AT] = monotonic_ns() + LONG_NS
    acquire("sooner", LONG_S / 2)
    assert board.kicks() == 1
    acquire("later", LONG_S * 2)
    release("sooner")
    release("before the agent looks")
    with expires(LONG_S * 2):
        heartbeat()
    assert board.kicks() == 0
    with section("no limit"):
        assert board.kicks() == 1
    with section("learned", timeout="auto"):
        assert board.kicks() == 1
    with section("later", timeout=LONG_S * 2):
        assert board.kicks() == 0
    release("later")


def test_a_full_pipe_of_kicks_is_no_error(board: BoardDirectory) -> None:
    board[layout.LOOK_AT] = monotonic_ns() + LONG_NS
    for _ in range(70_000):
        STATE.board.kick() if STATE.board else acquire("a", 60)
    assert acquire("a", 60) is True
    release("a")


def test_what_finds_no_slot_is_not_watched_and_told_once(
    board: BoardDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(layout.SLOTS_MAX):
        assert acquire(str(number), 60) is True
    assert acquire("0", 30) is True  # an open one may be renewed nevertheless
    assert acquire("more", 60) is False
    with expires(60, "more"), section("more", 5):
        assert board.is_idle()  # a section without a slot suspends the others nevertheless
    assert len(board.slots()) == layout.SLOTS_MAX
    assert [record.message for record in caplog.records] == [
        "1024 timers and sections are open: more are not watched"
    ]
    for number in range(layout.SLOTS_MAX):
        release(str(number))
    release("more")
    assert board.is_idle()
    assert acquire("more", 60) is True
    release("more")


class Struck(Exception):
    """Raised from outside, anywhere."""


STRIKES = 1000


def strike(thread: threading.Thread) -> None:
    """Have ``Struck`` raised wherever ``thread`` is."""
    ident = ctypes.c_ulong(thread.ident or 0)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Struck)) == 1


def test_exceptions_from_outside_leave_nothing_armed_and_lose_no_slot(
    board: BoardDirectory,
) -> None:
    """One after the other, each as soon as the one before was dealt with."""
    acquire("of another thread", 60)
    # In C: a strike in the middle of a Python one would leave its lock locked.
    ready: queue.SimpleQueue[None] = queue.SimpleQueue()
    is_over = threading.Event()
    armed_after: list[list[str]] = []

    def work() -> None:
        while len(armed_after) < STRIKES:
            try:
                ready.put(None)
                while not is_over.is_set():
                    with expires(60, "outer"), expires(30, "inner"):
                        pass
            except Struck:
                pass
            armed_after.append(board.names())
            if is_over.is_set():
                return

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    sys.setswitchinterval(1e-6)
    # A strike in a callback of the collector, as a test library has one, comes out nowhere.
    gc.disable()
    try:
        thread.start()
        for _ in range(STRIKES):
            ready.get(timeout=10)
            strike(thread)
        thread.join(10)
    finally:
        is_over.set()
        thread.join()
        gc.enable()
        sys.setswitchinterval(interval_s)
    assert len(armed_after) == STRIKES
    assert [names for names in armed_after if names != ["of another thread"]] == []
    release("of another thread")
    assert board.is_idle()
    assert STATE.board is not None
    assert len(STATE.board.free) == layout.SLOTS_MAX


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_python_without_its_lock_has_no_page_and_says_so_once(
    board: BoardDirectory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_enabled: bool,
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_enabled, raising=False)
    assert acquire("a", 60) is is_enabled
    with expires(after=60), section("b"):
        heartbeat(1)
    acquire("a", 60)
    release("a")
    assert board.is_idle()
    assert (board[layout.OWNER_PID] != 0) is is_enabled
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    expected = (
        "timers, sections and heartbeats are not watched: "
        "this Python runs threads without its global lock (PYTHON_GIL=0)"
    )
    assert told == ([] if is_enabled else [expected])
