"""Shell. Restarts in process, between messages and values.

A report is the word of an agent about its own host: what can't be is refused, field
by field, as in ``convert``; texts are for people, and cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from coordinator.core.inprocess.model import (
    FAULT_CHARACTERS_MAX,
    InprocessDirective,
    InprocessReport,
    InprocessSpec,
    InprocessStep,
    Interruption,
    InterruptionKind,
    IterationBegin,
    IterationComplete,
    IterationInterrupt,
)
from coordinator.core.inprocess.rank_rules import (
    FILL_GAPS,
    SHIFT_RANKS,
    RankRule,
    active_divisor,
    active_max,
    group_bits,
)
from coordinator.core.model import DURATION_MAX_S
from coordinator.errors import InvalidRequest
from coordinator.wire.duration import seconds_of
from drumbeat.v1 import failure_pb2, inprocess_pb2, session_pb2
from drumbeat.worker.v1 import iteration_pb2

# Numbers that every JSON reader keeps exact; no round has so many iterations.
ITERATION_MAX = 2**53
RULES_MAX = 16
GROUP_BYTES_MAX = 2_048
GROUP_CHARACTERS_MAX = 256

_KINDS = {
    iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{kind}"): kind
    for kind in InterruptionKind
}
_STEPS = {
    inprocess_pb2.InprocessStep.Value(f"INPROCESS_STEP_{step}"): step for step in InprocessStep
}


# From the network.


def report_of(beat: session_pb2.Beat, local_world_size: int) -> InprocessReport | None:
    """Read what the workers of an agent with so many of them do in iterations."""
    if not beat.HasField("inprocess"):
        return None
    message, field = beat.inprocess, "beat.inprocess"
    if message.step not in _STEPS:
        raise InvalidRequest(f"{field}.step", message.step, " ".join(InprocessStep))
    if len(message.groups) > local_world_size:
        allowed = f"at most {local_world_size}"
        raise InvalidRequest(f"{field}.groups", len(message.groups), allowed)
    for index, group in enumerate(message.groups):
        if len(group) > GROUP_CHARACTERS_MAX:
            allowed = f"at most {GROUP_CHARACTERS_MAX} characters"
            raise InvalidRequest(f"{field}.groups[{index}]", group, allowed)
    size = local_world_size
    return InprocessReport(
        iteration=_iteration(f"{field}.iteration", message.iteration),
        step=_STEPS[message.step],
        terminated=_interruptions(f"{field}.terminated", message.terminated, size),
        interruptions=_interruptions(f"{field}.interruptions", message.interruptions, size),
        spec=_spec(message.spec) if message.HasField("spec") else None,
        groups=tuple(message.groups),
        ahead=_local_ranks(f"{field}.ahead", message.ahead, size),
    )


def _local_ranks(field: str, ranks: Iterable[int], size: int) -> tuple[int, ...]:
    found = dict.fromkeys(ranks)
    for rank in found:
        if rank >= size:
            raise InvalidRequest(field, rank, f"0 to {size - 1}")
    return tuple(found)


def interruption_of(
    record: failure_pb2.FailureRecord,
) -> tuple[InterruptionKind | None, int]:
    """Read what a failure did to an iteration, and to which; ``None`` and 0 if to none."""
    if record.interruption == iteration_pb2.INTERRUPTION_KIND_UNSPECIFIED:
        return None, 0
    kind = _kind("record.interruption", record.interruption)
    return kind, _iteration("record.iteration", record.iteration)


def _interruptions(
    field: str, messages: Iterable[iteration_pb2.Interruption], size: int
) -> tuple[Interruption, ...]:
    found: dict[int, Interruption] = {}
    for index, message in enumerate(messages):
        rank = message.local_rank
        if rank >= size or rank in found:
            allowed = f"0 to {size - 1}, each once"
            raise InvalidRequest(f"{field}[{index}].local_rank", rank, allowed)
        found[rank] = Interruption(
            local_rank=rank,
            kind=_kind(f"{field}[{index}].kind", message.kind),
            message=message.message[:FAULT_CHARACTERS_MAX],
        )
    return tuple(found.values())


def _kind(field: str, value: iteration_pb2.InterruptionKind.ValueType) -> InterruptionKind:
    if value not in _KINDS:
        raise InvalidRequest(field, value, " ".join(InterruptionKind))
    return _KINDS[value]


def _iteration(field: str, value: int) -> int:
    if value > ITERATION_MAX:
        raise InvalidRequest(field, value, f"at most {ITERATION_MAX}")
    return value


def _spec(message: iteration_pb2.InprocessSpec) -> InprocessSpec:
    field = "beat.inprocess.spec"
    if len(message.rules) > RULES_MAX:
        raise InvalidRequest(f"{field}.rules", len(message.rules), f"at most {RULES_MAX}")
    last_call, barrier = message.last_call_wait, message.barrier_timeout
    completion = message.completion_timeout
    return InprocessSpec(
        rules=tuple(
            _rule(f"{field}.rules[{index}]", rule) for index, rule in enumerate(message.rules)
        ),
        world_size_min=message.world_size_min,
        active_world_size_min=message.active_world_size_min,
        iterations_max=_iteration(f"{field}.iterations_max", message.iterations_max),
        last_call_wait_s=_seconds(f"{field}.last_call_wait", last_call, is_0_allowed=True),
        barrier_timeout_s=_seconds(f"{field}.barrier_timeout", barrier),
        completion_timeout_s=_seconds(f"{field}.completion_timeout", completion),
    )


def _rule(field: str, rule: iteration_pb2.RankRule) -> RankRule:
    try:
        match rule.WhichOneof("kind"):
            case "shift":
                return SHIFT_RANKS
            case "fill":
                return FILL_GAPS
            case "groups":
                if len(rule.groups.allowed) > GROUP_BYTES_MAX:
                    size = f"{len(rule.groups.allowed)} bytes"
                    raise InvalidRequest(f"{field}.groups", size, f"at most {GROUP_BYTES_MAX}")
                return group_bits(rule.groups.allowed)
            case "active_max":
                return active_max(rule.active_max)
            case "active_divisor":
                return active_divisor(rule.active_divisor)
            case kind:
                allowed = "shift, fill, groups, active_max or active_divisor"
                raise InvalidRequest(field, kind or "unknown", allowed)
    except ValueError as error:
        raise InvalidRequest(field, str(error), "1 or more") from None


def _seconds(field: str, message: Duration, *, is_0_allowed: bool = False) -> float:
    seconds = seconds_of(message)
    if not 0 <= seconds <= DURATION_MAX_S or (seconds == 0 and not is_0_allowed):
        least = "0" if is_0_allowed else "more than 0"
        raise InvalidRequest(field, seconds, f"{least} to {DURATION_MAX_S:g} seconds")
    return seconds


# To the network.


def directive_message(directive: InprocessDirective) -> inprocess_pb2.InprocessDirective:
    """Write what an agent's workers do in an iteration."""
    message = inprocess_pb2.InprocessDirective(
        round_id=directive.round_id,
        iteration=directive.iteration,
        terminated=directive.terminated,
    )
    match directive.kind:
        case IterationBegin() as begin:
            message.begin.CopyFrom(_begin(begin))
        case IterationInterrupt(reason=reason):
            message.interrupt.reason = reason
        case IterationComplete():
            message.complete.SetInParent()
    return message


def interruption_kind(
    kind: InterruptionKind | None,
) -> iteration_pb2.InterruptionKind.ValueType:
    """Write what a failure did to an iteration."""
    name = "UNSPECIFIED" if kind is None else str(kind)
    return iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{name}")


def _begin(begin: IterationBegin) -> inprocess_pb2.IterationBegin:
    return inprocess_pb2.IterationBegin(
        seats=[
            inprocess_pb2.InprocessSeat(
                local_rank=seat.local_rank,
                rank=seat.rank,
                active_rank=seat.active_rank,
                role_rank=seat.role_rank,
                role_world_size=seat.role_world_size,
            )
            for seat in begin.seats
        ],
        world_size=begin.world_size,
        active_world_size=begin.active_world_size,
        master_addr=begin.master_addr,
        master_port=begin.master_port,
    )
