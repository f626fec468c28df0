"""Shell. Runs as documents: what ``-o json`` writes, and the page is told; requests for them.

Names and meanings are those of docs/operating.md, and stay; what is not known is null.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass

from drumbeat.mapping import duration, seconds_of
from drumbeat.v1 import control_pb2, failure_pb2, query_pb2, session_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.message import Message

Document = dict[str, Any]
STREAMS = ("output", "stdout", "stderr")  # by their numbers in the protocol


# The types of requests, by the method.
REQUESTS = {
    method.name: method.input_type
    for service in (
        query_pb2.DESCRIPTOR.services_by_name["QueryService"],
        control_pb2.DESCRIPTOR.services_by_name["ControlService"],
    )
    for method in service.methods
}


def request_of(method: str, values: Mapping[str, Any]) -> Any:
    """Return the request of a method, with those of the values that it has a field for.

    A duration is given in seconds, a value of an enum as its word; ``None`` is not set.
    """
    kind, given = REQUESTS[method], dict[str, Any]()
    for field in kind.fields:
        if (value := values.get(field.name)) is None:
            continue
        if field.message_type is not None:
            value = duration(value)
        elif field.enum_type is not None and isinstance(value, str):
            value = _prefix(field.enum_type) + value.upper()
        given[field.name] = value
    return GetMessageClass(kind)(**given)


def set_aside_document(run: query_pb2.SetAsideRun) -> Document:
    """Return a run that cannot be read."""
    return {"run_id": run.run_id, "generation": run.generation, "reason": run.reason}


def run_document(run: query_pb2.Run) -> Document:
    """Return one run in short, as it stands in a list."""
    return {
        "run_id": run.run_id,
        "generation": run.generation,
        "phase": _word(query_pb2.RunPhase, run.phase),
        "reason": run.reason,
        "cause": _word(failure_pb2.VerdictCause, run.cause) if run.cause else None,
        "round_id": _optional(run, "round_id"),
        "restarts_used": run.restarts_used,
        "restarts_max": run.restarts_max,
        "agents_count": run.agents_count,
        "failures_count": run.failures_count,
        "ended_age_s": _seconds(run, "ended_age"),
    }


def status_document(
    overview: query_pb2.GetOverviewResponse,
    agents: Iterable[query_pb2.Agent],
    events: Iterable[query_pb2.RunEvent] | None = None,
) -> Document:
    """Return one run with all there is to see of it, or with other events than the latest."""
    run = overview.run
    return {
        **run_document(run),
        "round_reason": run.round.reason if run.HasField("round") else None,
        "world_size": run.round.world_size if run.HasField("round") else None,
        "iteration": _optional(run, "iteration"),
        "hang": hang_document(run.hang) if run.HasField("hang") else None,
        "restarts_in_process": run.iterations_restarted,
        "behind": overview.behind or None,
        "heartbeat_age_s": _seconds(overview, "heartbeat_age"),
        "stragglers": [straggler_document(each) for each in overview.stragglers],
        "stragglers_count": overview.stragglers_count,
        "memory_growth": [_growth(each) for each in overview.memory_growth],
        "steps_repeated": overview.steps_repeated,
        "agents": [_agent(agent, range(agent.local_world_size)) for agent in agents],
        "events": [
            event_document(event) for event in (overview.events if events is None else events)
        ],
    }


def overview_document(overview: query_pb2.GetOverviewResponse) -> Document:
    """Return the same with the workers alone that were chosen; ``left_out`` counts the others."""
    shown = [
        _agent(agent, [worker.local_rank for worker in agent.workers]) for agent in overview.agents
    ]
    rows = sum(max(1, len(agent["workers"])) for agent in shown)
    return {
        **status_document(overview, ()),
        "agents": shown,
        "left_out": max(0, overview.rows_count - rows),
    }


def agents_document(page: query_pb2.ListAgentsResponse) -> Document:
    """Return a page of a run's agents, with all their workers."""
    return {
        "round_id": _optional(page, "round_id"),
        "agents": [_agent(agent, range(agent.local_world_size)) for agent in page.agents],
        "next_page_token": page.next_page_token or None,
    }


def drain_document(drain: control_pb2.Drain) -> Document:
    """Return a drain that holds."""
    return {
        "name": drain.name,
        "run_id": drain.run_id or None,
        "age_s": seconds_of(drain.age),
        "caller": drain.caller or None,
        "reason": drain.reason or None,
    }


def event_document(event: query_pb2.RunEvent) -> Document:
    """Return one decision on a run."""
    return {
        "sequence": event.sequence,
        "age_s": seconds_of(event.age),
        "kind": _word(query_pb2.RunEventKind, event.kind),
        "reason": event.reason,
        "round_id": _optional(event, "round_id"),
        "caller": event.caller or None,
    }


def verdict_document(verdict: failure_pb2.Verdict) -> Document:
    """Return how a run ended, the causes first; ``step`` is the latest that a worker was at."""
    standings = (each.progress for each in verdict.report.progress)
    steps = [progress.step for progress in standings if progress.HasField("step")]
    return {
        "reason": verdict.reason,
        "earlier": list(verdict.report.earlier),
        "root_causes": [_failure(record) for record in verdict.report.root_causes],
        "victims": [_failure(record) for record in verdict.report.victims],
        "victims_count": verdict.report.victims_count,
        "world_size": verdict.report.world_size,
        "step": max(steps, default=None),
        "goodput": verdict.goodput or None,
        "hang": hang_document(verdict.report.hang) if verdict.report.HasField("hang") else None,
    }


def hang_document(hang: failure_pb2.HangDiagnosis) -> Document:
    """Return why a round hangs or hung; ``causes`` is empty if the evidence does not tell."""
    return {
        "round_id": hang.round_id,
        "is_over": hang.is_over,
        "is_ending": hang.is_ending,
        "age_s": _seconds(hang, "age"),
        "summary": hang.summary,
        "limit": _limit_word(hang.kind, hang.scope),
        "limit_s": seconds_of(hang.limit),
        "causes": [
            {
                "rank": each.rank,
                "name": each.agent,
                "host": each.host,
                "pid": each.pid or None,
                "place": each.place,
                "step": _optional(each.progress, "step"),
                "stacks": each.stacks,
                "notes": each.notes,
            }
            for each in hang.causes
        ],
        "causes_count": hang.causes_count,
        "groups": [
            {
                "count": each.count,
                "ranks": each.ranks,
                "place": each.place,
                "activity": each.activity,
                "is_cause": each.is_cause,
                "stack": each.stack,
            }
            for each in hang.groups
        ],
        "groups_count": hang.groups_count,
    }


def straggler_document(straggler: query_pb2.Straggler) -> Document:
    """Return a rank that takes longer for its steps than its peers."""
    return {
        "rank": straggler.rank,
        "name": straggler.name,
        "host": straggler.host,
        "step_time_s": seconds_of(straggler.step_time),
        "median_s": seconds_of(straggler.median),
        "is_busy_time": straggler.is_busy_time,
    }


def step_times_document(run_id: str, found: query_pb2.GetStepTimesResponse) -> Document:
    """Return how long steps took of late: lists of equal length, the oldest first."""
    return {
        "run_id": run_id,
        "round_id": found.round_id,
        "world_size": found.world_size,
        "ages_s": _floats(found.ages_seconds),
        "median_s": _floats(found.median_seconds),
        "median_busy_s": _floats(found.median_busy_seconds) or None,
        "ranks": [
            {
                "rank": row.rank,
                "name": row.name,
                "host": row.host,
                "step_time_s": _floats(row.step_seconds),
                "busy_s": _floats(row.busy_seconds) or None,
            }
            for row in found.ranks
        ],
        "stragglers": [straggler_document(each) for each in found.stragglers],
        "stragglers_count": found.stragglers_count,
    }


def _floats(values: Iterable[float]) -> list[float | None]:
    """Return numbers that are known, to some six digits: more are not kept."""
    return [None if value != value else float(f"{value:.6g}") for value in values]  # noqa: PLR0124


def goodput_document(
    run_id: str, found: query_pb2.GetGoodputResponse, *, with_segments: bool = False
) -> Document:
    """Return what the time of a run went into, and if that was asked for what it was when."""
    segments = {"segments": [_segment(segment) for segment in found.segments]}
    return {
        "run_id": run_id,
        "is_running": found.is_running,
        "whole_s": seconds_of(found.whole),
        "effective_ratio": _optional(found, "effective_ratio"),
        "parts": [
            {"part": _word(query_pb2.PartKind, part.kind), **_times(part)} for part in found.parts
        ],
        "causes": [
            {
                "cause": _word(query_pb2.LossCause, lost.cause),
                **_times(lost),
                "restarts": lost.restarts_count,
            }
            for lost in found.causes
        ],
        "hosts": [{"name": lost.name or None, **_times(lost)} for lost in found.hosts],
        "failures_count": found.failures_count,
        "mean_time_between_failures_s": _seconds(found, "mean_time_between_failures"),
        **(segments if with_segments else {}),
    }


def _segment(segment: query_pb2.GoodputSegment) -> Document:
    return {
        "age_s": seconds_of(segment.age),
        "time_s": seconds_of(segment.time),
        "part": _word(query_pb2.PartKind, segment.kind),
        "cause": _word(query_pb2.LossCause, segment.cause) if segment.cause else None,
        "host": segment.host or None,
        "round_id": _optional(segment, "round_id"),
        "iteration": _optional(segment, "iteration"),
    }


def _times(of: Any) -> Document:
    return {"time_s": seconds_of(of.time), "host_s": of.host_seconds}


def log_documents(response: query_pb2.WatchLogsResponse) -> Iterator[Document]:
    """Return output of workers, a document for each line and each note."""
    for piece in response.pieces:
        place = piece.next
        of = {
            "rank": place.rank,
            "round_id": place.round_id,
            "stream": STREAMS[place.stream] if place.stream else None,
            "name": response.name,
            "host": response.host,
        }
        if piece.missed:
            yield {**of, "missed": piece.missed}
        if piece.problem:
            yield {**of, "problem": piece.problem}
        for line in lines_of(piece.text):
            yield {**of, "line": line}


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, each as a terminal would leave it."""
    if not text:
        return []
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")]


def _failure(record: failure_pb2.FailureRecord) -> Document:
    hang = record.hang if record.HasField("hang") else None
    return {
        "rank": record.worker.rank,
        "local_rank": record.worker.local_rank,
        "host": record.host,
        "name": record.name,
        "pid": record.pid or None,
        "exit_code": record.exit_code,
        "signal_name": record.signal_name or None,
        "hang": _limit_word(hang.kind, hang.scope) if hang else None,
        "hang_s": seconds_of(hang.elapsed) if hang else None,
        "explanation": record.explanation,
        "message": record.message,
        "evidence": hang.evidence if hang else "",
        "stacks": hang.stacks if hang else "",
        "traceback": record.traceback,
        "stderr_tail": record.stderr_tail,
    }


def _limit_word(kind: int, scope: str) -> str:
    return " ".join(filter(None, (_word(failure_pb2.HangKind, kind), scope)))


def _agent(agent: query_pb2.Agent, local_ranks: Iterable[int]) -> Document:
    is_seated = agent.HasField("seat")
    known = {worker.local_rank: worker for worker in agent.workers}
    memory = {worker.local_rank: worker for worker in agent.memory.workers}
    return {
        "name": agent.name,
        "host": agent.host,
        "role": agent.role,
        "incarnation": agent.incarnation,
        "group_rank": agent.seat.group_rank if is_seated else None,
        "state": _word(session_pb2.GroupState, agent.state) if agent.state else None,
        "is_drained": agent.is_drained,
        "waiting_reason": agent.waiting_reason or None,
        "is_connected": agent.is_connected,
        "silence_s": _seconds(agent, "silence"),
        "version": agent.version or None,
        "labels": dict(agent.labels),
        "devices": agent.devices or None,
        "memory": _limit(agent.memory) if agent.HasField("memory") else None,
        "workers": [
            _worker(
                agent,
                known.get(local_rank) or failure_pb2.WorkerProgress(local_rank=local_rank),
                memory.get(local_rank) or failure_pb2.WorkerMemory(),
            )
            for local_rank in (local_ranks if is_seated else ())
        ],
    }


def _worker(
    agent: query_pb2.Agent, worker: failure_pb2.WorkerProgress, memory: failure_pb2.WorkerMemory
) -> Document:
    local_rank = worker.local_rank
    return {
        "rank": agent.seat.rank_first + local_rank,
        "local_rank": local_rank,
        "pid": next(islice(agent.pids, local_rank, None), 0) or None,
        "step": _optional(worker, "step"),
        "step_time_s": _seconds(worker, "step_time"),
        "heartbeat_age_s": _seconds(worker, "heartbeat_age"),
        "scope": worker.scope or None,
        "scope_age_s": _seconds(worker, "scope_age"),
        "is_stopped": worker.is_stopped,
        "memory_bytes": memory.resident_bytes or None,
        "memory_growth_bytes": memory.growth_bytes,
    }


def _limit(memory: failure_pb2.HostMemory | query_pb2.MemoryGrowth) -> Document:
    return {
        "used_bytes": memory.used_bytes or None,
        "limit_bytes": memory.limit_bytes or None,
        "is_cgroup": memory.is_cgroup,
    }


def _growth(found: query_pb2.MemoryGrowth) -> Document:
    return {
        "rank": found.rank,
        "name": found.name,
        "host": found.host,
        "memory_bytes": found.worker.resident_bytes,
        "memory_growth_bytes": found.worker.growth_bytes,
        **_limit(found),
    }


@lru_cache(maxsize=1_000)
def _word(kind: Any, number: int) -> str:
    """Return a value of an enum as one word in small letters; one of a later version: its number.

    Its prefix is that of the value 0, which is never shown.
    """
    found = kind.DESCRIPTOR.values_by_number.get(number)
    return (
        str(number) if found is None else found.name.removeprefix(_prefix(kind.DESCRIPTOR)).lower()
    )


def _prefix(kind: Any) -> str:
    return str(kind.values_by_number[0].name.removesuffix("UNSPECIFIED"))


def _optional(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _seconds(message: Message, field: str) -> float | None:
    return seconds_of(getattr(message, field)) if message.HasField(field) else None
