"""Shell. Stacks of workers as agents report them and readers get them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from msgspec.structs import replace

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.collecting.stack_gathering import Answer, Found
from drumbeat.coordinator.wire.failure import PROGRESS
from drumbeat.format import one_line, printable
from drumbeat.mapping import MessageMapping
from drumbeat.v1 import query_pb2, session_pb2
from drumbeat.violation import InvalidField

STACKS_CHARACTERS_MAX = 64 * 1024  # of one worker
PROBLEM_CHARACTERS_MAX = 1024
PID_MAX = 2**63 - 1

_REQUEST = MessageMapping(fx.StackRequest, session_pb2.StackRequest)
_OF_EVIDENCE = ("progress", "source_line", "is_stopped")  # what readers are not shown
_FOUND = MessageMapping(Found, session_pb2.WorkerStacks, given=_OF_EVIDENCE)


def collect_message(effect: fx.Collect) -> session_pb2.Collect:
    """Write what an agent is asked for at present."""
    return session_pb2.Collect(stacks=map(_REQUEST.write, effect.stacks))


def read_found(message: session_pb2.ReportStacksRequest) -> list[Found]:
    """Read what an agent found; its texts are cut and made printable."""
    found = [
        Found(
            local_rank=each.local_rank,
            pid=min(each.pid, PID_MAX),
            stacks=printable(each.stacks[:STACKS_CHARACTERS_MAX]),
            problem=one_line(each.problem, PROBLEM_CHARACTERS_MAX)
            or ("" if each.stacks else "its agent gave no reason"),
        )
        for each in message.workers
    ]
    return _with_evidence(message, found)


def _with_evidence(message: session_pb2.ReportStacksRequest, found: Iterable[Found]) -> list[Found]:
    """Add what only evidence of a hang has; a worker with the stacks of another gets these."""
    evidence: dict[int, Found] = {}
    for worker, each in zip(message.workers, found, strict=True):
        same = evidence.get(worker.same_as) if worker.HasField("same_as") else None
        progress = None
        if worker.HasField("progress"):
            with suppress(InvalidField):
                progress = PROGRESS.read(worker.progress)
        evidence[each.local_rank] = replace(
            each,
            stacks=each.stacks if same is None else same.stacks,
            problem=each.problem
            if same is None
            else one_line(worker.problem, PROBLEM_CHARACTERS_MAX),
            source_line=one_line(worker.source_line if same is None else same.source_line, 200),
            is_stopped=worker.is_stopped,
            progress=progress,
        )
    return list(evidence.values())


def answer_message(answer: Answer) -> query_pb2.GetStacksResponse:
    """Write the answer of one agent for readers."""
    return query_pb2.GetStacksResponse(
        name=answer.agent.name,
        host=answer.agent.host,
        workers=map(_FOUND.write, answer.workers),
    )
