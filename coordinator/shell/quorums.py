"""Shell. The quorums of all jobs, and the calls through which agents join them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import structlog

from drumbeat.coordinator.core.quorum.model import (
    CallEnded,
    GiveQuorum,
    GroupLeft,
    KeepQuorum,
    KeptQuorum,
    QuorumDecided,
    QuorumDue,
    QuorumEvent,
    QuorumKept,
)
from drumbeat.coordinator.core.quorum.quorum import JobQuorum, QuorumPolicy
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.errors import InvalidRequest, SessionReplaced, StaleSession
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.wire.quorum import encode_quorum, replica_reported
from drumbeat.model import ReplicaGroup
from drumbeat.tasks import until_one_ends
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import session_pb2

log = structlog.get_logger()

Send = Callable[[session_pb2.JoinQuorumResponse], Awaitable[None]]


class _Call:
    """One call of an agent. Of its answers only the latest waits."""

    def __init__(self, group: int, incarnation: str) -> None:
        self.group, self.incarnation = group, incarnation
        self.answer: session_pb2.JoinQuorumResponse | None = None
        self.changed = asyncio.Event()
        self.over = asyncio.get_running_loop().create_future()

    def end(self, error: StaleSession | SessionReplaced) -> None:
        """End it with an error."""
        if not self.over.done():
            self.over.set_exception(error)

    async def write(self, send: Send) -> None:
        """Send answers until cancelled."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            if (answer := self.answer) is not None:
                self.answer = None
                await send(answer)


class _Job:
    def __init__(self, core: JobQuorum) -> None:
        self.core = core
        self.calls: dict[str, _Call] = {}  # by source
        self.alarm: asyncio.TimerHandle | None = None


class Quorums:
    """Owns the core of each job whose agents call. Belongs to one event loop.

    ``keep`` journals a quorum and ``now`` is the coordinator's clock.
    """

    def __init__(
        self,
        journal: Journal,
        keep: Callable[[KeptQuorum], asyncio.Future[None]],
        now: Callable[[], float],
    ) -> None:
        self._journal, self._keep, self._now = journal, keep, now
        self._jobs: dict[str, _Job] = {}
        self._numbers = itertools.count(1)

    async def hold(
        self,
        first: session_pb2.JoinQuorumRequest,
        requests: AsyncIterator[session_pb2.JoinQuorumRequest],
        send: Send,
    ) -> None:
        """Hold the call of an agent until either side ends it. Raises ``CoordinatorError``."""
        fence = first.fence
        state = self._journal.runs.find(fence.run_id)
        if (group := _group_in_round(state, fence.round_id, fence.incarnation)) is None:
            raise StaleSession("its workers are of no round of a replica group that runs")
        job = self._jobs.get(group.job) or self._begin(group)
        for other in job.calls.values():
            if other.incarnation == fence.incarnation:
                other.end(SessionReplaced())
        source, call = str(next(self._numbers)), _Call(group.index, fence.incarnation)
        job.calls[source] = call
        try:
            reading = self._read(job, source, first, requests)
            await until_one_ends(reading, call.write(send), call.over)
        finally:
            del job.calls[source]
            self._handle(job, CallEnded(group=group.index, source=source))

    def recorded(self, state: RunState, record: rec.Record) -> None:
        """Take in a durable record, and its run as it was before: a group may be out by it."""
        group = state.spec.replica_group
        if group is None or (job := self._jobs.get(group.job)) is None:
            return
        match record:
            case rec.RoundEnded(reason=reason) | rec.EndingStarted(reason=reason):
                incarnation = None
            case rec.RunEnded(verdict=verdict):
                incarnation, reason = None, verdict.reason
            case rec.GroupSucceeded(incarnation=incarnation):
                reason = "its workers have succeeded"
            case _:
                return
        calls = [call for call in job.calls.values() if call.group == group.index]
        over = [call for call in calls if incarnation in (None, call.incarnation)]
        for call in over:
            call.end(StaleSession(reason))
        if over or incarnation is None:
            self._handle(job, GroupLeft(group=group.index, reason=reason))

    def _begin(self, group: ReplicaGroup) -> _Job:
        runs = {i: self._journal.runs.find(f"{group.job}.{i}") for i in range(group.count)}
        running = {i for i, run in runs.items() if run is not None and run.phase is Phase.RUNNING}
        policy = QuorumPolicy(groups_min=group.groups_min, groups_count=group.count)
        kept = self._journal.quorums.get(group.job)
        core = JobQuorum(group.job, policy, kept, running, now=self._now())
        job = self._jobs[group.job] = _Job(core)
        return job

    async def _read(
        self,
        job: _Job,
        source: str,
        first: session_pb2.JoinQuorumRequest,
        requests: AsyncIterator[session_pb2.JoinQuorumRequest],
    ) -> None:
        group = job.calls[source].group
        try:
            self._handle(job, replica_reported(first, group=group, source=source))
            async for message in requests:
                self._handle(job, replica_reported(message, group=group, source=source))
        except InvalidField as problem:
            raise InvalidRequest(problem.field, problem.value, problem.allowed) from None

    def _handle(self, job: _Job, event: QuorumEvent) -> None:
        """Have the core of a job take an event, and do what it wants."""
        core = job.core
        for effect in core.handle(event, now=self._now()):
            match effect:
                case GiveQuorum():
                    self._give(job, effect)
                case KeepQuorum(quorum=quorum):
                    self._keep(quorum).add_done_callback(partial(self._kept, job))
                case QuorumDecided(decision=decision, reason=reason):
                    log.info(decision, message=f"{core.job}: {reason}", job=core.job)
        if job.alarm is not None:
            job.alarm.cancel()
            job.alarm = None
        if (due := core.next_deadline()) is not None:
            delay_s = max(0.0, due - self._now())
            later = asyncio.get_running_loop().call_later
            job.alarm = later(delay_s, self._handle, job, QuorumDue())
        elif core.is_empty and not job.calls and self._jobs.get(core.job) is job:
            del self._jobs[core.job]

    def _kept(self, job: _Job, kept: asyncio.Future[None]) -> None:
        if not kept.cancelled() and kept.exception() is None:
            self._handle(job, QuorumKept())

    def _give(self, job: _Job, effect: GiveQuorum) -> None:
        response = encode_quorum(effect.quorum)
        numbers = [request.number for request in effect.quorum.requests]
        for source, number in effect.numbers.items():
            if (call := job.calls.get(source)) is not None:
                call.answer = session_pb2.JoinQuorumResponse(
                    number=number, response=response, numbers=numbers
                )
                call.changed.set()


def _group_in_round(state: RunState | None, round_id: int, incarnation: str) -> ReplicaGroup | None:
    """Return the group of a run if an agent has workers of this round of it."""
    if state is None or state.round_id != round_id or not state.is_awaited(incarnation):
        return None
    return state.spec.replica_group
