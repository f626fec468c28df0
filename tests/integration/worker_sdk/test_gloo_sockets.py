"""The connections of gloo are found by its thread and its epoll instance, and shut down gently."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker_sdk.inprocess import process_groups

if TYPE_CHECKING:
    from collections.abc import Iterator


EPOLL_CTL_ADD = 1


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(server.getsockname()))
        yield one, stack.enter_context(server.accept()[0])


class Poll:
    """An epoll instance that has with each descriptor the address of an object.

    What the object begins with, for C++ the address of its code, is in the C library.
    """

    def __init__(self, poll: select.epoll) -> None:
        self.poll = poll
        self.libc = ctypes.CDLL(None, use_errno=True)
        code = ctypes.cast(self.libc.epoll_ctl, ctypes.c_void_p).value
        self.served_by = ctypes.c_uint64(code or 0)

    def register(self, connection: socket.socket, events: int) -> None:
        is_packed = platform.machine() == "x86_64"
        address = ctypes.addressof(self.served_by)
        event = struct.pack("=IQ" if is_packed else "=IxxxxQ", events, address)
        failed = self.libc.epoll_ctl(self.poll.fileno(), EPOLL_CTL_ADD, connection.fileno(), event)
        assert not failed, os.strerror(ctypes.get_errno())

    def unregister(self, connection: socket.socket) -> None:
        self.poll.unregister(connection)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Poll]:
    """An epoll instance as gloo has it, and a thread of gloo's name."""
    monkeypatch.setattr(process_groups, "LIBRARIES", ("libc.", "libc-", "ld-musl"))
    is_over = threading.Event()
    is_named = threading.Event()

    def loop() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("gloo_tcp_loop")
        is_named.set()
        is_over.wait()

    thread = threading.Thread(target=loop)
    thread.start()
    is_named.wait()
    with select.epoll() as poll:
        os.set_inheritable(poll.fileno(), True)
        yield Poll(poll)
    is_over.set()
    thread.join()
    process_groups.let_go()


def test_one_that_is_watched_is_at_an_end_and_can_still_send(watched: Poll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 1
        assert ours.recv(1) == b""
        ours.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_the_other_side_can_send_until_all_have_left(watched: Poll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        process_groups.shut_down_gloo()
        watched.unregister(ours)
        ours.close()
        for _ in range(3):
            peer.sendall(b"x")
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        process_groups.let_go()
        peer.setblocking(True)
        with pytest.raises(ConnectionError):
            peer.recv(1)


def test_a_message_under_way_is_let_through(watched: Poll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        peer.sendall(b"message")
        took: list[float] = []

        def shut_down() -> None:
            begun = time.monotonic()
            process_groups.shut_down_gloo()
            took.append(time.monotonic() - begun)

        thread = threading.Thread(target=shut_down)
        thread.start()
        assert ours.recv(7) == b"message"
        thread.join()
        assert ours.recv(1) == b""
        assert took[0] < process_groups.QUIET_WITHIN_S


def test_a_message_nobody_reads_holds_it_up_for_a_limited_time(watched: Poll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        peer.sendall(b"message")
        begun = time.monotonic()
        assert process_groups.shut_down_gloo() == 1
        assert time.monotonic() - begun >= process_groups.QUIET_WITHIN_S


def test_others_are_left_alone(watched: Poll) -> None:
    with connected() as (ours, peer), socket.create_server(("127.0.0.1", 0)) as server:
        watched.register(server, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 0
        peer.sendall(b"x")
        assert ours.recv(1) == b"x"
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_without_gloo_there_is_nothing_to_do() -> None:
    with connected() as (ours, _), select.epoll() as poll:
        os.set_inheritable(poll.fileno(), True)
        poll.register(ours, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 0


def test_what_other_libraries_watch_is_left_alone(
    watched: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MPI and UCX do, with an epoll instance like gloo's; or with no address at all."""
    with connected() as (ours, peer), connected() as (other, far):
        watched.register(ours, select.EPOLLIN)
        watched.poll.register(other, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 1
        far.sendall(b"x")
        assert other.recv(1) == b"x"
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        monkeypatch.setattr(process_groups, "LIBRARIES", ("libtorch",))
        assert process_groups.shut_down_gloo() == 0
        peer.sendall(b"x")
        assert ours.recv(1) == b"x"


def test_those_to_a_place_end_on_both_sides_and_others_of_the_port_do_not() -> None:
    """The port may serve something else on another host, or as the end of another connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_connection(store.getsockname()) as ours,
        store.accept()[0] as accepted,
    ):
        port = store.getsockname()[1]
        with (
            socket.create_server(("127.0.0.2", port)) as elsewhere,
            socket.create_connection(elsewhere.getsockname()) as other,
        ):
            far = elsewhere.accept()[0]
            store.close()
            elsewhere.close()
            assert process_groups.shut_down_to("127.0.0.1", port) == 1
            assert ours.recv(1) == b""
            far.sendall(b"x")
            assert other.recv(1) == b"x"
            far.close()
        accepted.close()


def test_those_that_a_store_here_has_accepted_end_as_well() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_connection(store.getsockname()) as ours,
        store.accept()[0] as accepted,
    ):
        assert process_groups.shut_down_to("127.0.0.3", store.getsockname()[1]) == 1
        assert accepted.recv(1) == ours.recv(1) == b""
