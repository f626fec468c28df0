"""Where the main thread stands, told by another thread."""

import threading
import time
from traceback import FrameSummary

import pytest

from tests.support.waiting import MS
from worker_sdk.interpreter.main_thread import is_main_idle, main_stack

WAIT_S = 20_000 * MS


def stack_seen_elsewhere() -> list[FrameSummary]:
    seen: list[FrameSummary] = []

    def look() -> None:
        while "join" not in [entry.name for entry in seen]:
            seen[:] = main_stack()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen


def test_the_innermost_call_of_the_main_thread_comes_first() -> None:
    seen = stack_seen_elsewhere()
    names = [entry.name for entry in seen]
    assert names.index("stack_seen_elsewhere") < names.index(
        "test_the_innermost_call_of_the_main_thread_comes_first"
    )
    (ours,) = [entry for entry in seen if entry.name == "stack_seen_elsewhere"]
    assert ours.filename == __file__
    assert ours.line == "thread.join()"


def test_without_a_file_in_memory_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> int:
        raise OSError

    monkeypatch.setattr("os.memfd_create", refuse)
    assert main_stack() == []


def test_a_main_thread_that_runs_all_the_while_can_be_asked() -> None:
    """Walking its frames from here has crashed CPython 3.11."""
    is_over, seen = threading.Event(), 0

    def ask() -> None:
        nonlocal seen
        while not is_over.is_set():
            seen += bool(main_stack())

    def nest(depth: int) -> int:
        return depth and nest(depth - 1)

    thread = threading.Thread(target=ask)
    thread.start()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        nest(50)
    is_over.set()
    thread.join()
    assert seen


def test_a_main_thread_that_waits_is_idle_and_one_that_computes_is_not() -> None:
    """One that others keep from the processor computes nothing either: it is asked again."""

    def look_until(is_idle: bool) -> None:
        while is_main_idle() is not is_idle:
            pass

    waiting, computing = (
        threading.Thread(target=look_until, args=(is_idle,), daemon=True)
        for is_idle in (True, False)
    )
    waiting.start()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    computing.start()
    until = time.monotonic() + WAIT_S
    while computing.is_alive():
        assert time.monotonic() < until
