"""Shell. Messages as documents, for ``-o json`` and the page, and requests from plain values.

Names and meanings are those of docs/operating.md, and stay; what is not known is null. The writers
are made once for each type of message; ``MessageToDict`` of protobuf takes four to six times as
long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from drumbeat.coordinator.api.explanation import explanation
from drumbeat.v1 import control_pb2, failure_pb2, query_pb2
from drumbeat.wire.mapping import duration, seconds_of

Document = dict[str, Any]
Write = Callable[[Any], Any]  # writes a message, or a value of one
_DURATION = "google.protobuf.Duration"
STREAMS = ("output", "stdout", "stderr")  # by their numbers in the protocol

# The documents of messages, where they are not all fields with the names of the protocol. A name
# that ends in _s is that of a duration. ``key=field.field``: the protocol has another name for it,
# or it is in another message. ``key?``: null where it, or the message that it is in, is not set or
# is empty.
_SHAPES = {
    "Agent": "name host role incarnation group_rank=seat.group_rank? state? is_drained "
    "waiting_reason? is_connected silence_s? version? labels devices? memory? health=health.state? "
    "health_reason=health.reason? gpus? log_dir?",
    "GetHostResponse": "name runs drains",
    "ListNotificationsResponse": "firing drains hosts notifications",
    "HostRun": "run lost_s agents failure_groups",
    "Coordinator": "address is_leader is_this version?",
    "DiagnoseHangResponse": "hang?",
    "Drain": "name run_id? age_s time_left_s? caller? reason? host_id?",
    "FailureRecord": "rank=worker.rank local_rank=worker.local_rank host name pid? exit_code "
    "signal_name? hang=hang.kind? hang_s=hang.elapsed? explanation message evidence=hang.evidence "
    "stacks=hang.stacks traceback stderr_tail output_files",
    "GetGoodputResponse": "is_running whole_s effective_ratio? parts causes hosts failures_count "
    "mean_time_between_failures_s? workers_per_host",
    "GetJobResponse": "job groups goodput",
    "GetOverviewResponse": "behind? heartbeat_age_s? stragglers stragglers_count memory_growth "
    "steps_repeated progress? links",
    "GetStepTimesResponse": "round_id world_size ages_s=ages_seconds median_s=median_seconds "
    "median_busy_s=median_busy_seconds? ranks stragglers stragglers_count",
    "GoodputPart": "part=kind time_s host_s=host_seconds",
    "GoodputSegment": "age_s time_s part=kind cause? host? round_id? iteration? "
    "host_s=host_seconds",
    "HangDiagnosis": "round_id is_over is_ending age_s? summary collective? limit=kind limit_s "
    "causes causes_count groups groups_count",
    "HostMemory": "used_bytes? limit_bytes? is_cgroup",
    "HungRank": "rank name=agent host pid? place step=progress.step? collective? stacks notes",
    "Job": "run_id phase reason cause? groups_count groups_min agents_count restarts_used "
    "restarts_max ended_age_s? health=health.state? health_reason=health.reason? age_s?",
    "JobGroup": "index run step? unhealthy_count goodput",
    "ListCoordinatorsResponse": "coordinators term? reason?",
    "LostHost": "name? time_s host_s=host_seconds",
    "LostTime": "cause time_s host_s=host_seconds restarts=restarts_count",
    "MemoryGrowth": "rank name host memory_bytes=worker.resident_bytes "
    "memory_growth_bytes=worker.growth_bytes used_bytes? limit_bytes? is_cgroup",
    "RankStepTimes": "rank name host step_time_s=step_seconds busy_s=busy_seconds?",
    "Run": "run_id generation phase reason cause? round_id? launcher=spec.launcher? "
    "job=spec.replica_group.job? restarts_used restarts_max "
    "agents_count lost_count failed_count failures_count ended_age_s? age_s? health=health.state? "
    "health_reason=health.reason? last_failure? labels step? effective_ratio?",
    "RunEvent": "sequence age_s kind reason round_id? caller? count? is_failure",
    "Straggler": "rank name host step_time_s median_s is_busy_time",
    "Token": "token_id role run_id? age_s time_left_s? created_by?",
    "Verdict": "reason earlier=report.earlier root_causes=report.root_causes "
    "victims=report.victims victims_count=report.victims_count world_size=report.world_size "
    "goodput? hang=report.hang?",
    "WorkerProgress": "step? step_time_s? heartbeat_age_s? scope? scope_age_s? is_stopped",
}
_RUN_ALONE = (
    "round_reason=round.reason? world_size=round.world_size? iteration? hang? "
    "restarts_in_process=iterations_restarted failure_groups last_hosts wait_left_s? "
    "agents_min=spec.agents_min agents_max=spec.agents_max "
    "groups_count=spec.replica_group.count?"
)


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
        elif field.enum_type is not None and not isinstance(value, int):
            words = [value] if isinstance(value, str) else value
            names = [_prefix(field.enum_type) + w.upper().replace("-", "_") for w in words]
            value = names[0] if isinstance(value, str) else names
        given[field.name] = value
    return GetMessageClass(kind)(**given)


def document_of(message: Message) -> Document:
    """Return a message as a document, with the messages in it."""
    document: Document = _writer(message.DESCRIPTOR)(message)
    return document


@cache
def _writer(kind: Descriptor) -> Write:
    """Return what writes messages of a type."""
    if kind.full_name == _DURATION:
        return seconds_of
    if kind.GetOptions().map_entry:
        return dict
    keys = _SHAPES.get(kind.name) or " ".join(map(_key, kind.fields))
    write, refine = _shape(kind, keys), _REFINED.get(kind.name)
    return write if refine is None else lambda message: refine(message, write(message))


def _key(field: FieldDescriptor) -> str:
    """Return the key of a field where no shape has another one."""
    is_duration = field.message_type is not None and field.message_type.full_name == _DURATION
    return f"{field.name}{'_s' * is_duration}{'?' * field.has_presence}"


def _shape(kind: Descriptor, keys: str) -> Callable[[Any], Document]:
    """Return what writes messages with these keys, in the order of their declaration."""
    reads = []
    for word in keys.split():
        key, _, path = word.removesuffix("?").partition("=")
        reads.append((key, _read(kind, path or key, may_be_null="?" in word)))
    return lambda message: {key: read(message) for key, read in reads}


def _read(kind: Any, path: str, *, may_be_null: bool) -> Write:
    """Return what reads a field from messages of a type."""
    name, _, rest = path.partition(".")
    name = name if name in kind.fields_by_name else name.removesuffix("_s")
    field, get = kind.fields_by_name[name], attrgetter(name)
    write: Write | None = None
    if rest:
        inner = field.message_type.fields_by_name[rest.partition(".")[0]]
        is_optional = inner.has_presence or inner.type == FieldDescriptor.TYPE_STRING
        write = _read(field.message_type, rest, may_be_null=may_be_null and is_optional)
    elif field.message_type is not None:
        write = _writer(field.message_type)
        if field.default_value == [] and write is not dict:
            write = _all_by(write)
    elif field.enum_type is not None:
        write = _words(field.enum_type)
    elif field.default_value == []:
        is_float = field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
        write = _floats if is_float else list
    if may_be_null and field.has_presence:
        convert = write or (lambda value: value)
        return lambda message: convert(get(message)) if message.HasField(name) else None
    if write is None:
        return (lambda message: get(message) or None) if may_be_null else get
    if may_be_null:
        return lambda message: write(value) if (value := get(message)) else None
    return lambda message: write(get(message))


def _all_by(write: Write) -> Write:
    return lambda messages: [write(message) for message in messages]


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


def _limit(hang: failure_pb2.HangDiagnosis | failure_pb2.Hang) -> str:
    """Name the limit that a worker exceeded: its kind, and of what."""
    return " ".join(filter(None, (_HANG_KIND(hang.kind), hang.scope)))


_HANG_KIND = _words(failure_pb2.HangKind.DESCRIPTOR)


def _failure(record: failure_pb2.FailureRecord, document: Document) -> Document:
    return {**document, "hang": _limit(record.hang)} if record.HasField("hang") else document


def _group(group: query_pb2.JobGroup, document: Document) -> Document:
    if group.goodput.segments:
        segments = [document_of(segment) for segment in group.goodput.segments]
        document["goodput"]["segments"] = segments
    return {**document.pop("run"), **document}


def _host_run(row: query_pb2.HostRun, document: Document) -> Document:
    agents = [_agent(agent, range(agent.local_world_size)) for agent in row.agents]
    return {**document.pop("run"), **document, "agents": agents}


def _token(token: control_pb2.Token, document: Document) -> Document:
    is_expired = document["time_left_s"] == 0
    state = "revoked" if token.is_revoked else "expired" if is_expired else "valid"
    return {**document, "state": state}


def _verdict(verdict: failure_pb2.Verdict, document: Document) -> Document:
    """Add the latest step that a worker was at."""
    standings = (rank.progress for rank in verdict.report.progress)
    steps = [progress.step for progress in standings if progress.HasField("step")]
    return {**document, "step": max(steps, default=None)}


# What documents have that no single field says.
_REFINED: dict[str, Callable[[Any, Document], Document]] = {
    "FailureRecord": _failure,
    "ForgetRunResponse": lambda _, document: {**document, "outcome": "it is forgotten"},
    "GetJobResponse": lambda _, document: {**document.pop("job"), **document},
    "HangDiagnosis": lambda hang, document: {**document, "limit": _limit(hang)},
    "HostRun": _host_run,
    "JobGroup": _group,
    "Token": _token,
    "Verdict": _verdict,
}
_run_alone = _shape(query_pb2.Run.DESCRIPTOR, _RUN_ALONE)


def status_document(
    overview: query_pb2.GetOverviewResponse,
    agents: Iterable[query_pb2.Agent],
    events: Iterable[query_pb2.RunEvent] | None = None,
) -> Document:
    """Return one run with all there is to see of it, or with other events than the latest."""
    shown = overview.events if events is None else events
    return {
        **document_of(overview.run),
        **_run_alone(overview.run),
        **document_of(overview),
        "agents": [_agent(agent, range(agent.local_world_size)) for agent in agents],
        "events": [document_of(event) for event in shown],
    }


def overview_document(overview: query_pb2.GetOverviewResponse) -> Document:
    """Return the same with the workers alone that were chosen; ``left_out`` counts the others."""
    agents = [
        _agent(agent, [worker.local_rank for worker in agent.workers]) for agent in overview.agents
    ]
    rows = sum(max(1, len(agent["workers"])) for agent in agents)
    return {
        **status_document(overview, ()),
        "agents": agents,
        "left_out": max(0, overview.rows_count - rows),
    }


def explanation_document(
    overview: query_pb2.GetOverviewResponse,
    agents: Iterable[query_pb2.Agent],
    events: Iterable[query_pb2.RunEvent],
    hang_now: Document | None = None,
) -> Document:
    """Return why a run is as it is, in sentences."""
    run = overview.run
    workers = [
        {**worker, "name": agent["name"]}
        for agent in overview_document(overview)["agents"]
        for worker in agent["workers"]
    ]
    verdict = document_of(run.verdict) if run.HasField("verdict") else None
    return explanation(status_document(overview, agents, events), verdict, workers, hang_now)


def agents_document(page: query_pb2.ListAgentsResponse) -> Document:
    """Return a page of a run's agents, with all their workers."""
    return {
        "round_id": page.round_id if page.HasField("round_id") else None,
        "agents": [_agent(agent, range(agent.local_world_size)) for agent in page.agents],
        "next_page_token": page.next_page_token or None,
    }


def goodput_document(
    run_id: str, goodput: query_pb2.GetGoodputResponse, *, with_segments: bool = False
) -> Document:
    """Return what the time of a run went into, and if that was asked for what it was when."""
    document = {"run_id": run_id, **document_of(goodput)}
    if with_segments:
        document["segments"] = [document_of(segment) for segment in goodput.segments]
    return document


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
        if piece.path:
            yield {**of, "path": piece.path}
        age_s = seconds_of(piece.age) if piece.HasField("age") else None
        for line in lines_of(piece.text):
            yield {**of, "line": line, "age_s": age_s}


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, each as a terminal would leave it."""
    if not text:
        return []
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")]


def _agent(agent: query_pb2.Agent, local_ranks: Iterable[int]) -> Document:
    progress = {worker.local_rank: worker for worker in agent.workers}
    memory = {worker.local_rank: worker for worker in agent.memory.workers}
    return {
        **document_of(agent),
        "workers": [
            _worker(
                agent,
                progress.get(local_rank) or failure_pb2.WorkerProgress(local_rank=local_rank),
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
        **document_of(worker),
        "memory_bytes": memory.resident_bytes or None,
        "memory_growth_bytes": memory.growth_bytes,
    }
