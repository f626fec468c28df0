"""Shell. Messages to the agent: what a wrapper asks of all workers, and what went wrong in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from drumbeat.worker.v1 import iteration_pb2
from worker_sdk.errors import error_file
from worker_sdk.inprocess import ranks

if TYPE_CHECKING:
    from worker_sdk.inprocess.restart.call_wrapper import Plan

Kind = iteration_pb2.InterruptionKind

MESSAGE_BYTES_MAX = 4 * 1024
TRACEBACK_BYTES_MAX = 48 * 1024
"""Less than a failure record holds: the whole message must pass a limit of 64 KiB."""


def spec(plan: Plan, world_size: int) -> iteration_pb2.InprocessSpec:
    """Return what all workers must agree on; no group is larger than ``world_size``."""
    rules = (_rule(rule, world_size) for rule in plan.rules)
    return iteration_pb2.InprocessSpec(
        rules=[rule for rule in rules if rule is not None],
        world_size_min=plan.limits.min_world_size,
        active_world_size_min=plan.limits.min_active_world_size,
        iterations_max=plan.limits.max_iterations or 0,
        last_call_wait=_duration(plan.timing["last_call_wait"]),
        barrier_timeout=_duration(plan.timing["barrier_timeout"]),
        completion_timeout=_duration(plan.timing["completion_timeout"]),
    )


def interruption(
    kind: Kind.ValueType, local_rank: int, cause: BaseException | str, stack: str = ""
) -> iteration_pb2.Interruption:
    """Return what went wrong, as a text that fits on the wire."""
    message = cause
    if isinstance(message, BaseException):
        inner = error_file.describe(message)["message"]
        message, stack = inner["message"], inner["extraInfo"]["py_callstack"]
    return iteration_pb2.Interruption(
        local_rank=local_rank,
        kind=kind,
        message=error_file.bounded(message, MESSAGE_BYTES_MAX),
        traceback=error_file.bounded(stack, TRACEBACK_BYTES_MAX),
    )


def _rule(rule: ranks.RankAssignment, world_size: int) -> iteration_pb2.RankRule | None:
    match rule:
        case ranks.ShiftRanks():
            return iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks())
        case ranks.FillGaps():
            return iteration_pb2.RankRule(fill=iteration_pb2.FillGaps())
        case ranks.MaxActiveWorldSize(max_active_world_size=int(most)):
            return iteration_pb2.RankRule(active_max=most)
        case ranks.ActiveWorldSizeDivisibleBy():
            return iteration_pb2.RankRule(active_divisor=rule.divisor)
        case ranks.FilterCountGroupedByKey():
            sizes = iteration_pb2.GroupSizes(allowed=rule.allowed_sizes(world_size))
            return iteration_pb2.RankRule(groups=sizes)
    return None  # it has no effect


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
