"""The leak check sees what it is there for, and nothing else."""

import asyncio
import os
import socket
import subprocess
import sys
import threading

import grpc.aio
import pytest

from tests.support.leaks import Holdings, end_children_since, leaks_since, settled_leaks_since
from tests.support.waiting import MS, wait_until, wait_until_sync


def test_a_child_left_running_is_a_leak_until_it_is_ended() -> None:
    before = Holdings.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        leaks = leaks_since(before)
        assert any(line.startswith(f"child process {child.pid} ") for line in leaks), leaks
        end_children_since(before)
    assert settled_leaks_since(before) == []


def test_a_child_nobody_waited_for_is_a_leak() -> None:
    before = Holdings.now()
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert any(f"{child.pid} (zombie)" in line for line in leaks_since(before))
    assert settled_leaks_since(before) == []


def test_a_socket_left_open_is_a_leak_until_it_is_closed() -> None:
    before = Holdings.now()
    with socket.socket() as left_open:
        assert [line.split(":")[0] for line in leaks_since(before)] == [
            f"descriptor {left_open.fileno()}"
        ]
    assert leaks_since(before) == []


def test_a_thread_that_would_keep_the_process_alive_is_a_leak_until_it_ends() -> None:
    before = Holdings.now()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left behind")
    thread.start()
    assert leaks_since(before) == ["thread left behind"]
    end.set()
    thread.join()
    assert leaks_since(before) == []


async def test_a_grpc_server_and_channel_that_were_closed_leave_nothing() -> None:
    """What the C core shares for the life of the process must not raise an alarm."""
    before = Holdings.now()
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        assert leaks_since(before)
    await server.stop(grace=None)
    # The socket pair by which the C core wakes the loop goes with the last object.
    del server, channel


async def test_waiting_returns_the_value_and_tells_what_was_seen_if_there_is_none() -> None:
    seen = iter([0, 0, 7])
    assert await wait_until(lambda: next(seen), 1000 * MS) == 7
    assert wait_until_sync(lambda: "now", 0) == "now"
    with pytest.raises(AssertionError, match=r"not within 0\.01 s.*seen last: 'nobody'"):
        await wait_until(lambda: False, 0.01, lambda: "nobody")
    with pytest.raises(AssertionError, match=r"not within 0\.01 s.*seen last: 0"):
        await asyncio.to_thread(wait_until_sync, lambda: 0, 0.01)
