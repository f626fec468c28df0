"""Shell. Writes evidence of runs that fail or hang into a directory, and removes the oldest.

A thread makes the archives, one at a time; nothing waits for them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.model import VerdictCause
from drumbeat.coordinator.core.run.records import EndingStarted, HangJudged, Record, RunEnded
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.coordinator.evidence.archive import UNFINISHED, new_file, packed, stamp
from drumbeat.coordinator.evidence.contents import Evidence
from drumbeat.coordinator.evidence.gathering import gather
from drumbeat.coordinator.evidence.local_reader import FindServices, LocalReader, answers
from drumbeat.tasks import in_thread

log = structlog.get_logger()

WAITING_MAX = 8  # archives that wait for the thread; more are not made
ENDING_WITHIN_S = 15.0  # how long the verdict of a run that fails is waited for
_NO_FAILURE = frozenset({VerdictCause.SUCCEEDED, VerdictCause.STOPPED})


@dataclass(eq=False)
class _Job:
    """One archive. ``stacks`` are asked for at the event, whatever is written before it."""

    run_id: str
    generation: int
    reason: str
    stacks: asyncio.Task[list[Any]]
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more is to come


class EvidenceKeeper:
    """Watches all runs of this coordinator. One event loop uses it."""

    def __init__(self, config: CoordinatorConfig, find_services: FindServices) -> None:
        assert config.evidence_dir is not None, "evidence is wanted"
        self._directory = Path(config.evidence_dir).absolute()
        self._config, self._find_services = config, find_services
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(WAITING_MAX)
        self._failing: dict[str, _Job] = {}  # by ``RunState.key``, until the run has ended
        self._reader: LocalReader | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._writing = asyncio.create_task(self._write_all(), name="evidence")

    async def close(self) -> None:
        """Write no more. What is being gathered is given up."""
        if self._writing is not None:
            self._writing.cancel()
            if self._reader is not None:
                self._reader.close()
            await asyncio.wait({self._writing})

    def observe(self, state: RunState, record: Record) -> None:
        """Take in a durable record of a run. Never raises and never blocks."""
        match record:
            case HangJudged() if state.current_hang is None:  # else the same hang is judged again
                self._put(state, "the run hangs").ended.set()
            case EndingStarted(cause=cause) if cause not in _NO_FAILURE:
                self._failing[state.key] = self._put(state, "the run failed")
            case RunEnded(verdict=verdict) if verdict.cause not in _NO_FAILURE:
                job = self._failing.pop(state.key, None) or self._put(state, "the run failed")
                job.ended.set()

    def _put(self, state: RunState, reason: str) -> _Job:
        asking = answers(self._find_services, "GetStacks", {"run_id": state.run_id})
        stacks = asyncio.get_running_loop().create_task(asking)
        stacks.add_done_callback(lambda done: done.cancelled() or done.exception())
        job = _Job(state.run_id, state.generation, reason, stacks)
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull:
            stacks.cancel()
            _warn(f"{WAITING_MAX} other archives wait to be written", state.run_id)
        return job

    async def _write_all(self) -> None:
        try:
            await in_thread(self._clean_up)
        except OSError as error:
            _warn(str(error))
        while True:
            job = await self._jobs.get()
            self._reader = reader = LocalReader(self._find_services, job.stacks)
            try:
                path = await in_thread(partial(self._write, job, reader))
                text = f"{job.run_id}: {job.reason}; evidence is in {path}"
                log.info("evidence written", message=text, path=str(path), **{"run.id": job.run_id})
            except (OSError, CoordinatorError) as error:  # a timeout is one of the first
                _warn(str(error) or "the coordinator took too long to answer", job.run_id)
            except Exception:  # no run depends on it
                log.exception("no evidence written", **{"run.id": job.run_id})

    def _write(self, job: _Job, reader: LocalReader) -> Path:
        """Write one archive. Raises ``OSError`` or ``CoordinatorError``."""
        evidence = Evidence(job.run_id, stamp(), job.reason, job.generation)

        def wait_for_verdict() -> None:
            try:
                reader.wait(job.ended.wait(), ENDING_WITHIN_S)
            except TimeoutError:
                evidence.note("report", f"no verdict within {ENDING_WITHIN_S:g} s")

        gather(reader, evidence, settle=wait_for_verdict)
        content = packed(evidence)
        path = self._directory / f"{evidence.name}.tar.gz"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(content))
        with new_file(path) as write:
            write(content)
        return path

    def _clean_up(self) -> None:
        """Make the directory, and remove what an earlier process did not finish."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in self._directory.glob(f"{UNFINISHED}*"):
            unfinished.unlink()

    def _make_room(self, size: int) -> None:
        """Remove the oldest archives until one more of this size fits. Raises ``OSError``."""
        if size > (bytes_max := self._config.evidence_max_bytes):
            raise OSError(f"an archive of {size} bytes exceeds --evidence-max-bytes")
        kept = [(archive.stat(), archive) for archive in self._directory.glob("drumbeat-*.tar.gz")]
        kept.sort(key=lambda pair: (pair[0].st_mtime_ns, pair[1].name), reverse=True)
        total = size + sum(about.st_size for about, _ in kept)
        while kept and (len(kept) >= self._config.evidence_keep or total > bytes_max):
            about, oldest = kept.pop()
            oldest.unlink(missing_ok=True)
            total -= about.st_size


def _warn(reason: str, run_id: str = "") -> None:
    where = {"run.id": run_id} if run_id else {}
    name = f"{run_id}: " if run_id else ""
    log.warning(
        "no evidence written", message=f"{name}no evidence: {reason}", reason=reason, **where
    )
