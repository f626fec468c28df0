"""Shell. What agents say as events, and what they are told as messages.

Of a ``Hello`` each field is checked, and what passes is trusted further in. Of a later
message what is unknown or can't be is passed over: it may come from a newer agent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from coordinator.core import effects as fx
from coordinator.core.events import AgentLeft, BeatReceived, SessionOpened
from coordinator.core.inprocess.model import InprocessReport
from coordinator.core.model import (
    AgentIdentity,
    Assignment,
    Beat,
    Desired,
    Exit,
    GroupState,
    Pace,
    Release,
    RunSpec,
    Standby,
    Stop,
    Verdict,
)
from coordinator.core.progress.adaptive_timeouts import NAMES_MAX
from coordinator.core.progress.worker_progress import WorkerProgress
from coordinator.errors import InvalidRequest, StaleSession
from coordinator.wire.exit_message import exit_message
from coordinator.wire.failure import (
    ID_MAX,
    NAME,
    NAME_CHARACTERS_MAX,
    OBSERVATION,
    PROGRESS,
    limits_message,
    read_record,
    read_uptime_s,
    verdict_message,
)
from coordinator.wire.inprocess import directive_message as inprocess_message
from coordinator.wire.inprocess import report_of
from drumbeat import VERSION
from drumbeat.mapping import (
    MessageMapping,
    OnProblem,
    between,
    enum_table,
    few,
    refuse,
    text,
)
from drumbeat.v1 import common_pb2, session_pb2
from drumbeat.violation import InvalidField

# Of the one line that a beat has of a failure.
HEADLINE_CHARACTERS_MAX = 300
LOCAL_WORLD_SIZE_MAX = 4096
GPUS_MAX = 1024
LABELS_MAX = 64
RUN_ID_ALLOWED = "1 to 128 of A-Z a-z 0-9 . _ - but neither . nor .."
# Agents use it as a name of a directory, where dots alone mean another one.
_RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}", re.ASCII)
_PORT = between(0, 65535)
_GROUP_STATES = enum_table(session_pb2.GroupState.DESCRIPTOR, GroupState)
_GROUP_STATE_NUMBERS = {state: number for number, state in _GROUP_STATES.items()}

SPEC = MessageMapping(
    RunSpec, common_pb2.RunSpec, checks={"master_addr": text(0, NAME_CHARACTERS_MAX)}
)
_IDENTITY = MessageMapping(
    AgentIdentity,
    session_pb2.Hello,
    checks={
        **dict.fromkeys(("host", "address", "role"), NAME),
        "name": text(0, NAME_CHARACTERS_MAX),
        "local_world_size": between(1, LOCAL_WORLD_SIZE_MAX),
    },
    given=("incarnation",),
)
# A beat's state is read apart: an unknown one is no reason to pass over the rest.
_BEAT = MessageMapping(
    Beat,
    session_pb2.Beat,
    parts={"workers": PROGRESS, "observations": OBSERVATION},
    checks={"master_port": _PORT},
    given=("state", "round_id", "inprocess", "failure"),
)
_PACE = MessageMapping(Pace, session_pb2.Pace)
_STANDBY = MessageMapping(Standby, session_pb2.Standby)


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse the whole request if a field of it can't be read. Raises ``InvalidRequest``."""
    try:
        yield
    except InvalidRequest:
        raise
    except InvalidField as problem:
        raise InvalidRequest(problem.field, problem.value, problem.allowed) from None


# From the network.


def session_opened(
    message: session_pb2.AgentReport, *, session_id: str, on_problem: OnProblem = refuse
) -> SessionOpened:
    """Read a session's first message, which must be a ``Hello``. Raises ``InvalidRequest``.

    Its beat is read like any other.
    """
    if message.WhichOneof("kind") != "hello":
        kind = message.WhichOneof("kind") or "unknown"
        raise InvalidRequest("kind", kind, "hello as the first message")
    hello, fence = message.hello, message.fence
    if hello.WhichOneof("purpose") != "run":
        raise InvalidRequest("hello.purpose", hello.WhichOneof("purpose") or "unknown", "run")
    with refusing():
        few(GPUS_MAX)("hello.gpus", hello.gpus)
        return SessionOpened(
            run_id=run_id_of("hello.run.run_id", hello.run.run_id),
            spec=SPEC.read(hello.run.spec, "hello.run.spec"),
            session_id=session_id,
            agent=_IDENTITY.read(
                hello, "hello", incarnation=NAME("fence.incarnation", fence.incarnation)
            ),
            beat=read_beat(hello.beat, fence, hello.local_world_size, on_problem),
            uptime_s=read_uptime_s(message),
            version=hello.version[:NAME_CHARACTERS_MAX],
            labels=_labels(hello.labels),
        )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the first labels by name, shortened."""
    most = NAME_CHARACTERS_MAX
    return {name[:most]: labels[name][:most] for name in sorted(labels)[:LABELS_MAX]}


def gpu_summary(message: session_pb2.AgentReport) -> str:
    """Return the GPUs of a checked ``Hello``, e.g. "8 NVIDIA H200"; empty if none."""
    names = Counter(
        "".join(letter for letter in gpu.name[:NAME_CHARACTERS_MAX] if letter.isprintable())
        for gpu in message.hello.gpus
    )
    return ", ".join(f"{count} {name}" for name, count in names.items())


def session_event(
    message: session_pb2.AgentReport, opened: SessionOpened, on_problem: OnProblem
) -> BeatReceived | AgentLeft | None:
    """Read a later message of the session that ``opened`` began; ``None`` if it says nothing.

    Raises ``StaleSession``.
    """
    fence = message.fence
    if fence.session_id != opened.session_id:
        # Refused here, where it can only end the stream it came from.
        raise StaleSession("the message is of another session than its stream")
    if (fence.run_id, fence.incarnation) != (opened.run_id, opened.agent.incarnation):
        on_problem(InvalidField("fence", f"{fence.run_id} {fence.incarnation}", "as in hello"))
        return None
    whose = {
        "run_id": opened.run_id,
        "session_id": opened.session_id,
        "incarnation": opened.agent.incarnation,
    }
    match message.WhichOneof("kind"):
        case "beat":
            beat = read_beat(message.beat, fence, opened.agent.local_world_size, on_problem)
            return BeatReceived(beat=beat, uptime_s=read_uptime_s(message), **whose)
        case "goodbye":
            return AgentLeft(reason=message.goodbye.reason[:NAME_CHARACTERS_MAX], **whose)
        case kind:
            on_problem(InvalidField("kind", kind or "unknown", "beat or goodbye"))
            return None


def run_id_of(path: str, run_id: str) -> str:
    """Return a run id that can be one. Raises ``InvalidRequest``."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidRequest(path, run_id, RUN_ID_ALLOWED)
    return run_id


def read_beat(
    message: session_pb2.Beat, fence: common_pb2.Fence, size: int, on_problem: OnProblem
) -> Beat:
    """Read the beat of an agent with so many workers."""
    round_id = fence.round_id if fence.HasField("round_id") else None
    if round_id is not None and round_id > ID_MAX:
        on_problem(InvalidField("fence.round_id", round_id, f"at most {ID_MAX}"))
        round_id = None
    failure = None
    if message.HasField("failure"):
        try:
            failure = read_record(
                message.failure,
                incarnation=fence.incarnation,
                round_id=round_id,
                text_characters_max=HEADLINE_CHARACTERS_MAX,
                on_problem=on_problem,
                path="beat.failure",
            )
        except InvalidField as problem:
            on_problem(problem)
    beat = _BEAT.read(
        message,
        "beat",
        on_problem,
        state=_state(message.state, round_id, on_problem),
        round_id=round_id,
        inprocess=_inprocess(message, size, on_problem),
        failure=failure,
    )
    if not (beat.workers or beat.observations) and beat.workers_done <= size:
        return beat
    workers = tuple(_of_host(beat.workers, size, on_problem))
    observations = {each.section: each for each in beat.observations[:NAMES_MAX]}
    return replace(
        beat,
        workers=workers,
        observations=tuple(observations.values()),
        workers_done=min(beat.workers_done, size),
    )


def _state(number: int, round_id: int | None, on_problem: OnProblem) -> GroupState:
    """Return a state; one of a later version is that of workers that run, if there are any."""
    state = _GROUP_STATES.get(number)
    if state is None:
        on_problem(InvalidField("beat.state", number, " ".join(GroupState)))
        return GroupState.IDLE if round_id is None else GroupState.RUNNING
    return state


def _inprocess(
    message: session_pb2.Beat, size: int, on_problem: OnProblem
) -> InprocessReport | None:
    try:
        return report_of(message, size)
    except InvalidField as problem:
        on_problem(problem)
        return None


def _of_host(
    workers: Iterable[WorkerProgress], size: int, on_problem: OnProblem
) -> Iterator[WorkerProgress]:
    """Return those workers that the host has, each once."""
    seen = set()
    for worker in workers:
        if worker.local_rank < size and worker.local_rank not in seen:
            seen.add(worker.local_rank)
            yield worker
        else:
            allowed = f"0 to {size - 1}, each once"
            on_problem(InvalidField("beat.workers.local_rank", worker.local_rank, allowed))


# To the network.


def desired_message(desired: Desired) -> session_pb2.DesiredState:
    """Write a desired state."""
    kind: dict[str, Any]
    match desired.state:
        case Standby() as standby:
            kind = {"standby": _STANDBY.write(standby)}
        case Assignment() as assignment:
            kind = {"run": _assignment(assignment)}
        case Stop(reason=reason):
            kind = {"stop": session_pb2.Stop(reason=reason)}
        case Release(reason=reason):
            kind = {"release": session_pb2.Release(reason=reason)}
        case Exit() as state:
            kind = {"exit": _exits.message(state)}
    return session_pb2.DesiredState(master_port_spent=desired.master_port_spent, **kind)


def directive_message(effect: fx.Push, *, run_id: str, term: int) -> session_pb2.Directive:
    """Write what an agent of this run is told, by a coordinator of this term."""
    kind: dict[str, Any]
    match effect:
        case fx.Welcome(session_id=session_id, pace=pace):
            welcome = session_pb2.Welcome(
                session_id=session_id, pace=_PACE.write(pace), version=VERSION, term=term
            )
            return session_pb2.Directive(welcome=welcome)
        case fx.SetPace(pace=pace):
            return session_pb2.Directive(pace=_PACE.write(pace))
        case fx.TellLimits(limits=limits):
            kind = {"limits": limits_message(limits)}
        case fx.Direct(desired=desired):
            kind = {"desired": desired_message(desired)}
        case fx.Instruct(directive=directive):
            kind = {"inprocess": inprocess_message(directive)}
    return session_pb2.Directive(run_id=run_id, **kind)


def group_state(state: GroupState) -> session_pb2.GroupState.ValueType:
    """Write a group state."""
    return session_pb2.GroupState.ValueType(_GROUP_STATE_NUMBERS[state])


def _assignment(assignment: Assignment) -> session_pb2.Assignment:
    seat, current = assignment.seat, assignment.round
    return session_pb2.Assignment(
        round_id=current.round_id,
        restart_count=current.restart_count,
        group_rank=seat.group_rank,
        group_world_size=len(current.seats),
        rank_first=seat.rank_first,
        world_size=current.world_size,
        role_rank_first=seat.role_rank_first,
        role_world_size=seat.role_world_size,
        master_addr=current.master_addr,
        master_port=current.master_port,
        reason=current.reason,
        restarts_used=assignment.restarts_used,
        restarts_max=assignment.restarts_max,
    )


class _Exits:
    """Writes an end once: it goes to every agent, and to nearly all of them the same."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._messages: dict[bool, session_pb2.Exit] = {}

    def message(self, wanted: Exit) -> session_pb2.Exit:
        """Return a message that may be shared: it is to be copied, not changed."""
        if self._verdict is not wanted.verdict:
            self._verdict, self._messages = wanted.verdict, {}
        known = self._messages.get(wanted.shows_report)
        if known is None:
            known = exit_message(wanted, verdict_message(wanted.verdict))
            self._messages[wanted.shows_report] = known
        return known


_exits = _Exits()
