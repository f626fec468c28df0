"""Shell. The status file in an agent's private directory; ``agent status`` reads these.

It is written when it changes, whole or not at all, so a reader needs no answer of the agent: one
that is stopped or busy is shown as well.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from drumbeat.agent.errors import PrivateDirectoryUnusable
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.host.private_directory import (
    SPOOL,
    PrivateDirectory,
    private_directories,
    write_whole,
)
from drumbeat.agent.telemetry.status import AgentStatus, Leftover, as_json, as_table

NAME = "status"
STATUS_BYTES_MAX = 1024 * 1024  # of a host with the most workers it is a third of that
CLOSE_TIMEOUT_S = 1.0

NO_AGENT = 1  # exit code


class StatusFile:
    """Written by a thread; a newer status replaces one that was not written yet."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self._directory, self._files = directory, FileThread("status")
        self._latest: AgentStatus | None = None
        self._is_waiting = False

    def put(self, status: AgentStatus) -> None:
        """Have a status written, if it is news; never blocks."""
        if status == self._latest:
            return
        self._latest = status
        if not self._is_waiting:
            self._is_waiting = True  # first: the thread may be quicker
            self._files.submit(self._write)

    async def close(self) -> None:
        """Write no more; the file goes with its directory."""
        with suppress(FilesStalled):
            await self._files.run(lambda: None, timeout_s=CLOSE_TIMEOUT_S)
        self._files.close()

    def _write(self) -> None:
        self._is_waiting = False  # what comes from here on is written once more
        status = self._latest
        assert status is not None, "put"
        with suppress(OSError, PrivateDirectoryUnusable):  # it is only looked at
            write_whole(self._directory.ensure() / NAME, msgspec.json.encode(status))


def read_status(directory: Path) -> AgentStatus | None:
    """Return what the owner of a directory wrote last; None if that can't be read."""
    try:
        with (directory / NAME).open("rb") as file:
            return msgspec.json.decode(file.read(STATUS_BYTES_MAX), type=AgentStatus)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def show(*, is_json: bool) -> int:
    """Print this user's agents on this host; return the exit code."""
    agents: list[AgentStatus] = []
    leftovers: list[Leftover] = []
    for path, is_alive in private_directories():
        status = read_status(path)
        if not is_alive:
            has_records = _any_in(path / SPOOL)
            left = Leftover(directory=str(path), status=status, has_records=has_records)
            leftovers.append(left)
        elif status is not None:  # else it is no agent's, or the agent has just begun
            agents.append(status)
    agents.sort(key=lambda entry: (entry.run_id, entry.began_at))
    leftovers.sort(key=lambda entry: entry.directory)
    now = time.monotonic()
    if is_json:
        click.echo(as_json(socket.gethostname(), agents, leftovers, now=now))
    else:
        click.echo(as_table(agents, leftovers, now=now))
    return 0 if agents else NO_AGENT


def _any_in(directory: Path) -> bool:
    """Return whether a directory is there and holds something."""
    with suppress(OSError), os.scandir(directory) as entries:
        return any(True for _ in entries)
    return False
