"""What if all workers of a large run fail in one moment, with a long record each?

The driver, the sessions of failure records and the journal on a disk are real; only
gRPC is not there. All agents report the failure and their records at once, and the
decision has to pass 80,000 records that wait.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.figures import OURS, OneOfEach, one_of_each
from bench.scale.core_cost import RUN, Fleet
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.effects import Decided
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.registry import Registry
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.journal.sqlite import SqliteJournal
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.shell.sessions import Sessions
from drumbeat.model import Assignment, GroupState, Pace
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from drumbeat.coordinator.core.effects import Effect
    from drumbeat.coordinator.core.events import Event
    from drumbeat.coordinator.shell.driver import Outbox

AGENTS, WORKERS = 10_000, 8
RECORD_BYTES = 64 * 1024
MIB = 1024 * 1024


class MassFailure:
    """One run whose agents share a clock, and fail together."""

    def __init__(self, agents: int, record_bytes: int, directory: Path) -> None:
        self.agents, self.directory = agents, directory
        self.fleet = Fleet(agents)
        self.fleet.spec = replace(self.fleet.spec, restarts_max=1)
        # No agent beats here, so none is silent.
        pace = Pace(heartbeat_interval_s=1_000, lease_s=5_000, reconnect_delay_max_s=1)
        registry = Registry(Policy(base_pace=pace, agents_at_base_pace=10**9))
        self.driver = Driver(registry, SqliteJournal(directory), Limits())
        self.sessions = Sessions(self.driver)
        self._told: Counter[str] = Counter()
        self._news = asyncio.Event()
        self.most_bytes = 0
        self._acknowledged = 0
        self._decided_at = self._told_at = 0.0
        text = "x" * (record_bytes // 3)
        record = failure_pb2.FailureRecord(
            fence=common_pb2.Fence(run_id=RUN, round_id=0),
            exit_code=1,
            message=text,
            traceback=text,
            stderr_tail=text,
        )
        self._message = session_pb2.ReportFailuresRequest(record=record).SerializeToString()

    async def measure(self) -> OneOfEach:
        """Let the run begin, fail, restart and succeed.

        ``decided`` is the time from the decision on the failure to the last assignment that was
        queued, ``reported`` that from the first report of the failure, ``records`` that until the
        last record was acknowledged. ``journal`` is the size of all files of the journal after the
        run, ``journal_most`` that while it ran, at most.
        """
        owner = asyncio.create_task(self.driver.run())
        watch = asyncio.create_task(self._watch_journal())
        for index in range(self.agents):
            self._listen(self.driver.open(self.fleet.opened(index)))
        await self._until_all("round 0")
        self._note_decision()
        began_at = time.monotonic()
        reports = [asyncio.create_task(self._report(index)) for index in range(self.agents)]
        self.fleet.port += 1
        for index in range(self.agents):
            self.driver.submit(self.fleet.beat_of(index, GroupState.FAILED))
        await self._until_all("round 1")
        restarted_at = self._told_at
        await asyncio.gather(*reports)
        records_s = time.monotonic() - began_at
        assert self._acknowledged == self.agents * WORKERS
        self.fleet.round_id = 1
        for index in range(self.agents):
            self.driver.submit(self.fleet.beat_of(index, GroupState.SUCCEEDED))
        await self._until_all("Exit")
        assert self.driver.registry.runs[RUN].state.phase is Phase.ENDED
        assert self.driver.registry.runs[RUN].state.failures_count == self.agents * WORKERS
        after = self._journal_bytes()
        watch.cancel()
        owner.cancel()
        await asyncio.wait({owner, watch})
        return {
            "decided": restarted_at - self._decided_at,
            "reported": restarted_at - began_at,
            "records": records_s,
            "journal": after / MIB,
            "journal_most": max(after, self.most_bytes) / MIB,
        }

    def _note_decision(self) -> None:
        """Have the instant noted at which the failure is decided on."""
        handle = self.driver.registry.handle

        def noting(event: Event, *, now: float) -> list[Effect]:
            effects = handle(event, now=now)
            if any(isinstance(e, Decided) and e.decision == "round ended" for e in effects):
                self._decided_at = time.monotonic()
            return effects

        self.driver.registry.handle = noting  # type: ignore[method-assign]

    async def _report(self, index: int) -> None:
        async def count(_response: session_pb2.ReportFailuresResponse) -> None:
            self._acknowledged += 1

        await self.sessions.report(self._records(index), count)

    async def _records(self, index: int) -> AsyncIterator[session_pb2.ReportFailuresRequest]:
        for local_rank in range(WORKERS):
            request = session_pb2.ReportFailuresRequest.FromString(self._message)
            record = request.record
            record.sequence = local_rank + 1
            record.fence.incarnation = record.host = f"node-{index}"
            record.worker.rank = index * WORKERS + local_rank
            # In no order: which record tells most is found out only as they come.
            record.age.FromMilliseconds(hash((index * 7919, local_rank)) % 1000)
            yield request

    def _listen(self, outbox: Outbox) -> None:
        """Count what is queued for an agent; nothing is sent anywhere."""
        put = outbox.put

        def counting(effect: fx.Push | fx.Reject) -> None:
            put(effect)
            if isinstance(effect, fx.Direct):
                self._told[_name(effect.state)] += 1
                self._told_at = time.monotonic()
                self._news.set()

        outbox.put = counting  # type: ignore[method-assign]

    async def _until_all(self, what: str) -> None:
        """Return once every agent was told this."""
        while self._told[what] < self.agents:
            self._news.clear()
            await self._news.wait()

    async def _watch_journal(self) -> None:
        while True:
            self.most_bytes = max(self.most_bytes, self._journal_bytes())
            await asyncio.sleep(0.05)

    def _journal_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir() if path.is_file())


def _name(state: object) -> str:
    return f"round {state.round_id}" if isinstance(state, Assignment) else type(state).__name__


def mass_failure(agents: int = AGENTS, record_bytes: int = RECORD_BYTES) -> OneOfEach:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="drumbeat-bench-") as directory:
        return asyncio.run(MassFailure(agents, record_bytes, Path(directory)).measure())


OF = f"{AGENTS:,} agents of {WORKERS} workers fail at once"
QUESTIONS = one_of_each(lambda _side: mass_failure()).questions(
    "mass_failure",
    (
        ("decided", "s", f"{OF}: until the last assignment"),
        ("journal", "MiB", "the same: journal after the run"),
    ),
    OURS,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--record-bytes", type=int, default=RECORD_BYTES)
    given = parser.parse_args()
    print(mass_failure(given.agents, given.record_bytes))
