"""Shell. Runs as documents: what ``-o json`` writes, and the page is told; requests for them.

Names and meanings are those of docs/operating.md, and stay; what is not known is null.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from drumbeat.mapping import duration, seconds_of
from drumbeat.v1 import control_pb2, failure_pb2, query_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.descriptor import EnumDescriptor

Document = dict[str, Any]
M = TypeVar("M", bound=Message)
Write = Callable[[Any], Any]  # writes a message, or a value of one
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


def _table(kind: type[M], keys: str, **parts: Write) -> Callable[[M], Document]:
    """Return what writes messages with these keys, in this order; durations end in ``_s``.

    ``key=field.field``: the protocol has another name for it, or it is in another message.
    ``key?``: it is null where it, or the message that it is in, is not set or is empty.
    Messages, and lists and maps of them, are written by the ``parts`` that have their keys.
    """
    reads = {}
    for each in keys.split():
        key, _, path = each.removesuffix("?").partition("=")
        reads[key] = _read(kind.DESCRIPTOR, path or key, parts.get(key), may_be_null="?" in each)
    pairs = tuple(reads.items())
    return lambda message: {key: read(message) for key, read in pairs}


def _read(kind: Any, path: str, part: Write | None, *, may_be_null: bool) -> Write:
    """Return what reads a field from messages of a type."""
    name, _, rest = path.partition(".")
    name = name if name in kind.fields_by_name else name.removesuffix("_s")
    field, get = kind.fields_by_name[name], attrgetter(name)
    if rest:
        inner = field.message_type.fields_by_name[rest]
        write = _read(
            field.message_type, rest, part, may_be_null=may_be_null and inner.has_presence
        )
    elif part is not None:
        write = part
    elif field.default_value == []:
        write = _floats
    elif field.enum_type is not None:
        write = _words(field.enum_type)
    elif field.message_type is not None:
        write = seconds_of
    elif may_be_null and not field.has_presence:
        return lambda message: get(message) or None
    elif not may_be_null:
        return get
    else:
        write = _same
    if not may_be_null:
        return lambda message: write(get(message))
    if field.has_presence:
        return lambda message: write(get(message)) if message.HasField(name) else None
    return lambda message: write(value) if (value := get(message)) else None


def _each(write: Write) -> Write:
    return lambda messages: [write(message) for message in messages]


def _same(value: Any) -> Any:
    return value


def _floats(values: Iterable[float]) -> list[float | None]:
    """Return numbers that are known, to some six digits: more are not kept."""
    return [None if value != value else float(f"{value:.6g}") for value in values]  # noqa: PLR0124


def _words(kind: EnumDescriptor) -> Write:
    """Return what writes values as one small word, and those of later versions as numbers."""
    prefix = _prefix(kind)
    words = {
        number: value.name.removeprefix(prefix).lower()
        for number, value in kind.values_by_number.items()
    }
    return lambda number: words.get(number) or str(number)


def _prefix(kind: EnumDescriptor) -> str:
    """Return what the names of an enum's values begin with; the value 0 is never shown."""
    return kind.values_by_number[0].name.removesuffix("UNSPECIFIED")


_HANG_KIND = _words(failure_pb2.HangKind.DESCRIPTOR)
_HANG = _table(
    failure_pb2.HangDiagnosis,
    "round_id is_over is_ending age_s? summary limit=kind limit_s causes causes_count groups "
    "groups_count",
    causes=_each(
        _table(
            failure_pb2.HungRank,
            "rank name=agent host pid? place step=progress.step? stacks notes",
        )
    ),
    groups=_each(_table(failure_pb2.HangGroup, "count ranks place activity is_cause stack")),
)


def hang_document(hang: failure_pb2.HangDiagnosis) -> Document:
    """Return why a round hangs or hung; ``causes`` is empty if the evidence does not tell."""
    return {**_HANG(hang), "limit": _limit_word(hang.kind, hang.scope)}


set_aside_document = _table(query_pb2.SetAsideRun, "run_id generation reason")
coordinator_document = _table(query_pb2.Coordinator, "address is_leader is_this version?")
drain_document = _table(control_pb2.Drain, "name run_id? age_s caller? reason?")
event_document = _table(query_pb2.RunEvent, "sequence age_s kind reason round_id? caller?")
straggler_document = _table(query_pb2.Straggler, "rank name host step_time_s median_s is_busy_time")
# One run in short, as it stands in a list, and what is told beside that of one alone.
run_document = _table(
    query_pb2.Run,
    "run_id generation phase reason cause? round_id? restarts_used restarts_max agents_count "
    "failures_count ended_age_s?",
)
_RUN = _table(
    query_pb2.Run,
    "round_reason=round.reason? world_size=round.world_size? iteration? hang? "
    "restarts_in_process=iterations_restarted",
    hang=hang_document,
)
_OVERVIEW = _table(
    query_pb2.GetOverviewResponse,
    "behind? heartbeat_age_s? stragglers stragglers_count memory_growth steps_repeated",
    stragglers=_each(straggler_document),
    memory_growth=_each(
        _table(
            query_pb2.MemoryGrowth,
            "rank name host memory_bytes=worker.resident_bytes "
            "memory_growth_bytes=worker.growth_bytes used_bytes? limit_bytes? is_cgroup",
        )
    ),
)


def status_document(
    overview: query_pb2.GetOverviewResponse,
    agents: Iterable[query_pb2.Agent],
    events: Iterable[query_pb2.RunEvent] | None = None,
) -> Document:
    """Return one run with all there is to see of it, or with other events than the latest."""
    return {
        **run_document(overview.run),
        **_RUN(overview.run),
        **_OVERVIEW(overview),
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


_STEP_TIMES = _table(
    query_pb2.GetStepTimesResponse,
    "round_id world_size ages_s=ages_seconds median_s=median_seconds "
    "median_busy_s=median_busy_seconds? ranks stragglers stragglers_count",
    ranks=_each(
        _table(
            query_pb2.RankStepTimes,
            "rank name host step_time_s=step_seconds busy_s=busy_seconds?",
        )
    ),
    stragglers=_each(straggler_document),
)


def step_times_document(run_id: str, found: query_pb2.GetStepTimesResponse) -> Document:
    """Return how long steps took of late: lists of equal length, the oldest first."""
    return {"run_id": run_id, **_STEP_TIMES(found)}


_GOODPUT = _table(
    query_pb2.GetGoodputResponse,
    "is_running whole_s effective_ratio? parts causes hosts failures_count "
    "mean_time_between_failures_s?",
    parts=_each(_table(query_pb2.GoodputPart, "part=kind time_s host_s=host_seconds")),
    causes=_each(
        _table(query_pb2.LostTime, "cause time_s host_s=host_seconds restarts=restarts_count")
    ),
    hosts=_each(_table(query_pb2.LostHost, "name? time_s host_s=host_seconds")),
)
_SEGMENT = _table(
    query_pb2.GoodputSegment, "age_s time_s part=kind cause? host? round_id? iteration?"
)


def goodput_document(
    run_id: str, found: query_pb2.GetGoodputResponse, *, with_segments: bool = False
) -> Document:
    """Return what the time of a run went into, and if that was asked for what it was when."""
    segments = {"segments": [_SEGMENT(segment) for segment in found.segments]}
    return {"run_id": run_id, **_GOODPUT(found), **(segments if with_segments else {})}


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


_FAILURE = _table(
    failure_pb2.FailureRecord,
    "rank=worker.rank local_rank=worker.local_rank host name pid? exit_code signal_name? "
    "hang=hang.kind? hang_s=hang.elapsed? explanation message evidence=hang.evidence "
    "stacks=hang.stacks traceback stderr_tail",
)


def _failure(record: failure_pb2.FailureRecord) -> Document:
    document, hang = _FAILURE(record), record.hang
    if record.HasField("hang"):
        document |= {"hang": _limit_word(hang.kind, hang.scope), "hang_s": seconds_of(hang.elapsed)}
    return document


def _limit_word(kind: int, scope: str) -> str:
    return " ".join(filter(None, (_HANG_KIND(kind), scope)))


_AGENT = _table(
    query_pb2.Agent,
    "name host role incarnation group_rank=seat.group_rank? state? is_drained waiting_reason? "
    "is_connected silence_s? version? labels devices? memory?",
    labels=dict,
    memory=_table(failure_pb2.HostMemory, "used_bytes? limit_bytes? is_cgroup"),
)


def _agent(agent: query_pb2.Agent, local_ranks: Iterable[int]) -> Document:
    known = {worker.local_rank: worker for worker in agent.workers}
    memory = {worker.local_rank: worker for worker in agent.memory.workers}
    return {
        **_AGENT(agent),
        "workers": [
            _worker(
                agent,
                known.get(local_rank) or failure_pb2.WorkerProgress(local_rank=local_rank),
                memory.get(local_rank) or failure_pb2.WorkerMemory(),
            )
            for local_rank in (local_ranks if agent.HasField("seat") else ())
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


def _optional(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _seconds(message: Message, field: str) -> float | None:
    return seconds_of(getattr(message, field)) if message.HasField(field) else None
