"""Waits of the main thread: any signal ends them, and no other wakeup is lost."""

import asyncio
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.waiting import MS
from worker_sdk.interpreter import signal_wakeup
from worker_sdk.interpreter.signal_wakeup import WAIT_MAX_S, Mailbox, wait_readable

LONG_S = 20_000 * MS
"""A wait that only a failing test waits for."""

Handle = Callable[[Callable[[], object]], None]


class Heard(Exception):
    """Raised by a handler."""


@pytest.fixture
def handle() -> Iterator[Handle]:
    """Return what sets a handler of SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)

    def set_handler(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    yield set_handler
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


@contextmanager
def signals_to_another_thread() -> Iterator[None]:
    """Send SIGUSR1 again and again, always to a thread that is not the main one.

    What a handler raises may come out of this as well as of the block. In any case none is sent
    afterwards: it would end the test process, which handles it no more.
    """
    is_begun, is_over = threading.Event(), threading.Event()

    def send() -> None:
        is_begun.wait()
        while not is_over.wait(5 * MS):
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    # Silent until nothing can come between its start and the `try` that ends it.
    thread = threading.Thread(target=send)
    thread.start()
    try:
        is_begun.set()
        yield
    finally:
        is_over.set()
        thread.join()


def wakeup_fd() -> int:
    """Return the descriptor that is set; it stays set."""
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    return fd


def wait_until_raised(fd: int) -> None:
    while True:
        wait_readable(fd, LONG_S)


def test_a_signal_that_another_thread_takes_ends_the_wait(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard: list[None] = []
    handle(lambda: heard.append(None))
    began = time.monotonic()
    with signals_to_another_thread():
        assert not wait_readable(pair[0].fileno(), LONG_S)
    assert heard
    assert time.monotonic() - began < LONG_S / 2
    pair[1].send(b"!")
    assert wait_readable(pair[0].fileno(), None)


def test_what_a_handler_raises_comes_out_and_leaves_nothing_set(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard: list[None] = []

    def raise_once() -> None:
        heard.append(None)
        if len(heard) == 1:
            raise Heard

    handle(raise_once)
    began = time.monotonic()
    with pytest.raises(Heard), signals_to_another_thread():
        wait_until_raised(pair[0].fileno())
    assert time.monotonic() - began < LONG_S / 2
    assert wakeup_fd() == -1


def test_the_programs_own_wakeup_is_served_and_set_again(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    handle(lambda: None)
    ours, theirs = pair
    silent, _ = quiet = socket.socketpair()
    former = signal.set_wakeup_fd(theirs.fileno())
    try:
        with quiet[0], quiet[1], signals_to_another_thread():
            assert not wait_readable(silent.fileno(), LONG_S)
        assert wakeup_fd() == theirs.fileno()
    finally:
        signal.set_wakeup_fd(former)
    assert set(ours.recv(1000)) == {signal.SIGUSR1}


def test_a_loop_that_waits_here_still_hears_its_signals(handle: Handle) -> None:
    async def main() -> None:
        heard = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        ours, theirs = socket.socketpair()
        with ours, theirs, signals_to_another_thread():
            assert not wait_readable(ours.fileno(), LONG_S)
        async with asyncio.timeout(LONG_S):
            await heard.wait()
        loop.remove_signal_handler(signal.SIGUSR1)

    handle(lambda: None)
    asyncio.run(main())


def test_a_handler_that_waits_and_one_that_sets_a_wakeup_are_respected(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    heard: list[bool] = []

    def wait_too() -> None:
        if not heard:
            heard.append(False)
            heard.append(wait_readable(pair[1].fileno(), 0))
            signal.set_wakeup_fd(pair[1].fileno())

    handle(wait_too)
    try:
        with signals_to_another_thread():
            wait_readable(pair[0].fileno(), LONG_S)
        assert heard == [False, False]
        assert wakeup_fd() == pair[1].fileno()
    finally:
        signal.set_wakeup_fd(-1)


def test_a_wakeup_that_was_closed_meanwhile_is_not_set_again(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    handle(theirs.close)
    with ours:
        signal.set_wakeup_fd(theirs.fileno())
        with signals_to_another_thread():
            assert not wait_readable(pair[0].fileno(), LONG_S)
    assert wakeup_fd() == -1


def test_other_threads_wait_as_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    found: list[bool] = []

    def wait() -> None:
        found.append(wait_readable(pair[0].fileno(), 0))
        found.append(wait_readable(pair[0].fileno(), None))

    thread = threading.Thread(target=wait)
    thread.start()
    pair[1].send(b"!")
    thread.join()
    assert found[-1] is True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_meanwhile_keeps_its_signals_to_itself(
    handle: Handle, pair: tuple[socket.socket, socket.socket]
) -> None:
    codes: list[int] = []
    begun: list[bool] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if wakeup_fd() == -1 else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def fork_elsewhere() -> None:
        if not begun:
            begun.append(True)  # the next signal may come amid this handler
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()

    handle(fork_elsewhere)
    with signals_to_another_thread():
        assert not wait_readable(pair[0].fileno(), LONG_S)
    assert codes == [0]


def test_without_a_descriptor_for_signals_the_wait_is_short(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_wakeup, "LOOK_AGAIN_S", 50 * MS)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with os.scandir("/proc/self/fd") as found:
        highest = max(int(entry.name) for entry in found)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(pair[0].fileno()))
        began = time.monotonic()
        assert not wait_readable(pair[0].fileno(), None)
        assert not wait_readable(pair[0].fileno(), 0)
        assert time.monotonic() - began < LONG_S
        pair[1].send(b"!")
        assert wait_readable(pair[0].fileno(), None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in held:
            os.close(fd)


def test_a_mailbox_loses_nothing_to_a_signal(handle: Handle) -> None:
    heard: list[None] = []

    def raise_once() -> None:
        heard.append(None)
        if len(heard) == 1:
            raise Heard

    handle(raise_once)
    mailbox: Mailbox[int] = Mailbox()
    with pytest.raises(Heard), signals_to_another_thread():
        mailbox.get()
    for value in range(3):
        mailbox.put(value)
    assert [mailbox.get() for _ in range(3)] == [0, 1, 2]
    thread = threading.Thread(target=lambda: mailbox.put(3))
    thread.start()
    assert mailbox.get() == 3
    thread.join()
    mailbox.close()


@pytest.mark.parametrize("timeout_s", [1e12, float("inf"), WAIT_MAX_S])
def test_the_longest_timeout_is_no_error(
    pair: tuple[socket.socket, socket.socket], timeout_s: float
) -> None:
    pair[1].send(b"!")
    assert wait_readable(pair[0].fileno(), timeout_s)


def test_a_timeout_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not wait_readable(pair[0].fileno(), -1.0)
    assert not wait_readable(pair[0].fileno(), 1 * MS)
