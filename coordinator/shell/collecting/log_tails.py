"""Shell. The end of workers' output of rounds that are over, in files of the state directory.

Agents are asked as a round ends, before they are told to go on or to leave. No decision waits for
their answers: what has not come in time is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from drumbeat.coordinator.core.collecting.log_reading import LogsAsked
from drumbeat.coordinator.core.collecting.stack_gathering import asked_of
from drumbeat.coordinator.core.failures.root_cause import root_causes
from drumbeat.coordinator.core.model import Round, Seat
from drumbeat.coordinator.core.run.records import Record, RoundEnded, RunEnded
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.evidence.archive import new_file
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.collecting.logs import LogReader, LogReaders
from drumbeat.coordinator.wire.logs import TAIL_MAX, brought_message
from drumbeat.tasks import in_thread

log = structlog.get_logger()

READ_WITHIN_S = 10.0
CLOSE_WITHIN_S = 2.0
FILE_BYTES_LEAST = 16 * 1024  # that a file counts, so that the number of files has a limit, too


class LogTails:
    """Keeps them, and reads them again. One event loop uses it; a file is written in a thread."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self._directory, self._limits = directory, limits
        self._reading: dict[Path, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()

    def observe(self, logs: LogReaders, state: RunState, record: Record) -> None:
        """Take in a durable record, and its run as it was before. Never waits."""
        current, limits = state.round, self._limits
        is_end = isinstance(record, RoundEnded | RunEnded) and state.phase is not Phase.GATHERING
        if current is None or not is_end:
            return
        path = self._directory / f"{_name(state)}-{current.round_id}"
        if len(self._reading) >= limits.log_tails_reading_max:
            log.warning("output not kept", reason="too many rounds end at once", path=str(path))
            return
        ranks = most_telling(state, current, limits.log_tail_ranks_max)
        seats = {seat.agent.incarnation: seat for seat in current.seats_of(ranks)}
        asked = LogsAsked(
            run_id=state.run_id,
            ranks=tuple(ranks),
            since_round=current.round_id,
            tail=TAIL_MAX,
            tail_bytes=limits.log_tail_bytes_max,
            follow=False,
        )
        stack = ExitStack()
        reader = stack.enter_context(logs.open(asked, asked_of(seats.values(), ranks)))
        task = self._reading[path] = asyncio.create_task(self._keep(path, reader, seats))
        stack.callback(self._reading.pop, path, None)
        task.add_done_callback(lambda _: stack.close())

    async def rounds(self, state: RunState, *, is_awaited: bool = False) -> list[int]:
        """Return the rounds of a run of which there is any, perhaps once all is written."""
        name = _name(state)
        if is_awaited and (tasks := [self._reading[i] for i in self._reading if _is_of(i, name)]):
            await asyncio.wait(tasks)
        paths = await in_thread(lambda: list(self._directory.glob(f"{name}-*")))
        return sorted(int(path.name.rpartition("-")[2]) for path in paths)

    async def read(self, state: RunState, round_id: int) -> list[bytes]:
        """Return what agents brought as a round ended, as messages. Raises ``OSError``."""
        content = await in_thread((self._directory / f"{_name(state)}-{round_id}").read_bytes)
        return msgspec.msgpack.decode(content, type=list[bytes])

    def forget(self, state: RunState) -> None:
        """Drop all of a run. Waits for no disk."""
        name = _name(state)
        for path in [path for path in self._reading if _is_of(path, name)]:
            self._reading[path].cancel()

        def drop() -> None:
            for path in self._directory.glob(f"{name}-*"):
                path.unlink(missing_ok=True)

        threading.Thread(target=drop, name="files", daemon=True).start()

    async def close(self) -> None:
        """Keep what has come, if it can be written soon."""
        if self._reading:
            _, late = await asyncio.wait(self._reading.values(), timeout=CLOSE_WITHIN_S)
            for task in late:
                task.cancel()

    async def _keep(self, path: Path, reader: LogReader, seats: Mapping[str, Seat]) -> None:
        asked, left = reader.reading.asked, self._limits.log_tails_round_bytes_max
        kept: list[bytes] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_WITHIN_S):
                    while left > 0 and (brought := await reader.take()) is not None:
                        agent = seats[brought.incarnation].agent
                        message = brought_message(brought, agent, asked.since_round)
                        kept.append(message.SerializeToString())
                        left -= len(kept[-1])
            async with self._writing:
                await in_thread(partial(self._write, path, msgspec.msgpack.encode(kept)))
        except Exception as error:  # noqa: BLE001 - whatever agents said: no run depends on it
            log.warning("output not kept", reason=str(error), **{"run.id": asked.run_id})

    def _write(self, path: Path, content: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_file(path, may_replace=True) as write:
            write(content)
        kept = sorted(self._directory.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        own = [file for file in kept if _is_of(file, path.name.rpartition("-")[0])]
        _make_room(own, self._limits.log_tails_run_bytes_max)
        _make_room(kept, self._limits.log_tails_bytes_max)


def most_telling(state: RunState, current: Round, most: int) -> list[int]:
    """Return the ranks of a round to keep output of: root causes, others that failed, the first."""
    failed = [record for record in state.failures if record.round_id == current.round_id]
    causes = root_causes(failed, current.round_id, state.hang)
    told = (record.worker.rank for record in (*causes, *failed))
    return list(dict.fromkeys([*told, *range(min(most, current.world_size))]))[:most]


def _make_room(oldest_first: list[Path], most: int) -> None:
    """Remove the oldest files beyond ``most`` bytes, but never the latest."""
    sizes = {path: path.stat().st_size for path in oldest_first if path.exists()}
    total = sum(max(FILE_BYTES_LEAST, size) for size in sizes.values())
    for path, size in list(sizes.items())[:-1]:
        if total > most:
            path.unlink(missing_ok=True)
            total -= max(FILE_BYTES_LEAST, size)


def _name(state: RunState) -> str:
    """Return what files of a run begin with; one of the same id that comes later has another."""
    return hashlib.sha256(f"{state.key} {state.created_at}".encode()).hexdigest()[:32]


def _is_of(path: Path, name: str) -> bool:
    return path.name.startswith(f"{name}-")
