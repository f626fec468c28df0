"""The connections of gloo are found by its thread and its epoll instance, and shut down gently."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_sdk.inprocess import process_groups


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(server.getsockname()))
        yield one, stack.enter_context(server.accept()[0])


@pytest.fixture
def watched() -> Iterator[select.epoll]:
    """An epoll instance for which a thread of gloo's name waits, as gloo's does."""
    is_over = threading.Event()

    def loop() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("gloo_tcp_loop")
        while not is_over.is_set():
            poll.poll(0.01)
            is_waiting.set()

    with select.epoll() as poll:
        is_waiting = threading.Event()
        thread = threading.Thread(target=loop)
        thread.start()
        is_waiting.wait()
        yield poll
        is_over.set()
        thread.join()
    process_groups.let_go()


def test_one_that_is_watched_is_at_an_end_and_can_still_send(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 1
        assert ours.recv(1) == b""
        ours.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_the_other_side_can_send_until_all_have_left(watched: select.epoll) -> None:
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


def test_a_message_under_way_is_let_through(watched: select.epoll) -> None:
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


def test_a_message_nobody_reads_holds_it_up_for_a_limited_time(watched: select.epoll) -> None:
    with connected() as (ours, peer):
        watched.register(ours, select.EPOLLIN)
        peer.sendall(b"message")
        os.set_inheritable(watched.fileno(), True)  # for the thread that never gets to wait
        begun = time.monotonic()
        assert process_groups.shut_down_gloo() == 1
        assert time.monotonic() - begun >= process_groups.QUIET_WITHIN_S


def test_others_are_left_alone(watched: select.epoll) -> None:
    with connected() as (ours, peer), socket.create_server(("127.0.0.1", 0)) as server:
        watched.register(server, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 0
        peer.sendall(b"x")
        assert ours.recv(1) == b"x"
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_without_gloo_there_is_nothing_to_do() -> None:
    with connected() as (ours, _), select.epoll() as poll:
        poll.register(ours, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 0


def test_what_others_watch_is_left_alone(watched: select.epoll) -> None:
    """As asyncio, MPI and UCX do, with epoll instances of their own."""
    with connected() as (ours, _), connected() as (other, far), select.epoll() as poll:
        watched.register(ours, select.EPOLLIN)
        poll.register(other, select.EPOLLIN)
        assert process_groups.shut_down_gloo() == 1
        far.sendall(b"x")
        assert other.recv(1) == b"x"


def test_a_thread_of_gloo_that_never_waits_may_watch_all_that_a_child_inherits() -> None:
    """Unlike Python's own."""
    is_over = threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("gloo_tcp_loop")
        is_named.set()
        is_over.wait()

    is_named = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    is_named.wait()
    with connected() as (ours, _), connected() as (other, far):
        with select.epoll() as inherited, select.epoll() as own:
            os.set_inheritable(inherited.fileno(), True)
            inherited.register(ours, select.EPOLLIN)
            own.register(other, select.EPOLLIN)
            assert process_groups.shut_down_gloo() == 1
        far.sendall(b"x")
        assert other.recv(1) == b"x"
    is_over.set()
    thread.join()
    process_groups.let_go()


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
