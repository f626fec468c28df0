"""Shell. Takes the stacks of one worker, for the watchdog and for readers, one after the other."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from drumbeat.agent.core.watchdog.model import Snapshot, WorkerKey
from drumbeat.agent.model.hang import HangEvidence, WorkerProgress
from drumbeat.agent.watchdog.board_reader import Board
from drumbeat.agent.watchdog.flight_recorder import Progress, parse_calls, parse_progress
from drumbeat.agent.watchdog.observers import Observers
from drumbeat.agent.watchdog.outside import read_stacks
from drumbeat.agent.watchdog.stacks import StackSource, is_stopped, take_evidence
from drumbeat.model import GroupCalls
from drumbeat.text.format import describe

log = structlog.get_logger()

_SIGNAL_HINT = (
    "; `coordinator stacks --signal` asks with a signal that can end a system call early (EINTR)"
)

BUSY = "another look at it did not end in time"
PARSED_AT_ONCE_BYTES = 64 * 1024  # of an answer; a longer one is parsed by a thread
LOOK_MIN_S = 0.5  # what a look gets that has waited for another one, however long it waited
SILENT_BEATS = 2.0  # a worker that has missed so many signs of life may be stopped


def with_state(
    standing: WorkerProgress, pid: int, beat_interval_s: float, now: float
) -> WorkerProgress:
    """Add whether the process is stopped; it is not while it gives signs of life."""
    beat_at = standing.beat_at
    if beat_at is not None and now - beat_at < SILENT_BEATS * beat_interval_s:
        return standing
    return replace(standing, is_stopped=is_stopped(pid))


class WorkerEvidence(NamedTuple):
    """What one worker does, for a reader or as evidence of a hang of its round."""

    local_rank: int
    pid: int = 0
    evidence: HangEvidence = HangEvidence()
    standing: WorkerProgress | None = None
    groups: tuple[GroupCalls, ...] | None = None  # None: it does not tell
    moved_at: float | None = None  # when one of them moved

    @property
    def problem(self) -> str:
        """Why there are no stacks."""
        return "" if self.evidence.stacks else self.evidence.notes

    def redacted(self, redact: Callable[[str], str]) -> WorkerEvidence:
        """Return it without secrets."""
        evidence, standing = self.evidence, self.standing
        stacks, notes = redact(evidence.stacks), redact(evidence.notes)
        return self._replace(
            evidence=replace(evidence, stacks=stacks, notes=notes),
            standing=standing and replace(standing, scope=redact(standing.scope)),
        )


class StackTaker:
    """Takes the stacks of one worker, through the FIFO of its board or from its observer."""

    def __init__(self, key: WorkerKey, board: Board, observers: Observers | None = None) -> None:
        """``observers``: those of the agent's workers; None: workers are not observed."""
        self._key, self._board, self._observers = key, board, observers
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, timeout_s: float | None = None) -> AsyncIterator[float]:
        """Wait until no other look at this worker goes on; yield how long this look may take.

        Raises ``TimeoutError`` if other looks go on for all of ``timeout_s``; None: wait for them.
        """
        began = time.monotonic()
        async with asyncio.timeout(timeout_s):
            await self._lock.acquire()
        try:
            left_s = math.inf if timeout_s is None else timeout_s - (time.monotonic() - began)
            yield max(left_s, LOOK_MIN_S)
        finally:
            self._lock.release()

    async def evidence(
        self,
        pid: int,
        snapshot: Snapshot,
        timeout_s: float,
        *,
        is_asked: bool = True,
        may_signal: bool = False,
        starved_s: float = 0.0,
    ) -> HangEvidence:
        """Return what can be had within the time: `take_evidence`, which never fails here.

        ``snapshot`` is what its board says. Call it in a turn.
        """
        source = StackSource(
            stacks_fd=self._board.stacks_fd,
            ask_fd=self._board.ask_fd if is_asked and snapshot.answers else None,
            owner_pid=snapshot.owner_pid,
            stack_signal=snapshot.stack_signal,
            ask_observer=self._ask_observer if self._is_observed() else None,
        )
        try:
            return await take_evidence(
                pid, source, timeout_s, may_signal=may_signal, starved_s=starved_s
            )
        except Exception as error:
            # In any case: a worker that hangs is killed, and other workers answer.
            place = {"run.round": self._key.round_id, "worker.local_rank": self._key.local_rank}
            log.exception("stacks not taken", **place)
            return HangEvidence(notes=f"no stacks: {describe(error)}")

    async def for_reader(
        self, pid: int, snapshot: Snapshot, timeout_s: float, *, may_signal: bool
    ) -> HangEvidence:
        """Return the same, with a hint if a signal could have had the stacks. Call it in a turn."""
        evidence = await self.evidence(pid, snapshot, timeout_s, may_signal=may_signal)
        is_held = evidence.is_stopped or evidence.is_traced or not evidence.is_alive
        if evidence.stacks or may_signal or is_held or not snapshot.stack_signal:
            return evidence
        return replace(evidence, notes=evidence.notes + _SIGNAL_HINT)

    async def from_outside(
        self, pid: int, evidence: HangEvidence, timeout_s: float, *, may_halt: bool
    ) -> HangEvidence:
        """Return evidence with the stacks that can be read from outside, if it has none."""
        if evidence.stacks or evidence.is_traced or not evidence.is_alive or not pid:
            return evidence
        # One that is stopped already would be moved by what halts it.
        may_halt = may_halt and not evidence.is_stopped
        stacks, why = await read_stacks(pid, timeout_s, may_halt=may_halt)
        if stacks:
            return replace(evidence, stacks=stacks)
        return replace(evidence, notes=f"{evidence.notes}; {why}")

    async def calls(self, timeout_s: float) -> tuple[GroupCalls, ...] | None:
        """Return the calls of the worker's process groups; None if it does not tell."""
        if self._observers is None:
            return None
        answer = await self._observers.ask(self._key, "calls", timeout_s)
        if len(answer) < PARSED_AT_ONCE_BYTES:
            return parse_calls(answer, now_ns=time.time_ns())
        return await asyncio.to_thread(parse_calls, answer, now_ns=time.time_ns())

    async def progress(self, timeout_s: float) -> Progress | None:
        """Return how far the worker's process groups are; None if it does not tell."""
        if self._observers is None:
            return None
        return parse_progress(await self._observers.ask(self._key, "progress", timeout_s))

    def _is_observed(self) -> bool:
        return self._observers is not None and self._observers.is_connected(self._key)

    async def _ask_observer(self, timeout_s: float) -> bytes:
        assert self._observers is not None, "asked without observers"
        return await self._observers.ask(self._key, "stacks", timeout_s)
