"""The socket for workers' calls, with real ones."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from drumbeat.agent.watchdog import listener as listener_module
from drumbeat.agent.watchdog.listener import Listener
from tests.support.waiting import MS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drumbeat.agent.watchdog.service import Calls

PAUSE_S = 20 * MS


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
    attempts: list[float] = []

    def warn(listener: Listener, error: Exception) -> None:
        attempts.append(asyncio.get_running_loop().time())
        told(listener, error)

    told = Listener._warn
    monkeypatch.setattr(Listener, "_warn", warn)
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_S", PAUSE_S)
    listener = Listener(place, cast("Calls", None))
    with socket.socket(socket.AF_UNIX) as client:
        with no_descriptor_left(), capture_logs() as logs:
            client.connect(str(listener.path))
            await wait_until(lambda: len(attempts) > 3, 20_000 * MS)
        pauses = (after - before for before, after in pairwise(attempts))
        assert all(pause_s >= PAUSE_S for pause_s in pauses)
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
