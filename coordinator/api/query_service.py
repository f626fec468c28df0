"""Shell. The query service, without gRPC: an embedded coordinator has none.

Readers are answered from what is journaled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from itertools import islice
from typing import Any, Protocol

from drumbeat.access.token import Role
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.recent import Recent
from drumbeat.coordinator.api.run_links import links_of
from drumbeat.coordinator.api.shares import Shares
from drumbeat.coordinator.core.failures.hang_diagnosis import diagnose_now
from drumbeat.coordinator.core.failures.hang_evidence import SeenRanks
from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.registry.jobs import all_jobs, groups_of, job_of
from drumbeat.coordinator.core.run.state import Phase, RunState, id_and_generation
from drumbeat.coordinator.core.tokens.caller import TRUSTED, Caller, incarnation_of
from drumbeat.coordinator.observe.hosts import host_message, hosts_in_trouble
from drumbeat.coordinator.observe.jobs import job_message, job_response
from drumbeat.coordinator.observe.messages import goodput_message, overview_of, step_times_message
from drumbeat.coordinator.observe.readings import Readings
from drumbeat.coordinator.shell.collecting.evidence import gather_evidence
from drumbeat.coordinator.shell.collecting.logs import LogReader
from drumbeat.coordinator.shell.collecting.stacks import asked_of_round
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.wire import control, failure, logs, run_status, stacks
from drumbeat.tasks import until_one_ends
from drumbeat.text.format import listed, ranges
from drumbeat.text.violation import show_value
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration

# A reader of stacks that takes longer than this is left: what it has not taken waits here.
STACKS_READ_WITHIN_S = 30
# Of one reader of output: what a message costs beside its bytes, and pauses not worth one.
LOG_MESSAGE_BYTES_LEAST = 4096
LOG_PAUSE_S = 0.01
# What is wrong: runs that are listed, and that are looked at between two turns of others.
FIRING_MAX, RUNS_PER_TURN = 1_000, 50
_FIRING = range(pb.RUN_HEALTH_STATE_DEGRADED, pb.RUN_HEALTH_STATE_HANGING + 1)
SIMILAR_IDS_MAX = 500  # ids that one that is unknown is compared with: some ms


class Links(Protocol):
    """Makes links to the page of this coordinator."""

    async def link(self, caller: Caller, role: Role, run_id: str) -> tuple[str, float | None]:
        """Return one, and for how long it is good. Raises ``CoordinatorError``."""


class QueryService:
    """All methods about one run raise ``UnknownRun``. Who may call is decided before."""

    def __init__(
        self,
        driver: Driver,
        caller_of: Callable[[object], Caller] = lambda _: TRUSTED,
        links: Links | None = None,
        run_links: Sequence[str] = (),
    ) -> None:
        self._driver, self._caller_of = driver, caller_of
        self.readings = Readings(driver.now)
        self._links, self._run_links = links, run_links
        self.audited, self.notified = Recent(), Recent()
        limits = driver.limits
        self._watches, self._log_readers = Shares("watches", limits), Shares("log_readers", limits)
        self._stack_questions = Shares("stack_questions", limits)

    async def GetRun(self, request: pb.GetRunRequest, context: object = None) -> pb.GetRunResponse:
        state, run = self.find(request.run_id, request.generation)
        view = request.view or pb.VIEW_FULL
        return pb.GetRunResponse(
            run=run_status.run_message(state, run, view, now=self._driver.now())
        )

    async def GetJob(self, request: pb.GetJobRequest, context: object = None) -> pb.GetJobResponse:
        groups = groups_of(request.run_id, self._driver.journal.runs.states.values())
        if not groups:
            raise errors.UnknownRun(request.run_id)
        runs, now = self._driver.registry.runs, self._driver.now()
        return job_response(groups, runs, now=now, with_segments=request.with_segments)

    async def ListRuns(
        self, request: pb.ListRunsRequest, context: object = None
    ) -> pb.ListRunsResponse:
        cores, states = self._driver.registry.runs, self._driver.journal.runs.states.values()
        runs = ((state, cores.get(state.key)) for state in states)
        page = run_status.runs_page(request, runs, now=self._driver.now())
        if not request.page_token:
            jobs = all_jobs(self._driver.journal.runs.states.values()).values()
            now = self._driver.now()
            page.jobs.extend(job_message(groups, cores, now=now) for groups in jobs)
        for key, reason in self._driver.journal.set_aside.items():
            run_id, generation = id_and_generation(key)
            page.set_aside.add(run_id=run_id, generation=generation, reason=reason)
        return page

    async def ListAgents(
        self, request: pb.ListAgentsRequest, context: object = None
    ) -> pb.ListAgentsResponse:
        state, run = self.find(request.run_id, request.generation)
        return run_status.agents_page(request, state, run, now=self._driver.now())

    async def ListEvents(
        self, request: pb.ListEventsRequest, context: object = None
    ) -> pb.ListEventsResponse:
        state, _ = self.find(request.run_id, request.generation)
        return run_status.events_page(request, state, now=self._driver.now())

    async def GetReport(
        self, request: pb.GetReportRequest, context: object = None
    ) -> pb.GetReportResponse:
        """Return how a run ended. Raises ``Forbidden`` for callers of another run."""
        caller = self._caller_of(context)
        state = self._driver.journal.runs.find(request.run_id, request.generation)
        caller.check_run(request.run_id, job_of(state))
        state, _ = self.find(request.run_id, request.generation)
        is_of_run = bool(caller.run_id) or incarnation_of(request.incarnation_key) in state.members
        if caller.role is Role.JOIN and not is_of_run:
            raise errors.Forbidden(caller.name, "it does not prove that an agent of the run asks")
        if state.verdict is None:
            raise errors.UnknownRun(request.run_id, "that has ended")
        return pb.GetReportResponse(verdict=failure.verdict_message(state.verdict))

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object = None
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Yield what is decided on a run. Raises ``InvalidRequest`` or ``LimitReached``.

        A reader takes what there is when it is ready for more, so none is waited for.
        """
        state, _ = self.find(request.run_id, request.generation)
        runs, key, after = self._driver.journal.runs, state.key, request.after_sequence
        if after > state.events_count:
            allowed = f"0 to {state.events_count}, the latest event of this run"
            raise errors.InvalidRequest("after_sequence", str(after), allowed)
        with (
            self._watches.held(self._caller_of(context)),
            runs.watches.open(key, most=self._driver.limits.watches_max) as watch,
        ):
            while (latest := runs.states.get(key)) is not None:
                if latest.events_count > after:
                    events, missed = run_status.new_events(latest, after, now=self._driver.now())
                    after = events[-1].sequence if events else latest.events_count
                    if events:
                        yield pb.WatchEventsResponse(events=events, missed=missed)
                elif latest.verdict is not None:
                    return
                else:
                    await watch.news()

    async def GetStacks(self, request: pb.GetStacksRequest, context: Any) -> None:
        """Write the stacks of a run's workers. Raises ``LimitReached`` or ``Forbidden`` too."""
        may_signal, caller = request.may_signal, self._caller_of(context)
        if may_signal and caller.role is not Role.ADMIN:
            raise errors.Forbidden(caller.name, "a signal to workers needs the role admin")
        state, current = self._find_round(request.run_id)
        ask = self._driver.stacks.ask
        with self._stack_questions.held(caller):
            asked = await asked_of_round(state, current, request.ranks)
            answering = ask(request.run_id, current.round_id, asked, may_signal=may_signal)
            try:
                async with asyncio.timeout(STACKS_READ_WITHIN_S), aclosing(answering) as answers:
                    async for answer in answers:
                        await context.write(stacks.answer_message(answer))
            except TimeoutError:
                raise errors.LimitReached("stacks_read_within_s", STACKS_READ_WITHIN_S) from None

    async def DiagnoseHang(
        self, request: pb.DiagnoseHangRequest, context: object = None
    ) -> pb.DiagnoseHangResponse:
        """Say which rank others wait for. Raises ``NoWorkers`` or ``LimitReached``."""
        state, current = self._find_round(request.run_id)
        seen = SeenRanks(range(current.world_size))
        with self._stack_questions.held(self._caller_of(context)):
            await gather_evidence(self._driver.stacks, state, current, seen)
        # In a thread: 80,000 ranks take some 0.3 s.
        now = self._driver.now()
        hang = await asyncio.to_thread(diagnose_now, current.round_id, seen, now=now)
        written = None if hang is None else failure.hang_message(hang, now=self._driver.now())
        return pb.DiagnoseHangResponse(hang=written)

    async def GetHost(
        self, request: pb.GetHostRequest, context: object = None
    ) -> pb.GetHostResponse:
        driver = self._driver
        states = driver.journal.runs.states.values()
        runs = ((state, driver.registry.runs.get(state.key)) for state in states)
        host = host_message(request.name, runs, driver.drains, now=driver.now())
        if host is None:
            raise errors.UnknownHost(request.name)
        return host

    async def ListAudit(
        self, _request: pb.ListAuditRequest, _context: object = None
    ) -> pb.ListAuditResponse:
        return pb.ListAuditResponse(entries=self.audited)

    async def ListNotifications(
        self, _request: pb.ListNotificationsRequest, _context: object = None
    ) -> pb.ListNotificationsResponse:
        driver = self._driver
        states = [*driver.journal.runs.states.values()]
        response = pb.ListNotificationsResponse(
            notifications=self.notified,
            drains=[control.drain_message(drain, now=driver.now()) for drain in driver.drains],
            hosts=[pb.FailingHost(**host) for host in hosts_in_trouble(states)],
        )
        for number, state in enumerate(state for state in states if state.verdict is None):
            if number % RUNS_PER_TURN == 0:
                await asyncio.sleep(0)
            core = driver.registry.runs.get(state.key)
            run = run_status.run_message(state, core, pb.VIEW_BASIC, now=driver.now())
            if run.health.state in _FIRING and len(response.firing) < FIRING_MAX:
                response.firing.append(run)
        return response

    def _find_round(self, run_id: str) -> tuple[RunState, Round]:
        """Return a run and its round. Raises ``NoWorkers``."""
        state, _ = self.find(run_id, 0)
        if state.verdict is not None:
            raise errors.NoWorkers(run_id, "has ended: its workers are gone")
        if state.round is None or state.phase not in (Phase.RUNNING, Phase.ENDING):
            raise errors.NoWorkers(run_id, "has no workers now: it waits for a round")
        return state, state.round

    async def GetOverview(
        self, request: pb.GetOverviewRequest, context: object = None
    ) -> pb.GetOverviewResponse:
        state, run = self.find(request.run_id, request.generation)
        answer = await overview_of(self.readings, state, run, is_repeated=request.is_repeated)
        for name, url in links_of(self._run_links, state):
            answer.links.add(name=name, url=url)
        return answer

    async def WatchLogs(self, request: pb.WatchLogsRequest, context: Any) -> None:
        """Write output of a run's workers. Raises ``InvalidRequest`` or ``LimitReached`` too."""
        state, _ = self.find(request.run_id, request.generation)
        if state.round is None and not request.follow:
            raise errors.UnknownRun(request.run_id, "that has had workers")
        if state.verdict is not None or request.HasField("round_id"):
            with self._log_readers.held(self._caller_of(context)):
                await self._write_tails(request, state, context)
            return
        asked = logs.logs_asked(request, state)
        current, runs = state.round, self._driver.journal.runs
        agents = await asked_of_round(state, current, request.ranks) if current else {}
        with (
            self._log_readers.held(self._caller_of(context)),
            runs.watches.open(state.key, most=self._driver.limits.watches_max) as watch,
            self._driver.logs.open(asked, agents) as reader,
        ):
            reader.reading.begin({agent.incarnation: agent.cursors for agent in request.cursors})

            async def end_with_run() -> None:
                while (latest := runs.states.get(state.key)) and latest.verdict is None:
                    await watch.news()
                await reader.end()
                await asyncio.get_running_loop().create_future()

            await context.write(
                pb.WatchLogsResponse(
                    since_round=asked.since_round, rounds_kept=await self._rounds_kept(state)
                )
            )
            await until_one_ends(self._write_logs(reader, state.key, context), end_with_run())

    async def GetGoodput(
        self, request: pb.GetGoodputRequest, context: object = None
    ) -> pb.GetGoodputResponse:
        state, run = self.find(request.run_id, request.generation)
        with_segments = request.with_segments
        return goodput_message(state, run, now=self._driver.now(), with_segments=with_segments)

    async def GetRehearsal(
        self, request: pb.GetRehearsalRequest, context: object = None
    ) -> pb.GetRehearsalResponse:
        state, _ = self.find(request.run_id, request.generation)
        if state.rehearsal is None:
            raise errors.UnknownRun(request.run_id, "that was rehearsed")
        return control.rehearsal_message(state.rehearsal, now=self._driver.now())

    async def GetPageLink(
        self, request: pb.GetPageLinkRequest, context: object = None
    ) -> pb.GetPageLinkResponse:
        """Return a link to the page. Raises ``NoPage``, ``Forbidden`` or ``InvalidRequest``."""
        caller = self._caller_of(context)
        role = control.page_role(request.role, caller)
        is_job = groups_of(request.run_id, self._driver.journal.runs.states.values())
        if request.run_id and not is_job:
            self.find(request.run_id, 0)
        if self._links is None:
            raise errors.NoPage
        url, valid_s = await self._links.link(caller, role, request.run_id)
        left = None if valid_s is None else duration(valid_s)
        return pb.GetPageLinkResponse(url=url, time_left=left)

    async def GetStepTimes(
        self, request: pb.GetStepTimesRequest, context: object = None
    ) -> pb.GetStepTimesResponse:
        state, run = self.find(request.run_id, request.generation)
        return step_times_message(request, state, run, now=self._driver.now())

    async def _write_logs(self, reader: LogReader, key: str, context: Any) -> None:
        """Write what comes, no faster than is allowed."""
        since, clock = reader.reading.asked.since_round, asyncio.get_running_loop().time
        due, rate = clock(), self._driver.limits.log_bytes_per_s_max
        while (brought := await reader.take()) is not None:
            state = self._driver.journal.runs.states.get(key)
            member = None if state is None else state.members.get(brought.incarnation)
            message = logs.brought_message(brought, member, since)
            await context.write(message)
            due = max(due, clock()) + max(message.ByteSize(), LOG_MESSAGE_BYTES_LEAST) / rate
            if (delay_s := due - clock()) > LOG_PAUSE_S:
                await asyncio.sleep(delay_s)

    async def _rounds_kept(self, state: RunState, *, is_awaited: bool = False) -> list[int]:
        tails = self._driver.tails
        return [] if tails is None else await tails.rounds(state, is_awaited=is_awaited)

    async def _write_tails(
        self, request: pb.WatchLogsRequest, state: RunState, context: Any
    ) -> None:
        """Write the end of output that is kept of a round. Raises ``UnknownRun`` too."""
        rounds = await self._rounds_kept(state, is_awaited=True)
        if self._driver.tails is None or not rounds:
            raise errors.NoWorkers(request.run_id, "has no output that the coordinator has kept")
        round_id = request.round_id if request.HasField("round_id") else rounds[-1]
        if round_id not in rounds:
            allowed = f"a round whose output is kept: {ranges(rounds)}"
            raise errors.InvalidRequest("round", round_id, allowed)
        kept = await self._driver.tails.read(state, round_id)
        await context.write(pb.WatchLogsResponse(since_round=round_id, rounds_kept=rounds))
        for message in logs.tail_messages(kept, request, round_id):
            await context.write(message)

    def find(self, run_id: str, generation: int) -> tuple[RunState, IsolatedRun | None]:
        """Return a run; generation 0 is the latest. Raises ``UnknownRun`` or ``Unavailable``."""
        state = self._driver.journal.runs.find(run_id, generation)
        if not generation and (reason := self._driver.registry.why_set_aside(run_id)):
            raise errors.Unavailable(reason)
        if state is None:
            raise errors.UnknownRun(run_id, *self._which(run_id, generation))
        return state, self._driver.registry.runs.get(state.key)

    def _which(self, run_id: str, generation: int) -> list[str]:
        """Say what is not there of a run, or which runs have an id like that."""
        states = self._driver.journal.runs.states.values()
        of_id = [state.generation for state in states if state.run_id == run_id]
        if of_id:
            return [f"of generation {generation}, but of {listed(map(str, sorted(of_id)))}"]
        ids = list(islice(dict.fromkeys(state.run_id for state in states), SIMILAR_IDS_MAX))
        similar = get_close_matches(run_id, ids, n=3)
        return [f"(did you mean {listed(map(show_value, similar))}?)"] if similar else []
