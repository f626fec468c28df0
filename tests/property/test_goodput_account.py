"""Whatever is told in whatever order, no time of a run is counted twice or not at all."""

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from drumbeat.coordinator.observe.goodput.ledger import Ledger
from drumbeat.coordinator.observe.goodput.stretches import (
    Cause,
    Marks,
    Part,
    ProgressNoted,
    Stretch,
    StretchEnd,
    cut,
)
from tests.support.orders import at_most

INSTANTS = st.integers(-50, 150)
MAYBE = st.none() | INSTANTS
STEPS = st.none() | st.integers(0, 5)
MARKS = st.builds(
    Marks,
    is_stopping=st.booleans(),
    stopped=MAYBE,
    running=MAYBE,
    heard=MAYBE,
    began=MAYBE,
    progress=MAYBE,
    step_first=STEPS,
    step=STEPS,
    caught_up=MAYBE,
    away=st.lists(st.tuples(INSTANTS, INSTANTS), max_size=4).map(tuple),
)
END = st.none() | st.builds(
    StretchEnd, cause=st.sampled_from(Cause), host=st.sampled_from(["", "a", "b"]), since=MAYBE
)
AT = st.floats(0.001, 1e6)
NOTED = st.builds(ProgressNoted, marks=MARKS, at_s=AT, end=END)
DECIDED = st.tuples(
    AT, st.sampled_from(Stretch), st.integers(0, 4), st.none() | st.sampled_from(Cause)
)


@given(
    stretch=st.sampled_from(Stretch),
    marks=st.none() | MARKS,
    start=st.integers(0, 100),
    length=st.integers(0, 100),
    reached=STEPS,
    since=MAYBE,
)
def test_a_stretch_is_cut_without_gap_or_overlap(
    stretch: Stretch,
    marks: Marks | None,
    start: int,
    length: int,
    reached: int | None,
    since: int | None,
) -> None:
    end = start + length
    pieces = list(cut(stretch, marks, start, end, reached=reached, since=since))
    borders = [(first, last) for _, first, last in pieces]
    assert all(first < last for first, last in borders)
    assert all(before[1] == after[0] for before, after in pairwise(borders))
    assert (borders[0][0], borders[-1][1]) == (start, end) if length else not borders


@settings(max_examples=at_most(200))
@given(st.lists(NOTED | DECIDED, max_size=30), AT)
def test_parts_add_up_to_the_whole_in_any_order_of_events(
    events: list[ProgressNoted | tuple[float, Stretch, int, Cause | None]], now: float
) -> None:
    ledger = Ledger()
    for event in events:
        if isinstance(event, ProgressNoted):
            ledger.note(event)
        else:
            at_s, stretch, hosts, cause = event
            ledger.follow(at_s, stretch, hosts=hosts, cause=cause, known_since_s=at_s / 2)
        ledger.check_invariants()
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger) == ledger
    known = ledger.as_of(now, None)
    known.check_invariants()
    for part in Part:
        times = (each.time for each in known.segments if each.part is part)
        assert sum(times) == (known.parts[part].run if part in known.parts else 0)
    ledger.follow(now, None, hosts=1)
    whole, parts = ledger.whole, dict(ledger.parts)
    ledger.follow(now + 1.0, None, hosts=2)
    assert (ledger.whole, ledger.parts) == (whole, parts), "a run that has ended has no time"
