"""Progress of the main thread, and what its absence leads to."""

import sys
import time
from collections.abc import Callable

import pytest

from tests.support.calls import kind_of
from tests.support.waiting import MS, wait_until_sync
from tests.unit.worker_sdk.inprocess.conftest import World
from worker_sdk.inprocess import CallWrapper, Wrapper


def test_silence_is_interrupted_and_reported(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper(soft_timeout=0.5, progress_watchdog_interval=0.05, monitor_thread_interval=0.1)
    def train(call: CallWrapper) -> int:
        if call.iteration == 0:
            _no_python_for(600)
        return call.iteration

    assert train() == 1
    said = [step for _, step in world.model.said if step.WhichOneof("kind") == "interrupted"]
    assert said[0].interrupted.interruption.kind == kind_of("SOFT_TIMEOUT")
    stack = said[0].interrupted.interruption.traceback
    assert stack.startswith(f'  File "{__file__}"'), "where it hung, without frames of ours"


@pytest.mark.slow
def test_python_that_runs_is_progress(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper(soft_timeout=0.5, progress_watchdog_interval=0.05, monitor_thread_interval=0.1)
    def train(call: CallWrapper) -> int:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        return call.iteration

    assert train() == 0
    assert len(world.model.begins) == 1


def test_once_pinged_pings_are_expected(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper(soft_timeout=0.5, progress_watchdog_interval=0.05, monitor_thread_interval=0.1)
    def train(call: CallWrapper) -> int:
        if call.iteration == 0:
            call.ping()
            while True:
                pass
        return call.iteration

    assert train() == 1
    assert len(world.model.begins) == 2


@pytest.mark.slow
def test_pings_are_progress(make_world: Callable[..., World]) -> None:
    make_world()

    @Wrapper(soft_timeout=0.5, progress_watchdog_interval=0.05, monitor_thread_interval=0.1)
    def train(call: CallWrapper) -> int:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            call.ping()
            time.sleep(0.01)
        return call.iteration

    assert train() == 0


def test_a_ping_is_cheap(make_world: Callable[..., World]) -> None:
    make_world()

    @Wrapper()
    def train(call: CallWrapper) -> int:
        return _calls_of(call.ping)

    assert train() in range(1, 10)


def test_a_section_is_no_silence(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.limits.is_in_section = True

    @Wrapper(soft_timeout=0.3, progress_watchdog_interval=0.05, monitor_thread_interval=0.1)
    def train(call: CallWrapper) -> int:
        _no_python_for(0.7)
        return call.iteration

    assert train() == 0


def test_limits_of_the_agent_hold_while_the_function_runs(
    make_world: Callable[..., World],
) -> None:
    world = make_world()

    @Wrapper(hard_timeout=100, termination_grace_time=3, heartbeat_timeout=20)
    def train(call: CallWrapper) -> dict[str, tuple[float, float]]:
        if call.iteration == 0:
            raise ValueError
        # A thread keeps it, and does so anew after the iteration that was forgotten.
        wait_until_sync(lambda: "inprocess heartbeat" in world.limits.armed, 10_000 * MS)
        return dict(world.limits.armed)

    armed = train()
    assert armed is not None
    assert armed["inprocess heartbeat"] == (20, 0)
    hard_s, grace_s = armed["inprocess hard timeout"]
    assert 90 < hard_s <= 100
    assert grace_s == 3
    # What the interrupted iteration left open was forgotten, and so is all at the end.
    assert world.limits.clears == 1
    assert world.limits.armed == {}


def _calls_of(function: Callable[[], object]) -> int:
    """Return how many functions a call of this one enters, itself included."""
    function()  # what is done once
    entered = []
    sys.setprofile(lambda _frame, event, _arg: entered.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered.count("call") + entered.count("c_call") - 1  # the last one ends this


def _no_python_for(seconds: float) -> None:
    """Wait in C, with other threads running: no instruction of Python is executed here."""
    time.sleep(seconds)
