"""Shell. Runs, their agents and events as messages for readers, in pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, TypeVar

from drumbeat.coordinator.core.events import SessionOpened
from drumbeat.coordinator.core.model import AgentIdentity, Round, Seat
from drumbeat.coordinator.core.registry.isolation import IsolatedRun
from drumbeat.coordinator.core.run.history import entry_after
from drumbeat.coordinator.core.run.records import HistoryEntry
from drumbeat.coordinator.core.run.run import Run
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.observe.health import health_of
from drumbeat.coordinator.observe.overview import Glimpse, Growing, Overview
from drumbeat.coordinator.observe.steps.behind import Laggard, Peers, laggards, peers_of
from drumbeat.coordinator.observe.steps.progress import Progress, latest
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.failure import (
    PROGRESS,
    hang_message,
    limits_message,
    verdict_message,
)
from drumbeat.coordinator.wire.session import SPEC
from drumbeat.model import DURATION_MAX_S, GroupState, Standby
from drumbeat.text.durations import SECOND
from drumbeat.v1 import common_pb2, failure_pb2, query_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping, duration
from drumbeat.wire.messages import GPU_USE, HEALTH, MEMORY, REPLICA_GROUP, WORKER_MEMORY

AnyRun = Run | IsolatedRun
Row = TypeVar("Row")

# Rows in one answer, and agents and workers together, which take longest: the event loop writes as
# many within some 5 ms, and what else waits for it waits no longer.
PAGE_SIZE_MAX = 1_000
PAGE_MESSAGES_MAX = 500
PAGE_BYTES_MAX = 3 * 1024 * 1024  # gRPC takes 4 MiB unless it is told otherwise
EVENTS_IN_OVERVIEW = 10  # the latest
HIT_SHOWN_MAX = 8  # ranks and agents of a group of failures
OUTSIDE_IN_OVERVIEW = 16  # agents that are drained, beside the chosen ones
# Standbys are listed behind all that have a rank, and those that wait outside last.
_STANDBY_RANK, _OUTSIDE_RANK = 2**32, 2**32 + 1

_ROUND = MessageMapping(Round, query_pb2.Round, given=("seats", "is_preflight"))
_SEAT = MessageMapping(Seat, query_pb2.Seat, given=("agent",))
_NOT_SHOWN = (
    *("address", "has_store", "knows_several", "can_rehearse", "program", "arguments_digest"),
    *("host_id", "placement", "block"),
)
_AGENT = MessageMapping(AgentIdentity, query_pb2.Agent, given=_NOT_SHOWN)
_EVENT = MessageMapping(
    HistoryEntry,
    query_pb2.RunEvent,
    given=("at_s", "decision", "names", "count", "tail", "latest"),
)


def run_message(
    state: RunState, run: AnyRun | None, view: query_pb2.View.ValueType, *, now: float
) -> query_pb2.Run:
    """Write a run as it is at ``now``.

    ``state`` is what is journaled, ``run`` the core, for what is not: who is connected,
    and what agents say of themselves.
    """
    verdict, reason = state.verdict, state.reason
    more: dict[str, Any] = {} if verdict is None else {"cause": f"VERDICT_CAUSE_{verdict.cause}"}
    core = run
    if core and (core.state.phase, core.state.round_id) != (state.phase, state.round_id):
        core = None  # it has decided what is not journaled
    if core:
        reason = core.reason(now)  # what it waits for
    if state.current_hang is not None:
        reason = f"the round hangs: {state.current_hang.summary}"
    launcher, group = state.spec.launcher, state.spec.replica_group
    if launcher or group is not None:
        written = None if group is None else REPLICA_GROUP.write(group)
        more["spec"] = common_pb2.RunSpec(launcher=launcher, replica_group=written)
    if view == query_pb2.VIEW_FULL:
        more |= _full(state, now)
        if core and (until := core.waits_until) is not None:
            more["wait_left"] = duration(max(0.0, until - now))
    health, failures = health_of(state, core, now=now), state.observed.failures
    if failures.at_s is not None:
        more["last_failure"] = query_pb2.LastFailure(
            round_id=failures.round_id or 0, age=_age(failures.at_s, now), reason=failures.reason
        )
    return query_pb2.Run(
        run_id=state.run_id,
        generation=state.generation,
        phase=query_pb2.RunPhase.Value(f"RUN_PHASE_{state.phase}"),
        reason=reason,
        round_id=state.round_id,
        restart_count=state.restart_count,
        restarts_used=state.restarts_used_at(now),
        restarts_max=state.spec.restarts_max,
        agents_count=_agents_count(state),
        failures_count=state.failures_count,
        failed_count=state.observed.ledger.failures,
        lost_count=state.observed.lost_count,
        ended_age=None if state.ended_at is None else _age(state.ended_at, now),
        age=_age(state.created_at, now) if state.created_at else None,
        health=query_pb2.RunHealth(
            state=query_pb2.RunHealthState.Value(f"RUN_HEALTH_STATE_{health.state}"),
            reason=health.reason,
        ),
        labels=state.labels,
        step=health.ledger.highest_step,
        effective_ratio=health.ledger.ratio,
        **more,
    )


def _agents_count(state: RunState) -> int:
    if state.verdict is None or state.round is None:
        return len(state.members)
    return state.round.group_world_size  # its members are forgotten some time


def _full(state: RunState, now: float) -> dict[str, Any]:
    """Write what is told of one run alone."""
    verdict, iterations = state.verdict, state.iterations
    more: dict[str, Any] = {
        "spec": SPEC.write(state.spec),
        "round": None if state.round is None else _ROUND.write(state.round),
        "verdict": None if verdict is None else verdict_message(verdict),
        "limits": None if state.limits is None else limits_message(state.limits),
        "iterations_restarted": state.iterations_restarted,
        "failures_kept": len(state.failures),
        "event_sequence": state.events_count,
        "hang": None if state.hang is None else hang_message(state.hang, now=now),
        "failure_groups": failure_groups(state, now=now),
        "last_hosts": state.last_hosts,
    }
    if iterations is not None and iterations.iteration >= 0:
        more["iteration"] = iterations.iteration
    return more


def failure_groups(
    state: RunState, *, now: float, of: Collection[str] = ()
) -> list[query_pb2.FailureGroup]:
    """Write the failures of a run by cause, the latest first; all, or those of some agents."""
    hosts = 0 if state.round is None else state.round.group_world_size
    return [
        query_pb2.FailureGroup(
            cause=group.cause,
            count=group.count,
            ranks=sorted(group.ranks)[:HIT_SHOWN_MAX],
            ranks_count=len(group.ranks),
            names=list(group.names)[:HIT_SHOWN_MAX],
            names_count=len(group.names),
            age=_age(group.at_s, now),
            advice=group.advice(hosts),
        )
        for group in reversed(state.observed.failures.groups)
        if not of or not group.names.keys().isdisjoint(of)
    ]


def runs_page(
    request: query_pb2.ListRunsRequest,
    runs: Iterable[tuple[RunState, AnyRun | None]],
    *,
    now: float,
) -> query_pb2.ListRunsResponse:
    """Write a page of all runs. Raises ``InvalidRequest``."""
    generation, run_id = _position(request.page_token)
    rows = sorted(
        (row for row in runs if (row[0].run_id, row[0].generation) > (run_id, generation)),
        key=lambda row: (row[0].run_id, row[0].generation),
    )
    write = partial(run_message, view=request.view, now=now)
    messages = 4 if request.view == query_pb2.VIEW_FULL else 2  # of them, what a run takes
    page = _page(rows, lambda row: write(*row), request.page_size, lambda _: messages)
    response = query_pb2.ListRunsResponse(runs=page)
    if len(page) < len(rows):
        last = rows[len(page) - 1][0]
        response.next_page_token = f"{last.generation}:{last.run_id}"
    return response


def agents_page(
    request: query_pb2.ListAgentsRequest, state: RunState, run: AnyRun | None, *, now: float
) -> query_pb2.ListAgentsResponse:
    """Write a page of a run's agents. Raises ``InvalidRequest``.

    Linear in the page, and in standbys where it comes to them.
    """
    after, is_full = _position(request.page_token), request.view == query_pb2.VIEW_FULL
    rows = _agent_rows(state, after)
    waiting = run.outside() if run is not None and len(rows) <= PAGE_SIZE_MAX else ()
    outside = {opened.agent.incarnation: (opened, reason) for opened, reason in waiting}
    rows += sorted(row for i in outside if (row := (_OUTSIDE_RANK, i)) > after)

    def write(row: tuple[int, str]) -> query_pb2.Agent:
        rank, incarnation = row
        if rank == _OUTSIDE_RANK:
            return _outsider(*outside[incarnation])
        return agent_message(state, run, incarnation, is_full, now)

    page = _page(rows, write, request.page_size, _messages_in)
    round_id = None if state.round is None else state.round.round_id
    response = query_pb2.ListAgentsResponse(agents=page, round_id=round_id)
    if len(page) < len(rows):
        rank, incarnation = rows[len(page) - 1]
        response.next_page_token = f"{rank}:{incarnation}"
    return response


def _messages_in(agent: query_pb2.Agent) -> int:
    return 1 + len(agent.workers) + len(agent.memory.workers)


def _agent_rows(state: RunState, after: tuple[int, str]) -> list[tuple[int, str]]:
    """Return rank and incarnation of agents behind a row, in order, more than a page has if any."""
    # Seats are in order of ranks, and none has a rank below its index.
    seats = islice(state.seats.items(), max(0, after[0]), None) if after[0] < _STANDBY_RANK else ()
    seated = ((seat.group_rank, i) for i, seat in seats if i in state.members)
    rows = list(islice((row for row in seated if row > after), PAGE_SIZE_MAX + 1))
    if len(rows) <= PAGE_SIZE_MAX:
        standbys = ((_STANDBY_RANK, i) for i in state.members if i not in state.seats)
        rows += nsmallest(PAGE_SIZE_MAX + 1, (row for row in standbys if row > after))
    return rows


def _outsider(opened: SessionOpened, reason: str) -> query_pb2.Agent:
    """Write one that is drained and waits to be let in."""
    message: query_pb2.Agent = _AGENT.write(opened.agent)
    message.is_connected = message.is_drained = True
    message.waiting_reason, message.version = reason, opened.version
    message.devices = opened.devices
    message.labels.update(opened.labels)
    message.state = session_pb2.GroupState.Value(f"GROUP_STATE_{opened.beat.state}")
    return message


def events_page(
    request: query_pb2.ListEventsRequest, state: RunState, *, now: float
) -> query_pb2.ListEventsResponse:
    """Write a page of what was decided on a run. None of it tells what the reader knows."""

    def event(entry: HistoryEntry) -> query_pb2.RunEvent:
        entry = entry_after(entry, request.after_sequence)
        kind = f"RUN_EVENT_KIND_{entry.decision.upper().replace(' ', '_')}"
        message: query_pb2.RunEvent = _EVENT.write(entry, kind=kind, age=_age(entry.at_s, now))
        message.count = entry.count if entry.count > 1 else 0
        return message

    rows = [entry for entry in state.history if entry.sequence > request.after_sequence]
    page = _page(rows, event, request.page_size)
    return query_pb2.ListEventsResponse(events=page, has_more=len(page) < len(rows))


def new_events(
    state: RunState, after: int, *, now: float
) -> tuple[Sequence[query_pb2.RunEvent], int]:
    """Return a page of the events after one, and how many of these are forgotten."""
    events = events_page(query_pb2.ListEventsRequest(after_sequence=after), state, now=now).events
    last = events[-1].sequence if events else state.events_count
    return events, last - after - sum(event.count or 1 for event in events)


def glimpses(state: RunState, run: AnyRun | None) -> Iterator[Glimpse]:
    """Yield a run's agents in the order in which they are listed, each as it is by then.

    All are in their places of the round that is there at the beginning.
    """
    current, has_ended = state.round, state.phase is Phase.ENDED
    seats = current.seats if current is not None else {}
    standbys = sorted(i for i in state.members if i not in seats)
    peers = behind_peers(state, run)
    for incarnation in [*seats, *standbys]:
        if (who := state.members.get(incarnation)) is None:
            continue
        presence = run.members.presences.get(incarnation) if run is not None else None
        seat = None
        if not has_ended and incarnation not in state.given_up:
            seat = seats.get(incarnation)
        workers: Sequence[WorkerProgress] = ()
        behind: Mapping[int, Laggard] = {}
        memory = None
        if seat is not None and current is not None and presence is not None:
            host, round_id = presence.whereabouts, current.round_id
            workers = [worker for worker, _ in host.received(round_id).values()]
            memory = presence.beat.memory_in(round_id)
            if who.role in peers:
                behind = laggards(peers[who.role], host, round_id, seat)
        yield Glimpse(
            incarnation,
            who.name,
            run is not None and run.members.is_present(incarnation),
            presence is not None and presence.beat.state is GroupState.FAILED,
            presence.heard_at if presence is not None else None,
            seat.rank_first if seat is not None else None,
            who.local_world_size,
            workers,
            behind,
            memory,
        )


def behind_peers(state: RunState, run: AnyRun | None) -> Mapping[str, Peers]:
    """Return with which ranks those of each role are compared; none unless a round runs."""
    if run is None or state.round is None or state.phase is not Phase.RUNNING:
        return {}
    return peers_of(state.round, run.members.presences)


def overview_message(
    state: RunState, run: AnyRun | None, overview: Overview, *, now: float
) -> query_pb2.GetOverviewResponse:
    """Write what an overview chose as it is ``now``."""
    before = state.history[:-EVENTS_IN_OVERVIEW]
    after = before[-1].sequence if before else 0
    latest = query_pb2.ListEventsRequest(after_sequence=after)
    response = query_pb2.GetOverviewResponse(
        run=run_message(state, run, query_pb2.VIEW_FULL, now=now),
        behind=overview.behind(),
        rows_count=overview.rows_count,
        events=events_page(latest, state, now=now).events,
    )
    for incarnation, local_ranks in overview.chosen().items():
        if incarnation not in state.members:
            continue  # it has left meanwhile
        agent = agent_message(state, run, incarnation, True, now)
        known = {worker.local_rank: worker for worker in agent.workers}
        del agent.workers[:]
        if agent.HasField("seat"):
            absent = failure_pb2.WorkerProgress
            agent.workers.extend(known.get(i) or absent(local_rank=i) for i in local_ranks)
        response.agents.append(agent)
    response.steps_repeated = state.observed.ledger.steps_repeated
    observer = None if run is None else run.members.observer
    if observer is not None and (heartbeat := observer.meter.marks.progress) is not None:
        response.heartbeat_age.CopyFrom(_age(heartbeat / SECOND, now))
    if (progress := progress_message(state, run, now=now)).ByteSize():
        response.progress.CopyFrom(progress)
    response.memory_growth.extend(_growth(growth, state) for growth in overview.growing())
    outside = run.outside() if run is not None else []
    response.rows_count += len(outside)
    response.agents.extend(_outsider(*row) for row in outside[:OUTSIDE_IN_OVERVIEW])
    return response


def progress_message(state: RunState, run: AnyRun | None, *, now: float) -> query_pb2.Progress:
    """Write how far training is; a coordinator that was started again hears it with the beats."""
    observed, said = state.observed, Progress() if run is None else run.members.observer.meter.said
    step, rate = said.pace.step, said.pace.per_second(now)
    total = said.steps_total or observed.steps_total
    steps = [known for known in (step, observed.ledger.highest_step) if known is not None]
    message = query_pb2.Progress(
        step=step,
        steps_total=total,
        steps_per_second=rate,
        step_farthest=max(0, *steps) if steps else None,
    )
    if step is not None and rate and 0 < (left_s := (total - step) / rate) < DURATION_MAX_S:
        message.time_left.CopyFrom(duration(left_s))
    if saved := latest(observed.checkpoint, said.checkpoint):
        message.checkpoint_step = saved[1]
        message.checkpoint_age.CopyFrom(_age(saved[0], now))
    return message


def _growth(growing: Growing, state: RunState) -> query_pb2.MemoryGrowth:
    message = query_pb2.MemoryGrowth(
        rank=growing.rank,
        used_bytes=growing.host.used_bytes,
        limit_bytes=growing.host.limit_bytes,
        is_cgroup=growing.host.is_cgroup,
        worker=WORKER_MEMORY.write(growing.worker),
    )
    if (who := state.members.get(growing.incarnation)) is not None:  # else it has left meanwhile
        message.name, message.host = who.name, who.host
    return message


def _page(
    rows: Sequence[Row],
    write: Callable[[Row], Any],
    page_size: int,
    messages_in: Callable[[Any], int] = lambda _: 0,
) -> list[Any]:
    """Write as many rows as a page holds, at least one."""
    page: list[Any] = []
    size, room = min(page_size or PAGE_SIZE_MAX, PAGE_SIZE_MAX), PAGE_BYTES_MAX
    left = PAGE_MESSAGES_MAX
    for row in rows[:size]:
        message = write(row)
        room -= message.ByteSize()
        left -= messages_in(message)
        if min(room, left) < 0 and page:
            break
        page.append(message)
    return page


def agent_message(
    state: RunState, run: AnyRun | None, incarnation: str, is_full: bool, now: float
) -> query_pb2.Agent:
    """Write a member of a run; only if it ``is_full`` with its workers, memory and GPUs."""
    message: query_pb2.Agent = _AGENT.write(state.members[incarnation])
    # Of an ended run only group rank 0 is known; half a list would mislead.
    if state.round is not None and state.phase is not Phase.ENDED and state.is_seated(incarnation):
        message.seat.MergeFrom(_SEAT.write(state.round.seats[incarnation]))
    presence = run.members.presences.get(incarnation) if run is not None else None
    if run is None or presence is None:
        return message
    message.is_connected = incarnation in run.members.connected
    if presence.session_id is not None:
        message.version, message.devices = presence.version, presence.devices
        message.labels.update(presence.labels)
    if presence.pushed is not None and isinstance(presence.pushed.state, Standby):
        message.waiting_reason = presence.pushed.state.reason
    if presence.session_id is not None and presence.beat.health is not None:
        message.health.CopyFrom(HEALTH.write(presence.beat.health))
    if presence.heard_at is not None:
        message.state = session_pb2.GroupState.Value(f"GROUP_STATE_{presence.beat.state}")
        message.silence.MergeFrom(_age(presence.heard_at, now))
    if is_full and presence.session_id is not None and presence.gpus is not None:
        message.gpus.CopyFrom(GPU_USE.write(presence.gpus))
    if is_full and state.round is not None:
        workers = presence.whereabouts.in_round(state.round.round_id, now=now)
        message.workers.extend(map(PROGRESS.write, workers))
        message.log_dir = presence.beat.log_dir
        message.pids.extend(presence.whereabouts.pids_in(state.round.round_id))
        if (memory := presence.beat.memory_in(state.round.round_id)) is not None:
            message.memory.CopyFrom(MEMORY.write(memory))
    return message


def _age(instant: float, now: float) -> Any:
    return duration(max(0.0, now - instant))


def agents_from(group_rank: int | None) -> str:
    """Return the token of the page that begins with this group rank; None: with the standbys."""
    return f"{_STANDBY_RANK if group_rank is None else group_rank}:"


def _position(token: str) -> tuple[int, str]:
    """Read the row that a page ended at: rows that come or go move no other to another page."""
    if not token:
        return -1, ""
    number, separator, name = token.partition(":")
    if not separator or not (number.isascii() and number.isdigit()):
        raise InvalidRequest("page_token", token, "next_page_token of an answer, or nothing")
    return int(number), name
