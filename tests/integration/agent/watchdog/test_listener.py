"""The socket for workers' calls, with real ones."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from agent.watchdog import listener as listener_module
from agent.watchdog.listener import Listener
from tests.support.waiting import MS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.watchdog.service import Calls


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_shortage_of_descriptors_is_waited_out_without_spinning(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_S", 100 * MS)
    listener = Listener(place, cast("Calls", None))
    with socket.socket(socket.AF_UNIX) as client:
        with no_descriptor_left(), capture_logs() as logs:
            busy_s = -time.process_time()
            client.connect(str(listener.path))
            await asyncio.sleep(250 * MS)
            busy_s += time.process_time()
            assert busy_s < 100 * MS
        assert [entry["event"] for entry in logs] == ["calls of workers not served"]
        await wait_until(lambda: listener.service, 20_000 * MS)
        await listener.close()


async def test_a_listener_that_is_closed_in_a_pause_accepts_no_more(place: Path) -> None:
    listener = Listener(place, cast("Calls", None))
    with socket.socket(socket.AF_UNIX) as client:
        with no_descriptor_left(), capture_logs() as logs:
            client.connect(str(listener.path))
            await wait_until(lambda: logs, 20_000 * MS)
        await listener.close()


async def test_a_listener_knows_whether_it_is_where_workers_look(place: Path) -> None:
    listener = Listener(place, cast("Calls", None))
    assert listener.is_in(place)
    listener.path.unlink()
    assert not listener.is_in(place)
    again = Listener(place, cast("Calls", None))
    assert again.is_in(place)
    assert not listener.is_in(place)
    await listener.close()
    await again.close()
