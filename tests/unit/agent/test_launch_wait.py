"""How a launch waits for its agent, in the main thread of a user's program."""

import signal
import subprocess
import threading
import time

import pytest

from drumbeat.agent.launching.launch import _wait
from tests.support.waiting import MS

LONG_S = 20_000 * MS


def test_an_interrupt_that_another_thread_takes_ends_the_wait() -> None:
    is_over = threading.Event()

    def interrupt() -> None:
        if not is_over.wait(50 * MS):
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(["sleep", str(LONG_S)])
    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            _wait(process)
    finally:
        is_over.set()
        signal.signal(signal.SIGINT, before)
        process.kill()
        process.wait()
        thread.join()
    assert time.monotonic() - began < LONG_S / 2
