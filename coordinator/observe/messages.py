"""Shell. What is observed of a run, as messages; overviews are shared by their readers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.errors import InvalidRequest, UnknownRun
from drumbeat.coordinator.observe.goodput.ledger import NONE, Ledger, Time
from drumbeat.coordinator.observe.goodput.stretches import Cause, Part
from drumbeat.coordinator.observe.observer import account
from drumbeat.coordinator.observe.overview import Overview
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.observe.steps.stragglers import NAMED_MAX, Straggler
from drumbeat.coordinator.wire.run_status import AnyRun, glimpses, overview_message
from drumbeat.text.durations import SECOND, nanoseconds
from drumbeat.v1 import query_pb2
from drumbeat.v1.query_pb2 import GetOverviewResponse
from drumbeat.wire.mapping import MessageMapping, duration

RANKS_MAX = 64  # in one request
RANKS_CHOSEN = 8  # for a request that names none

_STRAGGLER = MessageMapping(Straggler, query_pb2.Straggler)
_KINDS = {part: query_pb2.PartKind.Value(f"PART_KIND_{part}") for part in Part}
_CAUSES: dict[Cause | None, query_pb2.LossCause.ValueType] = {
    None: query_pb2.LOSS_CAUSE_UNSPECIFIED,
    **{cause: query_pb2.LossCause.Value(f"LOSS_CAUSE_{cause}") for cause in Cause},
}


def goodput_message(
    state: RunState, run: AnyRun | None, *, now: float, with_segments: bool = False
) -> query_pb2.GetGoodputResponse:
    """Return the account of a run's time as of ``now``."""
    ledger = account(state.observed, None if run is None else run.members.observer, now=now)
    response = query_pb2.GetGoodputResponse(
        whole=_duration(ledger.whole),
        effective_ratio=ledger.ratio,
        failures_count=ledger.failures,
        is_running=ledger.stretch is not None,
        parts=[
            query_pb2.GoodputPart(kind=_KINDS[part], **_spent(time))
            for part, time in sorted(ledger.parts.items())
        ],
        causes=[
            query_pb2.LostTime(
                cause=_CAUSES[cause],
                restarts_count=ledger.restarts.get(cause, 0),
                **_spent(ledger.causes.get(cause, NONE)),
            )
            for cause in sorted({*ledger.causes, *ledger.restarts})
        ],
        hosts=[
            query_pb2.LostHost(name=name, **_spent(time))
            for name, time in sorted(ledger.hosts_lost.items(), key=lambda x: (-x[1].run, x[0]))
        ],
    )
    if (current := state.round) is not None:
        response.workers_per_host = current.world_size / current.group_world_size
    if ledger.failures:
        mean = _duration(ledger.whole // ledger.failures)
        response.mean_time_between_failures.CopyFrom(mean)
    if with_segments:
        _add_segments(response, ledger, max(nanoseconds(now), ledger.until))
    return response


def _add_segments(response: query_pb2.GetGoodputResponse, ledger: Ledger, now: int) -> None:
    response.failure_ages_seconds.extend((now - at) / SECOND for at in ledger.failed_at)
    age = now - ledger.until + sum(segment.time for segment in ledger.segments)
    for segment in ledger.segments:
        # Field by field, because there can be a thousand.
        message = response.segments.add(
            kind=_KINDS[segment.part],
            cause=_CAUSES[segment.cause],
            host=segment.host,
            round_id=segment.round_id,
            iteration=segment.iteration,
            host_seconds=segment.hosts / SECOND,
        )
        message.age.seconds, message.age.nanos = divmod(age, SECOND)
        message.time.seconds, message.time.nanos = divmod(segment.time, SECOND)
        age -= segment.time


def _spent(time: Time) -> dict[str, Any]:
    return {"time": _duration(time.run), "host_seconds": time.hosts / SECOND}


def _duration(time: int) -> Duration:
    message = Duration()
    message.FromNanoseconds(time)
    return message


def stragglers_of(state: RunState, run: AnyRun | None) -> tuple[list[query_pb2.Straggler], int]:
    """Return the journaled stragglers with their latest times, and the number of all stragglers."""
    latest: Mapping[int, Straggler] = run.members.observer.slow if run is not None else {}
    journaled = sorted(state.observed.slow.items())[:NAMED_MAX]
    shown = [_STRAGGLER.write(latest.get(rank, straggler)) for rank, straggler in journaled]
    return shown, max(len(shown), len(latest))


def step_times_message(
    request: query_pb2.GetStepTimesRequest, state: RunState, run: AnyRun | None, *, now: float
) -> query_pb2.GetStepTimesResponse:
    """Return the step times of some ranks. Linear in all ranks only if the request names none.

    Raises ``InvalidRequest``, and ``UnknownRun`` if no round runs.
    """
    observer = None if run is None else run.members.observer
    times = None if observer is None else observer.step_times
    if (
        observer is None
        or times is None
        or state.round is None
        or state.round.round_id != times.round_id
    ):
        raise UnknownRun(request.run_id, "that has a round at present")
    size = state.round.world_size
    if len(request.ranks) > RANKS_MAX:
        allowed = f"at most {RANKS_MAX} ranks"
        raise InvalidRequest("ranks", f"{len(request.ranks)} of them", allowed)
    if above := [rank for rank in request.ranks if rank >= size]:
        raise InvalidRequest("ranks", str(above[0]), f"0 to {size - 1}, as round has them")
    ranks = sorted(set(request.ranks)) or times.slowest(RANKS_CHOSEN, observer.slow)
    columns = times.columns
    medians = [times.medians(column) for column in columns]
    has_busy = any(column.busy is not None for column in columns)
    stragglers, count = stragglers_of(state, run)
    response = query_pb2.GetStepTimesResponse(
        round_id=times.round_id,
        world_size=size,
        ages_seconds=[max(0.0, now - column.began_at) for column in columns],
        median_seconds=[steps for steps, _ in medians],
        median_busy_seconds=[busy for _, busy in medians] if has_busy else (),
        stragglers=stragglers,
        stragglers_count=count,
    )
    for rank, seat in zip(ranks, state.round.seats_of(ranks), strict=True):
        row = response.ranks.add(rank=rank, name=seat.agent.name, host=seat.agent.host)
        row.step_seconds.extend(column.steps[rank] for column in columns)
        if has_busy:
            row.busy_seconds.extend(
                column.busy[rank] if column.busy is not None else float("nan") for column in columns
            )
    return response


# Workers visited between two turns of other tasks: about 3 ms.
ROWS_PER_TURN = 2_000
# Time to serve one reader: receiving, encoding, encrypting.
ANSWER_S = 0.001

_OVERVIEW = View[GetOverviewResponse](giving_s=lambda _: ANSWER_S)


async def overview_of(
    readings: Readings, state: RunState, run: AnyRun | None, *, is_repeated: bool
) -> GetOverviewResponse:
    """Return an overview made after this call; if the call is repeated, a fresh one."""
    latest = await readings.get(
        _OVERVIEW,
        lambda _: make_overview(state, run, readings),
        state,
        is_repeated=is_repeated,
    )
    answer = GetOverviewResponse()
    answer.CopyFrom(latest)
    fresh_s = readings.fresh_until(_OVERVIEW, state) - readings.now()
    answer.fresh_for.CopyFrom(duration(max(0.0, fresh_s)))
    return answer


def make_overview(
    state: RunState, run: AnyRun | None, readings: Readings
) -> Generator[None, None, GetOverviewResponse]:
    """Make an overview in several turns."""
    overview, due = Overview(), ROWS_PER_TURN
    for agent in glimpses(state, run):
        overview.take(agent)
        if overview.rows_count >= due:
            due = overview.rows_count + ROWS_PER_TURN
            yield
    message = overview_message(state, run, overview, now=readings.now())
    shown, message.stragglers_count = stragglers_of(state, run)
    message.stragglers.extend(shown)
    return message
