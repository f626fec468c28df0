"""The spans that a journal makes, held against what all of them have in common."""

from collections.abc import Iterable

import msgspec

from drumbeat.coordinator.core.run.records import Record, RoundStarted, RunCreated, RunEnded
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.tracing.model import Span
from drumbeat.coordinator.observe.tracing.spans import spans_of


def journal_spans(
    journal: Iterable[tuple[str, Record]], *, is_handed_over: bool = False
) -> list[Span]:
    """Return all spans of a journal; perhaps each by a coordinator that has just come."""
    states: dict[str, RunState] = {}
    found: list[Span] = []
    begun = vain = 0  # rounds, and restarts without one
    for key, record in journal:
        if isinstance(record, RunCreated):
            states[key] = RunState.created(record)
            continue
        begun += isinstance(record, RoundStarted)
        vain += isinstance(record, RunEnded) and states[key].phase is Phase.GATHERING
        found += spans_of(states[key], record)
        states[key].apply(record)
        if is_handed_over:
            states[key] = msgspec.json.decode(msgspec.json.encode(states[key]), type=RunState)
    _check(found)
    rounds, starts, runs = (
        sum(span.name in names for span in found)
        for names in ({"round"}, {"start", "restart"}, {"run"})
    )
    phases = [state.phase for state in states.values()]
    assert runs == phases.count(Phase.ENDED)
    assert rounds == begun - phases.count(Phase.RUNNING)
    if phases == [Phase.ENDED]:
        assert starts == begun + vain
    return found


def _check(found: list[Span]) -> None:
    by_place = {span.place: span for span in found}
    assert len(by_place) == len(found), "a span is told twice"
    for span in found:
        assert span.start <= span.end, span
        if span.parent is None:
            continue
        assert span.parent.trace_id == span.place.trace_id
        if (parent := by_place.get(span.parent)) is not None:
            assert parent.start <= span.start, (parent, span)
            assert span.end <= parent.end, (parent, span)
