"""The connections of gloo are found by its thread and its epoll instance, and shut down gently."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker_sdk.inprocess import sockets

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(server.getsockname()))
        yield one, stack.enter_context(server.accept()[0])


@pytest.fixture
def watched() -> Iterator[select.epoll]:
    """An epoll instance as gloo has it, and a thread of gloo's name."""
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
        yield poll
    is_over.set()
    thread.join()
    sockets.Kept.close()


def test_one_that_is_watched_is_at_an_end_and_can_still_send(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        assert sockets.shut_down_gloo() == 1
        assert ours.recv(1) == b""
        ours.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_the_other_side_can_send_until_all_have_left(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        sockets.shut_down_gloo()
        watched.unregister(ours)
        ours.close()
        for _ in range(3):
            peer.sendall(b"x")
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        sockets.Kept.close()
        peer.setblocking(True)
        with pytest.raises(ConnectionError):
            peer.recv(1)


def test_a_message_under_way_is_let_through(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        peer.sendall(b"message")
        took: list[float] = []

        def shut_down() -> None:
            begun = time.monotonic()
            sockets.shut_down_gloo()
            took.append(time.monotonic() - begun)

        thread = threading.Thread(target=shut_down)
        thread.start()
        assert ours.recv(7) == b"message"
        thread.join()
        assert ours.recv(1) == b""
        assert took[0] < sockets.QUIET_WITHIN_S


def test_a_message_nobody_reads_holds_it_up_for_a_limited_time(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        peer.sendall(b"message")
        begun = time.monotonic()
        assert sockets.shut_down_gloo() == 1
        assert time.monotonic() - begun >= sockets.QUIET_WITHIN_S


def test_others_are_left_alone(watched: select.epoll) -> None:
    with connected() as (ours, peer), socket.create_server(("127.0.0.1", 0)) as server:
        watched.register(server, select.EPOLLIN)
        assert sockets.shut_down_gloo() == 0
        peer.sendall(b"x")
        assert ours.recv(1) == b"x"
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_without_gloo_there_is_nothing_to_do() -> None:
    with connected() as (ours, _), select.epoll() as poll:
        os.set_inheritable(poll.fileno(), True)
        poll.register(ours, select.EPOLLIN)
        assert sockets.shut_down_gloo() == 0


def test_those_to_a_port_end_on_both_sides() -> None:
    with connected() as (ours, peer), connected() as (other, far):
        assert sockets.shut_down_to(ours.getpeername()[1]) == 2
        assert ours.recv(1) == peer.recv(1) == b""
        far.sendall(b"x")
        assert other.recv(1) == b"x"
