"""The socket at which workers knock, with real ones."""

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

from agent.watchdog import listener as door_module
from agent.watchdog.listener import Door
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


class CountingDoor(Door):
    """Counts how often it is looked who knocks."""

    knocks = 0

    def _on_knock(self) -> None:
        self.knocks += 1
        super()._on_knock()


async def test_a_shortage_of_descriptors_is_waited_out_without_spinning(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "ACCEPT_PAUSE_S", 100 * MS)
    door = CountingDoor(place, cast("Calls", None))
    with socket.socket(socket.AF_UNIX) as visitor:
        with no_descriptor_left():
            busy_s = -time.process_time()
            visitor.connect(str(door.path))
            await asyncio.sleep(250 * MS)
            busy_s += time.process_time()
            assert 1 <= door.knocks <= 4
            assert busy_s < 100 * MS
            assert not door.is_open
        await wait_until(lambda: door.is_open, 20_000 * MS)
        await door.close()


async def test_a_door_that_is_closed_in_a_pause_opens_no_more(place: Path) -> None:
    door = CountingDoor(place, cast("Calls", None))
    with socket.socket(socket.AF_UNIX) as visitor:
        with no_descriptor_left():
            visitor.connect(str(door.path))
            await wait_until(lambda: door.knocks, 20_000 * MS)
        await door.close()


async def test_a_door_knows_whether_it_is_where_workers_look(place: Path) -> None:
    door = Door(place, cast("Calls", None))
    assert door.is_at(place)
    door.path.unlink()
    assert not door.is_at(place)
    again = Door(place, cast("Calls", None))
    assert again.is_at(place)
    assert not door.is_at(place)
    await door.close()
    await again.close()
