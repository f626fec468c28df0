"""Shell. Stacks of workers as agents report them and readers get them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.stack_gathering import AgentStacks, WorkerStacks
from drumbeat.coordinator.core.failures.collective_hang import describe_latest
from drumbeat.coordinator.wire.failure import PROGRESS
from drumbeat.model import DURATION_MAX_S, GroupCalls
from drumbeat.text.format import one_line, printable
from drumbeat.text.violation import InvalidField
from drumbeat.v1 import query_pb2, session_pb2
from drumbeat.wire.mapping import MessageMapping, seconds_of
from drumbeat.wire.messages import GROUP_CALLS

STACKS_CHARACTERS_MAX = 64 * 1024  # of one worker
PROBLEM_CHARACTERS_MAX = 1024
PID_MAX = 2**63 - 1
GROUPS_MAX = 256  # different calls of process groups in one answer
OF_WORKER_MAX = 32
KNOWN_GROUPS_MAX = 4_096  # that are not read again; the least recently used are forgotten
CALLS_MAX = 8  # of one group
CALL_CHARACTERS_MAX = 120
RANKS_CHARACTERS_MAX = 2_000

REQUEST = MessageMapping(fx.StackRequest, session_pb2.StackRequest)
# What readers are not shown.
_OF_EVIDENCE = ("progress", "source_line", "is_stopped", "groups", "moved_age_s")
_FOUND = MessageMapping(WorkerStacks, session_pb2.WorkerStacks, given=_OF_EVIDENCE)


def read_found(message: session_pb2.ReportStacksRequest) -> list[WorkerStacks]:
    """Read what an agent found; its texts are cut and made printable.

    A worker with the stacks of an earlier one gets these.
    """
    table, found = _read_groups(message), dict[int, WorkerStacks]()
    for worker in message.workers:
        same = found.get(worker.same_as) if worker.HasField("same_as") else None
        problem = one_line(worker.problem, PROBLEM_CHARACTERS_MAX)
        if same is None and not worker.stacks:
            problem = problem or "its agent gave no reason"
        progress = None
        if worker.HasField("progress"):
            with suppress(InvalidField):
                progress = PROGRESS.read(worker.progress)
        found[worker.local_rank] = WorkerStacks(
            local_rank=worker.local_rank,
            pid=min(worker.pid, PID_MAX),
            stacks=same.stacks if same else printable(worker.stacks[:STACKS_CHARACTERS_MAX]),
            problem=problem,
            groups=_groups_of(worker, table),
            progress=progress,
            source_line=same.source_line if same else one_line(worker.source_line, 200),
            is_stopped=worker.is_stopped,
            moved_age_s=_age(worker),
        )
    return list(found.values())


def _read_groups(message: session_pb2.ReportStacksRequest) -> list[GroupCalls]:
    """Read the different calls of process groups; what can't be true is left out, with all else."""
    try:
        return [_read_group(group.SerializeToString()) for group in message.groups[:GROUPS_MAX]]
    except InvalidField:
        return []


@lru_cache(KNOWN_GROUPS_MAX)
def _read_group(data: bytes) -> GroupCalls:
    """Read the calls of one group: most ranks of a run have made the same."""
    group = GROUP_CALLS.read(session_pb2.ProcessGroupCalls.FromString(data))
    calls = (
        replace(
            call,
            op=one_line(call.op, CALL_CHARACTERS_MAX),
            tensors=one_line(call.tensors, CALL_CHARACTERS_MAX),
        )
        for call in group.calls[-CALLS_MAX:]
    )
    return replace(
        group,
        name=one_line(group.name, CALL_CHARACTERS_MAX),
        label=one_line(group.label, CALL_CHARACTERS_MAX),
        ranks=group.ranks[:RANKS_CHARACTERS_MAX],
        calls=tuple(calls),
    )


def _groups_of(
    worker: session_pb2.WorkerStacks, table: Sequence[GroupCalls]
) -> tuple[GroupCalls, ...] | None:
    if not worker.has_groups:
        return None
    places = worker.groups[:OF_WORKER_MAX]
    return tuple(table[place] for place in places if place < len(table))


def _age(worker: session_pb2.WorkerStacks) -> float | None:
    if not worker.HasField("moved_age"):
        return None
    return min(max(0.0, seconds_of(worker.moved_age)), DURATION_MAX_S)


def answer_message(answer: AgentStacks) -> query_pb2.GetStacksResponse:
    """Write the answer of one agent for readers."""
    return query_pb2.GetStacksResponse(
        name=answer.agent.name,
        host=answer.agent.host,
        workers=map(_for_readers, answer.workers),
    )


def _for_readers(worker: WorkerStacks) -> session_pb2.WorkerStacks:
    message: session_pb2.WorkerStacks = _FOUND.write(worker)
    message.collective = describe_latest(worker.groups or ())
    return message
