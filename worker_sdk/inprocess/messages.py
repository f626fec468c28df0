"""Shell. Steps and orders of an iteration, as messages and as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from worker_sdk.errors import error_file
from worker_sdk.inprocess.ranks import RankPolicy, Rule, RuleKind
from worker_sdk.inprocess.state import Place

if TYPE_CHECKING:
    from worker_sdk.inprocess.settings import Limits, Timing

Kind = iteration_pb2.InterruptionKind

MESSAGE_BYTES_MAX = 4 * 1024
TRACEBACK_BYTES_MAX = 48 * 1024
"""Less than a failure record holds: the whole message must pass a limit of 64 KiB."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The iteration begins."""

    place: Place


@dataclass(frozen=True, slots=True)
class InterruptOrdered:
    """The iteration was interrupted somewhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class AllCompleted:
    """All have completed the iteration."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """No iteration follows."""

    reason: str


Order = Begun | InterruptOrdered | AllCompleted | Aborted


def order_of(message: worker_pb2.WorkerOrder) -> Order | None:
    """Return what an agent orders, ``None`` if it is something newer than this code."""
    which = message.WhichOneof("kind")
    if which == "begin":
        begin = message.begin
        return Begun(
            Place(
                rank=begin.rank,
                world_size=begin.world_size,
                active_rank=begin.active_rank if begin.HasField("active_rank") else None,
                active_world_size=begin.active_world_size,
                master_addr=begin.master_addr,
                master_port=begin.master_port,
                role_rank=begin.role_rank,
                role_world_size=begin.role_world_size,
            )
        )
    if which == "interrupt":
        return InterruptOrdered(message.interrupt.reason or "interrupted")
    if which == "abort":
        return Aborted(message.abort.reason or "no iteration follows")
    return AllCompleted() if which == "complete" else None


def spec(
    policy: RankPolicy, timing: Timing, limits: Limits, world_size: int
) -> iteration_pb2.InprocessSpec:
    """Return what all workers must agree on.

    Args:
        policy: The rules on ranks.
        timing: The timeouts of the barriers are taken from it.
        limits: When it is not worth it any more.
        world_size: No group is larger.
    """
    return iteration_pb2.InprocessSpec(
        rules=[_rule(rule, world_size) for rule in policy.rules],
        world_size_min=limits.world_size_min,
        active_world_size_min=limits.active_world_size_min,
        iterations_max=limits.iterations_max or 0,
        last_call_wait=_duration(timing.last_call_wait),
        barrier_timeout=_duration(timing.barrier_timeout),
        completion_timeout=_duration(timing.completion_timeout),
    )


def entered(
    iteration: int, agreed: iteration_pb2.InprocessSpec, group: str
) -> worker_pb2.WorkerStep:
    """Wait for the iteration to begin."""
    step = worker_pb2.Entered(spec=agreed, group=group)
    return worker_pb2.WorkerStep(iteration=iteration, entered=step)


def completed(iteration: int) -> worker_pb2.WorkerStep:
    """Wait for the others."""
    return worker_pb2.WorkerStep(iteration=iteration, completed=worker_pb2.Completed())


def interrupted(
    iteration: int, cause: iteration_pb2.Interruption | None = None
) -> worker_pb2.WorkerStep:
    """Clean up; because of ``cause``, or because the agent said so."""
    step = worker_pb2.Interrupted(interruption=cause)
    return worker_pb2.WorkerStep(iteration=iteration, interrupted=step)


def terminated(iteration: int, cause: iteration_pb2.Interruption) -> worker_pb2.WorkerStep:
    """Take no part any more."""
    step = worker_pb2.Terminated(interruption=cause)
    return worker_pb2.WorkerStep(iteration=iteration, terminated=step)


def interruption(
    kind: Kind.ValueType, local_rank: int, cause: BaseException | str
) -> iteration_pb2.Interruption:
    """Return what went wrong, in words that fit on the wire."""
    if isinstance(cause, str):
        message, stack = cause, ""
    else:
        inner = error_file.describe(cause)["message"]
        message, stack = inner["message"], inner["extraInfo"]["py_callstack"]
    return iteration_pb2.Interruption(
        local_rank=local_rank,
        kind=kind,
        message=error_file.bounded(message, MESSAGE_BYTES_MAX),
        traceback=error_file.bounded(stack, TRACEBACK_BYTES_MAX),
    )


def _rule(rule: Rule, world_size: int) -> iteration_pb2.RankRule:
    if rule.kind is RuleKind.SHIFT:
        return iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks())
    if rule.kind is RuleKind.FILL:
        return iteration_pb2.RankRule(fill=iteration_pb2.FillGaps())
    if rule.kind is RuleKind.ACTIVE_MAX:
        return iteration_pb2.RankRule(active_max=rule.number)
    if rule.kind is RuleKind.ACTIVE_DIVISOR:
        return iteration_pb2.RankRule(active_divisor=rule.number)
    assert rule.groups is not None, "a rule on groups has its filter"
    bits = bytearray(min(world_size, 8 * 2048 - 1) // 8 + 1)
    for size in rule.groups.allowed_sizes(world_size):
        bits[size // 8] |= 1 << (size % 8)
    return iteration_pb2.RankRule(groups=iteration_pb2.GroupSizes(allowed=bytes(bits)))


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
