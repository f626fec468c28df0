"""How the main thread is brought out of the function, and where it is left alone."""

import _imp
import importlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import WAIT_S, Noted, later
from tests.unit.worker_sdk.inprocess.conftest import World
from worker_sdk import inprocess
from worker_sdk.inprocess import CallWrapper, State, Wrapper
from worker_sdk.inprocess.restart import interrupt
from worker_sdk.inprocess.restart.interrupt import Interrupter


def test_an_interruption_from_afar_breaks_a_system_call(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    blockers: list[Callable[[], object]] = [
        lambda: time.sleep(600),
        lambda: threading.Event().wait(),
        lambda: threading.Lock().acquire() and _locked().acquire(),
        lambda: os.read(os.pipe_pair[0], 1),  # type: ignore[attr-defined]
    ]
    reader, writer = os.pipe()
    os.pipe_pair = (reader, writer)  # type: ignore[attr-defined]
    try:

        @Wrapper()
        def train(call: CallWrapper) -> int:
            if call.iteration < len(blockers):
                later(lambda: world.model.interrupt("from afar"))
                blockers[call.iteration]()
            return call.iteration

        began = time.monotonic()
        assert train() == len(blockers)
        assert time.monotonic() - began < WAIT_S
    finally:
        del os.pipe_pair  # type: ignore[attr-defined]
        os.close(reader)
        os.close(writer)
    assert world.model.kinds(0)[:3] == [(0, "entered"), (0, "interrupted"), (1, "entered")]
    assert not world.model.said[1][1].interrupted.HasField("interruption")


def test_an_interruption_reaches_a_loop_that_swallows_everything(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    swallowed = 0

    @Wrapper()
    def train(call: CallWrapper) -> int:
        nonlocal swallowed
        if call.iteration:
            return swallowed
        later(lambda: world.model.interrupt("stop"))
        while True:
            try:
                while True:
                    pass
            except BaseException:
                swallowed += 1
                if swallowed == 5:
                    raise

    assert train() == 5


def test_an_interruption_swallowed_by_a_finalizer_comes_again(
    make_world: Callable[..., World], capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world()
    state = {"dropped": 0}

    class Slow:
        def __del__(self) -> None:
            state["dropped"] += 1
            world.model.interrupt("in a finalizer")
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                pass

    @Wrapper()
    def train(call: CallWrapper) -> str:
        if call.iteration:
            return "again"
        Slow()
        time.sleep(WAIT_S)
        return "not interrupted"

    assert train() == "again"
    assert state["dropped"] == 1
    assert "RankShouldRestart" not in capsys.readouterr().err


def test_clean_up_code_has_time(make_world: Callable[..., World]) -> None:
    world = make_world()
    steps: list[str] = []

    @Wrapper()
    def train(call: CallWrapper) -> list[str]:
        if call.iteration:
            return steps
        later(lambda: world.model.interrupt("stop"))
        try:
            time.sleep(600)
        finally:
            # Longer than the waits between the first attempts to break a system call.
            time.sleep(0.3)
            steps.append("cleaned")
        return []

    assert train() == ["cleaned"]


def test_nothing_is_raised_in_atomic_code(make_world: Callable[..., World]) -> None:
    world = make_world()
    seen: list[str] = []

    @Wrapper()
    def train(call: CallWrapper) -> list[str]:
        if call.iteration:
            return seen
        with call.atomic(), call.atomic():
            world.model.interrupt("now")
            time.sleep(0.2)
            seen.append("whole")
        time.sleep(600)
        return []

    assert train() == ["whole"]


def test_atomic_code_does_not_begin_during_the_termination_procedure(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    aborting = threading.Event()
    finish = threading.Event()

    class Abort(inprocess.Abort):
        def __call__(self, _: State) -> None:
            aborting.set()
            assert finish.wait(WAIT_S)

    entered: list[int] = []

    @Wrapper(abort=Abort())
    def train(call: CallWrapper) -> list[int]:
        if call.iteration:
            return entered
        world.model.interrupt("now")
        assert aborting.wait(WAIT_S)
        later(finish.set)
        with call.atomic():
            entered.append(call.iteration)
        return []

    assert train() == []


def test_clean_up_code_that_is_atomic_does_not_hang(make_world: Callable[..., World]) -> None:
    world = make_world()

    @Wrapper()
    def train(call: CallWrapper) -> int:
        if call.iteration:
            return call.iteration
        later(lambda: world.model.interrupt("now"))
        try:
            time.sleep(600)
        finally:
            with call.atomic():
                pass
        return -1

    began = time.monotonic()
    assert train() == 1
    assert time.monotonic() - began < WAIT_S


def test_one_that_completed_is_interrupted_without_an_exception(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    # A second real worker that never completes the first iteration.
    held: list[Any] = []
    world.model.workers[1].send = held.append
    world.model.workers[1].step, world.model.workers[1].iteration = "entered", 0
    noted = Noted()

    def second() -> None:
        world.model.wait_for(lambda: world.model.kinds(0)[-1:] == [(0, "completed")])
        world.model.lose(1)

    threading.Thread(target=second).start()

    @Wrapper(**noted.hooks)
    def train(call: CallWrapper) -> int:
        return call.iteration

    assert train() == 1
    assert ("abort", 0, None) in noted.log
    assert ("finalize", 0, None) in noted.log
    assert world.model.begins[-1].ranks == {0: 0}


def test_signals_and_hooks_are_restored(make_world: Callable[..., World]) -> None:
    make_world()
    before = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
    hook = sys.unraisablehook

    @Wrapper()
    def train() -> int:
        now = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
        return sum(now[n] != before[n] for n in before)

    assert train() == 1
    after = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
    assert after == before
    assert sys.unraisablehook is hook


class _Ballast:
    pass


def test_an_interrupted_iteration_leaves_nothing_behind(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    kept: list[weakref.ref[_Ballast]] = []
    alive_at_entry: list[int] = []

    @Wrapper()
    def train(call: CallWrapper) -> int:
        alive_at_entry.append(sum(ref() is not None for ref in kept))
        ballast = _Ballast()
        ballast.itself = ballast  # type: ignore[attr-defined]  # only the collector frees it
        kept.append(weakref.ref(ballast))
        if call.iteration < 3:
            if call.iteration % 2:
                later(lambda: world.model.interrupt("stop"))
                time.sleep(600)
            raise ValueError
        return call.iteration

    assert train() == 3
    assert alive_at_entry == [0, 0, 0, 0]


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def test_a_forked_child_is_not_held_up_by_the_procedure(make_world: Callable[..., World]) -> None:
    """The child is made while the monitor holds the lock that it would wait for."""
    world = make_world()
    codes: list[int] = []

    class Abort(inprocess.Abort):
        def __call__(self, _: State) -> None:
            aborting.set()
            assert forked.wait(WAIT_S)

    aborting, forked = threading.Event(), threading.Event()

    @Wrapper(abort=Abort())
    def train(call: CallWrapper) -> int:
        if call.iteration:
            return call.iteration
        world.model.interrupt("now")
        assert aborting.wait(WAIT_S)
        child = os.fork()
        if not child:
            with call.atomic():
                os._exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        forked.set()
        time.sleep(600)
        return -1

    assert train() == 1
    assert codes == [7]


def test_an_import_that_is_interrupted_keeps_no_lock() -> None:
    """Else no other thread could import or fork any more. Method: a signal at its worst instant."""
    interrupter = Interrupter(lambda: None, lambda: None)
    interrupter.reason = "stop"
    struck: list[str] = []

    def strike(frame: Any, event: str, called: object) -> None:
        if event == "c_return" and called is _imp.acquire_lock:
            struck.append(frame.f_code.co_name)
            interrupter.interrupt(frame)

    def import_one() -> None:
        sys.setprofile(strike)
        try:
            sys.modules.pop("colorsys", None)
            importlib.import_module("colorsys")
        finally:
            sys.setprofile(None)

    try:
        assert interrupter.run(import_one) == (None, None)
        assert "_get_module_lock" in struck
        assert not _imp.lock_held()
    finally:
        interrupter.close()


@pytest.mark.slow
def test_an_import_is_let_through_but_not_for_ever(
    make_world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is left amid its import can't be imported any more."""
    package = tmp_path / "halfway"
    package.mkdir()
    (package / "part.py").touch()
    (package / "__init__.py").write_text(
        "from halfway import part\nimport time\ntime.sleep(0.3)\nimport halfway.part\nhalfway.part"
    )
    (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupt, "IMPORT_S", 1.0)
    world = make_world(1)
    seen: list[bool] = []

    @Wrapper()
    def train(call: CallWrapper) -> int:
        if call.iteration < 2:
            later(lambda: world.model.interrupt("now"))
            importlib.import_module(("halfway", "endless")[call.iteration])
            time.sleep(600)
        seen.extend(name in sys.modules for name in ("halfway", "halfway.part", "endless"))
        return call.iteration

    began = time.monotonic()
    assert train() == 2
    assert seen == [True, True, False]
    assert time.monotonic() - began < WAIT_S
