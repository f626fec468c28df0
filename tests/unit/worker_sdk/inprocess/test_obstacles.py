"""A main thread that can't be interrupted says what keeps it."""

import logging
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.support.calls import WAIT_S, later
from tests.unit.worker_sdk.inprocess.conftest import World
from worker_sdk.inprocess import CallWrapper, Wrapper
from worker_sdk.interpreter.signal_numbers import INTERRUPTING


class LogText(logging.Handler):
    """Waits for the word of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.is_there = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "can't be interrupted" in record.getMessage():
            self.text = record.getMessage()
            self.is_there.set()


@pytest.fixture
def log_text() -> Iterator[LogText]:
    handler = LogText()
    logging.getLogger("worker_sdk").addHandler(handler)
    yield handler
    logging.getLogger("worker_sdk").removeHandler(handler)


class Slow:
    def __del__(self) -> None:
        time.sleep(0.05)


class Ballast:
    pass


def loop_in_finalizers(log_text: LogText) -> None:
    while not log_text.is_there.is_set():
        Slow()


def loop_in_callbacks(log_text: LogText) -> None:
    while not log_text.is_there.is_set():
        ballast = Ballast()
        ref = weakref.ref(ballast, lambda _: time.sleep(0.05))
        del ballast
        del ref


def block_all_signals(log_text: LogText) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    log_text.is_there.wait(WAIT_S)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (loop_in_finalizers, "it is in __del__ or in a weak reference's callback"),
        (loop_in_callbacks, "it is in __del__ or in a weak reference's callback"),
        (block_all_signals, f"it blocks signal {INTERRUPTING[0]}"),
    ],
)
def test_what_keeps_the_main_thread_is_told(
    make_world: Callable[..., World], log_text: LogText, keep: Callable[[LogText], None], why: str
) -> None:
    world = make_world(2)

    @Wrapper()
    def train(call: CallWrapper) -> int:
        if call.iteration == 0:
            later(lambda: world.model.interrupt("from afar"))
            keep(log_text)
            time.sleep(WAIT_S)
        return call.iteration

    assert train() == 1
    assert why in log_text.text
    assert "go on without this worker" in log_text.text
