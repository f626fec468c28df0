"""Shell. Stacks of workers as agents report them and readers get them."""

from __future__ import annotations

from coordinator.core import effects as fx
from coordinator.core.progress.stack_gathering import Answer, Found
from drumbeat.format import one_line, printable
from drumbeat.mapping import duration
from drumbeat.v1 import query_pb2, session_pb2

STACKS_CHARACTERS_MAX = 64 * 1024  # of one worker
PROBLEM_CHARACTERS_MAX = 1024
PID_MAX = 2**63 - 1


def collect_message(effect: fx.Collect) -> session_pb2.Collect:
    """Write what an agent is asked for at present."""
    return session_pb2.Collect(
        stacks=(
            session_pb2.StackRequest(
                request_id=each.request_id,
                round_id=each.round_id,
                local_ranks=each.local_ranks,
                time_left=duration(each.time_left_s),
            )
            for each in effect.stacks
        )
    )


def read_found(message: session_pb2.ReportStacksRequest) -> list[Found]:
    """Read what an agent found; its texts are cut and made printable."""
    return [
        Found(
            local_rank=each.local_rank,
            pid=min(each.pid, PID_MAX),
            stacks=printable(each.stacks[:STACKS_CHARACTERS_MAX]),
            problem=one_line(each.problem, PROBLEM_CHARACTERS_MAX)
            or ("" if each.stacks else "its agent gave no reason"),
        )
        for each in message.workers
    ]


def answer_message(answer: Answer) -> query_pb2.GetStacksResponse:
    """Write the answer of one agent for readers."""
    return query_pb2.GetStacksResponse(
        name=answer.agent.name,
        host=answer.agent.host,
        workers=(
            session_pb2.WorkerStacks(
                local_rank=each.local_rank,
                rank=each.rank,
                pid=each.pid,
                stacks=each.stacks,
                problem=each.problem,
            )
            for each in answer.workers
        ),
    )
