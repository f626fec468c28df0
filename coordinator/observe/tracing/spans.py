"""Pure. What a journaled decision on a run ends, as spans: rounds, restarts, iterations, the run.

Everything is read from the run's durable state before the decision and from the decision itself,
so any coordinator that leads tells the same spans, with the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from drumbeat.coordinator.core.inprocess.records import (
    IterationInterrupted,
    IterationPhase,
    IterationRecord,
)
from drumbeat.coordinator.core.model import Round, VerdictCause
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.stretches import (
    FAILURES,
    Cause,
    Part,
    ProgressNoted,
    Stretch,
    cut,
)
from drumbeat.coordinator.observe.observations import RoundTimes
from drumbeat.coordinator.observe.tracing.failures import bounded, failures_of, moments_of
from drumbeat.coordinator.observe.tracing.model import Attributes, Link, Moment, Place, Span
from drumbeat.text.durations import nanoseconds

# Kinds of traces. A restart has the number of the round that it leads to.
RUN, ROUND, RESTART = "run", "round", "restart"

_Ended = rec.RoundEnded | rec.EndingStarted | rec.RunEnded

_FINE_ENDS = frozenset(
    {rec.RoundEnd.AGENT_JOINED, rec.RoundEnd.RESTART_ASKED, rec.RoundEnd.REHEARSED}
)
_FINE_VERDICTS = frozenset({VerdictCause.SUCCEEDED, VerdictCause.STOPPED})
_PARTS = {Part.STOPPING: "stopping", Part.WAITING: "waiting", Part.STARTING: "starting"}


def spans_of(state: RunState, record: rec.Record) -> list[Span]:
    """Return the spans that end with a record; ``state`` is that of the run before it."""
    match record:
        case ProgressNoted() if state.phase is Phase.RUNNING:
            times = state.observed.times.noted(record, state.observed.ledger.reached)
            is_news = state.observed.times.is_starting and times.progressed is not None
            return list(_restarted(state, times, record)) if is_news else []
        case rec.RoundStarted():  # its restart is not over yet
            root = Place.of(state, RESTART, record.round_id)
            since, until = _gathering_since(state), nanoseconds(record.at_s)
            return list(_parts(state, root, since, until))
        case rec.RoundEnded() | rec.EndingStarted() if state.phase is Phase.RUNNING:
            return list(_round_over(state, record))
        case rec.RunEnded():
            return list(_run_over(state, record))
        case _ if isinstance(record, IterationRecord):
            return list(_iterated(state, record))
    return []


def _restarted(
    state: RunState, times: RoundTimes, record: ProgressNoted | _Ended
) -> Iterator[Span]:
    """Tell of the restart that led to the round: it progresses, or has ended and never did."""
    current, ledger = state.round, state.observed.ledger
    assert current is not None, "it runs"
    assert times.began is not None, "it runs"
    is_first = times.before is None
    since = ledger.began if is_first else times.before_ended
    start = times.began if since is None else since
    error = ""
    if (end := times.progressed) is None:
        end = nanoseconds(record.at_s)
        why = "" if isinstance(record, ProgressNoted) else _reason(record)
        error = f"round {current.round_id} ended before it progressed: {why}"
    root = Place.of(state, RESTART, current.round_id)
    marks = record.marks if isinstance(record, ProgressNoted) else ledger.marks
    pieces = cut(Stretch.ROUND, marks, times.began, max(end, times.began), reached=ledger.reached)
    for part, first, last in pieces:
        if part in _PARTS:
            yield _part(state, root, part, first, last, current.round_id)
    moments: tuple[Moment, ...] = ()
    if times.before is not None and ledger.cause in FAILURES:
        moments = failures_of(state.failures, times.before)
    links = [Link(Place.of(state, ROUND, current.round_id), "leads_to")]
    if times.before is not None:
        links.append(Link(Place.of(state, ROUND, times.before), "follows"))
    yield Span(
        place=root,
        name="start" if is_first else "restart",
        start=start,
        end=max(end, start, times.began),  # progress may have been heard of before
        attributes={
            **_of_round(state, current),
            **_lost_for(state),
            "drumbeat.restart.count": current.restart_count,
        },
        error=bounded(error),
        moments=moments,
        links=(*links, _to_run(state)),
    )


def _round_over(state: RunState, record: _Ended) -> Iterator[Span]:
    """Tell of a round that ends, of its start if it never progressed, of what it was about."""
    current, times, ending = state.round, state.observed.times, state.observed.ledger.end
    if current is None or times.began is None:
        return  # a coordinator of an earlier version began it
    over = times.left(record.at_s, state.observed.ledger)
    if times.progressed is None:
        yield from _restarted(state, over, record)
    root, end = Place.of(state, ROUND, current.round_id), nanoseconds(record.at_s)
    error = bounded(_error(state, record))
    yield from _last_iteration(state, root, end, error)
    if ending is not None and ending.since is not None and ending.since < end:
        attributes = _in_round(state, current.round_id)
        between = max(ending.since, times.began), end
        yield _child(root, "detecting", between, attributes, error=error)
    yield Span(
        place=root,
        name="round",
        start=times.began,
        end=max(end, times.began),
        attributes={
            **_of_round(state, current),
            "drumbeat.restart.count": current.restart_count,
            "drumbeat.round.end": bounded(_reason(record)),
            **({"error.type": _cause(state, record)} if error else {}),
            **({"drumbeat.agent.name": ending.host} if ending is not None and ending.host else {}),
        },
        error=error,
        moments=failures_of(state.failures, current.round_id) if error else (),
        links=(Link(Place.of(state, RESTART, current.round_id), "follows"), _to_run(state)),
    )


def _run_over(state: RunState, record: rec.RunEnded) -> Iterator[Span]:
    """Tell of a run that ends, and of what it was about."""
    verdict, ledger, end = record.verdict, state.observed.ledger, nanoseconds(record.at_s)
    root = Place.of(state, RUN)
    if state.phase is Phase.RUNNING:
        yield from _round_over(state, record)
    elif state.phase is Phase.GATHERING:
        lost = Place.of(state, RESTART, state.next_round_id)
        start = min(_gathering_since(state), end)
        yield from _parts(state, lost, start, end)
        name, error = "start" if state.round is None else "restart", bounded(_error(state, record))
        attributes = {**_run(state), **_lost_for(state)}
        yield Span(
            place=lost, name=name, start=start, end=end, attributes=attributes, error=error,
            links=(_to_run(state),),
        )  # fmt: skip
    elif state.observed.times.ended is not None:
        yield _child(root, "stopping", (min(state.observed.times.ended, end), end), _run(state))
    error = "" if verdict.cause in _FINE_VERDICTS else bounded(verdict.reason)
    attributes = {
        **_run(state),
        "drumbeat.run.cause": verdict.cause.value,
        "drumbeat.run.reason": bounded(verdict.reason),
        "drumbeat.run.restarts": state.restart_count,
        "drumbeat.run.restarts_in_process": state.iterations_restarted,
        "drumbeat.run.failures": state.failures_count,
        **({"error.type": verdict.cause.value} if error else {}),
    }
    if verdict.goodput:
        attributes["drumbeat.run.goodput"] = verdict.goodput
    start = end if ledger.began is None else min(ledger.began, end)
    causes = verdict.report.root_causes if error and verdict.report is not None else ()
    yield Span(
        place=root, name="run", start=start, end=end, attributes=attributes, error=error,
        moments=moments_of(causes),
    )  # fmt: skip


def _iterated(state: RunState, record: IterationRecord) -> Iterator[Span]:
    """Tell of an iteration that ends, or of a restart in process."""
    current, iterations = state.round, state.iterations
    if current is None or iterations is None:
        return
    root, end = Place.of(state, ROUND, current.round_id), nanoseconds(record.at_s)
    phase = iterations.phase
    is_again = isinstance(record, IterationInterrupted)
    if phase is IterationPhase.INTERRUPTED and is_again:
        return  # before the next one began: it is one restart
    error = record.reason if isinstance(record, IterationInterrupted) else ""
    yield from _last_iteration(state, root, end, bounded(error))


def _last_iteration(state: RunState, root: Place, end: int, error: str) -> Iterator[Span]:
    """Tell of the iteration that runs, or of the restart in process that is under way."""
    iterations = state.iterations
    if iterations is None or not iterations.since_s:
        return
    number = iterations.iteration
    if iterations.phase is IterationPhase.RUNNING:
        name = "iteration"
    elif iterations.phase is IterationPhase.INTERRUPTED:
        name, number = "restart in process", number + 1
    else:
        return
    attributes = {
        **_in_round(state, iterations.round_id),
        "drumbeat.iteration.id": number,
        "drumbeat.iteration.active_world_size": iterations.active_world_size,
    }
    if iterations.reason:
        attributes["drumbeat.iteration.reason"] = bounded(iterations.reason)
    between = min(nanoseconds(iterations.since_s), end), end
    yield _child(root, name, between, attributes, number, error=error)


def _parts(state: RunState, root: Place, start: int, end: int) -> Iterator[Span]:
    """Tell what the time between two rounds, or before the first, went into."""
    stretch, round_id = state.stretch(), state.next_round_id
    if stretch is None:
        return
    for part, first, last in cut(stretch, state.observed.ledger.marks, min(start, end), end):
        if part in _PARTS:
            yield _part(state, root, part, first, last, round_id)


def _part(state: RunState, root: Place, part: Part, first: int, last: int, round_id: int) -> Span:
    # Workers of before may still be stopped as the next round starts, so it may be there twice.
    number = int(state.phase is Phase.RUNNING)
    return _child(root, _PARTS[part], (first, last), _in_round(state, round_id), number)


def _child(
    root: Place,
    name: str,
    between: tuple[int, int],
    attributes: Attributes,
    number: int = 0,
    *,
    error: str = "",
) -> Span:
    """Return a span within another one."""
    start, end = between
    return Span(
        place=root.child(name, number),
        parent=root,
        name=name,
        start=start,
        end=end,
        attributes=attributes,
        error=error,
    )


def _gathering_since(state: RunState) -> int:
    """Return since when there is no round."""
    since = state.observed.ledger.began if state.round is None else state.observed.times.ended
    return state.observed.ledger.until if since is None else since


def _run(state: RunState) -> Attributes:
    return {"drumbeat.run.id": state.run_id, "drumbeat.run.generation": state.generation}


def _in_round(state: RunState, round_id: int) -> Attributes:
    return {**_run(state), "drumbeat.round.id": round_id}


def _of_round(state: RunState, current: Round) -> Attributes:
    return {
        **_in_round(state, current.round_id),
        "drumbeat.round.reason": bounded(current.reason),
        "drumbeat.round.agents": current.group_world_size,
        "drumbeat.round.world_size": current.world_size,
    }


def _to_run(state: RunState) -> Link:
    return Link(Place.of(state, RUN), "run")


def _lost_for(state: RunState) -> Attributes:
    """Return what the round before was ended for."""
    ledger = state.observed.ledger
    attributes: Attributes = {"drumbeat.restart.cause": ledger.cause.value}
    if ledger.host:
        attributes["drumbeat.restart.host"] = ledger.host
    return attributes


def _reason(record: _Ended) -> str:
    return record.verdict.reason if isinstance(record, rec.RunEnded) else record.reason


def _error(state: RunState, record: _Ended) -> str:
    """Return why a round ended badly, empty if it did not."""
    ending = state.observed.ledger.end
    is_drained = ending is not None and ending.cause is Cause.AGENT_DRAINED
    is_fine = isinstance(record, rec.RoundEnded) and (record.cause in _FINE_ENDS or is_drained)
    if isinstance(record, rec.EndingStarted):
        is_fine = record.cause in _FINE_VERDICTS
    elif isinstance(record, rec.RunEnded):
        is_fine = record.verdict.cause in _FINE_VERDICTS
    return "" if is_fine else _reason(record)


def _cause(state: RunState, record: _Ended) -> str:
    """Return what a round ended for, in a word."""
    if (ending := state.observed.ledger.end) is not None:
        return ending.cause.value
    return record.verdict.cause.value if isinstance(record, rec.RunEnded) else record.cause.value
