"""Shell. Restarts in process, between messages and values.

What an agent of another version says and this one does not know is left out, and so
is what can't be: a report must never cost a host its session. Texts are cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from drumbeat import inprocess as values
from drumbeat.coordinator.core.inprocess.rank_rules import RankRule, RuleKind
from drumbeat.coordinator.core.inprocess.records import InprocessReport, InprocessSpec
from drumbeat.coordinator.core.inprocess.roster import FAULT_CHARACTERS_MAX
from drumbeat.model import DURATION_MAX_S
from drumbeat.v1 import failure_pb2, inprocess_pb2, session_pb2
from drumbeat.wire.mapping import enum_table, seconds_of
from drumbeat.worker.v1 import iteration_pb2

# Numbers that every JSON reader keeps exact; no run has so many rounds or iterations.
ID_MAX = 2**53
RULES_MAX = 16
GROUP_BYTES_MAX = 2_048
GROUP_CHARACTERS_MAX = 256

_KINDS = enum_table(iteration_pb2.InterruptionKind.DESCRIPTOR, values.InterruptionKind)
_STEPS = enum_table(inprocess_pb2.InprocessStep.DESCRIPTOR, values.InprocessStep)


def report_of(beat: session_pb2.Beat, local_world_size: int) -> InprocessReport | None:
    """Read what the workers of an agent with so many of them do in iterations."""
    if not beat.HasField("inprocess"):
        return None
    message, step = beat.inprocess, _STEPS.get(beat.inprocess.step)
    if step is None or message.iteration > ID_MAX:
        return None
    return InprocessReport(
        iteration=message.iteration,
        step=step,
        terminated=_interruptions(message.terminated, local_world_size),
        interruptions=_interruptions(message.interruptions, local_world_size),
        spec=_spec(message.spec) if message.HasField("spec") else None,
        groups=tuple(name[:GROUP_CHARACTERS_MAX] for name in message.groups[:local_world_size]),
        ahead=tuple(dict.fromkeys(rank for rank in message.ahead if rank < local_world_size)),
        before=_interruptions(message.before, local_world_size),
    )


def interruption_of(
    record: failure_pb2.FailureRecord,
) -> tuple[values.InterruptionKind | None, int]:
    """Read what a failure did to an iteration, and to which; ``None`` and 0 if to none."""
    if not record.interruption or record.iteration > ID_MAX:
        return None, 0
    return _kind(record.interruption), record.iteration


def _interruptions(
    messages: Iterable[iteration_pb2.Interruption], size: int
) -> tuple[values.Interruption, ...]:
    by_rank: dict[int, values.Interruption] = {}
    for message in messages:
        if (rank := message.local_rank) < size and rank not in by_rank:
            kind, text = _kind(message.kind), message.message[:FAULT_CHARACTERS_MAX]
            by_rank[rank] = values.Interruption(local_rank=rank, kind=kind, message=text)
    return tuple(by_rank.values())


def _kind(value: iteration_pb2.InterruptionKind.ValueType) -> values.InterruptionKind:
    return _KINDS.get(value, values.InterruptionKind.TERMINATED)


def _spec(message: iteration_pb2.InprocessSpec) -> InprocessSpec:
    default = InprocessSpec()
    return InprocessSpec(
        rules=tuple(filter(None, map(_rule, message.rules[:RULES_MAX]))),
        world_size_min=message.world_size_min,
        active_world_size_min=message.active_world_size_min,
        iterations_max=min(message.iterations_max, ID_MAX),
        last_call_wait_s=_seconds(message.last_call_wait),
        barrier_timeout_s=_seconds(message.barrier_timeout) or default.barrier_timeout_s,
        completion_timeout_s=_seconds(message.completion_timeout) or default.completion_timeout_s,
        needs_first_agent=message.needs_first_agent,
    )


def _rule(message: iteration_pb2.RankRule) -> RankRule | None:
    which, number = message.WhichOneof("kind"), message.active_max or message.active_divisor
    if which is None or (which.startswith("active") and not number):
        return None
    # What is always 0 makes no difference.
    allowed = message.groups.allowed[:GROUP_BYTES_MAX].rstrip(b"\0")
    return RankRule(kind=RuleKind(which.upper()), count=number, allowed=allowed)


def _seconds(message: Duration) -> float:
    return min(max(0.0, seconds_of(message)), DURATION_MAX_S)
