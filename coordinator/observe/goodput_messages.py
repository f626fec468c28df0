"""Shell. What the time of a run went into, as a message."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.goodput import Ledger, Time
from drumbeat.coordinator.observe.stretches import Cause, Part
from drumbeat.coordinator.wire.run_status import AnyRun
from drumbeat.durations import SECOND, nanoseconds
from drumbeat.v1 import query_pb2

_KINDS = {part: query_pb2.PartKind.Value(f"PART_KIND_{part}") for part in Part}
_CAUSES: dict[Cause | None, query_pb2.LossCause.ValueType] = {
    None: query_pb2.LOSS_CAUSE_UNSPECIFIED,
    **{cause: query_pb2.LossCause.Value(f"LOSS_CAUSE_{cause}") for cause in Cause},
}


def goodput_message(
    state: RunState, run: AnyRun | None, *, now: float, with_segments: bool = False
) -> query_pb2.GetGoodputResponse:
    """Write the account of a run as it is at ``now``, with what the core has seen since."""
    marks, known = None, state.goodput
    if run is not None and run.members.meter.number == known.number:
        marks = run.members.meter.marks()
    account = known.as_of(now, marks)
    response = query_pb2.GetGoodputResponse(
        whole=_time(account.whole),
        effective_ratio=account.ratio,
        failures_count=account.failures,
        is_running=known.stretch is not None,
    )
    if account.failures:
        mean = _time(account.whole // account.failures)
        response.mean_time_between_failures.CopyFrom(mean)
    for part, time in sorted(account.parts.items()):
        response.parts.add(kind=_KINDS[part], time=_time(time.run), host_seconds=_hosts(time))
    _add_losses(response, account)
    if with_segments:
        _add_segments(response, account, max(nanoseconds(now), account.until))
    return response


def _add_losses(response: query_pb2.GetGoodputResponse, account: Ledger) -> None:
    nothing = Time()
    for cause in sorted({*account.causes, *account.restarts}):
        time = account.causes.get(cause, nothing)
        response.causes.add(
            cause=_CAUSES[cause],
            time=_time(time.run),
            host_seconds=_hosts(time),
            restarts_count=account.restarts.get(cause, 0),
        )
    for name, time in sorted(account.hosts_lost.items(), key=lambda one: (-one[1].run, one[0])):
        response.hosts.add(name=name, time=_time(time.run), host_seconds=_hosts(time))


def _add_segments(response: query_pb2.GetGoodputResponse, account: Ledger, now: int) -> None:
    age = now - account.until + sum(segment.time for segment in account.segments)
    for segment in account.segments:
        # As it is, because there are many.
        message = response.segments.add(
            kind=_KINDS[segment.part],
            cause=_CAUSES[segment.cause],
            host=segment.host,
            round_id=segment.round_id,
            iteration=segment.iteration,
        )
        message.age.seconds, message.age.nanos = divmod(age, SECOND)
        message.time.seconds, message.time.nanos = divmod(segment.time, SECOND)
        age -= segment.time


def _time(time: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(time)
    return message


def _hosts(time: Time) -> float:
    return time.hosts / SECOND
