"""Many decisions of one kind in a row are one event, and what matters is kept longest."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.effects import Decided
from drumbeat.coordinator.core.phases.phase import decided
from drumbeat.coordinator.core.run.history import NAMES_MAX, REASON_CHARACTERS_MAX, SINGLE_MAX
from drumbeat.coordinator.core.run.notice import NoticeEnded
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    CallKind,
    CallNoted,
    Record,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
)
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.observations import HealthNoted
from drumbeat.coordinator.wire.run_status import events_page, new_events, overview_message
from drumbeat.v1 import query_pb2
from tests.support.status import kind
from tests.support.world import a_spec, an_agent

SILENT = "was silent for 5 s"


def a_state(*records: Record, history_max: int = 1_000) -> RunState:
    state = RunState.created(
        RunCreated(run_id="run", spec=a_spec(1, 2_000, restarts_max=200), history_max=history_max)
    )
    for record in records:
        state.apply(record)
    return state


def joins(names: Iterable[object]) -> list[Record]:
    return [
        AgentAdmitted(agent=an_agent(f"gpu{name}"), at_s=float(at))
        for at, name in enumerate(names, 1)
    ]


def losses(names: Iterable[object], reason: str = SILENT) -> list[Record]:
    return [
        AgentRemoved(incarnation=f"gpu{name}.1", reason=reason, is_lost=True, at_s=9.0)
        for name in names
    ]


def a_crash(round_id: int) -> list[Record]:
    started = RoundStarted(
        round_id=round_id,
        participants=("gpu1.1",),
        master_addr="10.0.0.1",
        master_port=1,
        reason="",
        closing="all are there",
    )
    return [started, RoundEnded(cause=RoundEnd.WORKER_FAILED, reason=f"round {round_id} failed")]


def reasons(state: RunState) -> list[str]:
    return [entry.reason for entry in state.history]


def told(state: RunState, after: int) -> list[tuple[int, int, str]]:
    """Return sequence, count and reason of all events after one."""
    request = query_pb2.ListEventsRequest(after_sequence=after)
    page = events_page(request, state, now=10.0)
    return [(event.sequence, event.count, event.reason) for event in page.events]


def test_a_handful_in_a_row_stay_single() -> None:
    state = a_state(*joins(range(1, SINGLE_MAX + 1)))
    assert reasons(state) == [f"gpu{i} joined" for i in range(1, SINGLE_MAX + 1)]
    assert {count for _, count, _ in told(state, 0)} == {0}


def test_more_in_a_row_are_one_event_with_the_place_and_time_of_the_latest() -> None:
    state = a_state(*joins(range(1, 1_101)))
    (entry,) = state.history
    assert entry.reason == "1,100 agents joined: gpu1, gpu2, gpu3, gpu4, gpu5 and 1,095 more"
    assert (entry.sequence, entry.count, entry.at_s) == (1_100, 1_100, 1_100.0)
    assert len(entry.names) == 2 * NAMES_MAX
    (event,) = events_page(query_pb2.ListEventsRequest(), state, now=1_102.0).events
    assert (kind(event), event.count, event.age.seconds) == ("agent admitted", 1_100, 2)


def test_losses_keep_why_if_it_is_the_same() -> None:
    state = a_state(*joins(range(20)), *losses(range(10)))
    assert (
        reasons(state)[-1]
        == f"10 agents removed: gpu0, gpu1, gpu2, gpu3, gpu4 and 5 more: {SILENT}"
    )
    state.apply(losses([10], "its host restarted")[0])
    assert reasons(state)[-1] == "11 agents removed: gpu0, gpu1, gpu2, gpu3, gpu4 and 6 more"
    state.apply(losses([11])[0])
    assert reasons(state)[-1] == "12 agents removed: gpu0, gpu1, gpu2, gpu3, gpu4 and 7 more"


def test_drains_of_one_caller_and_checks_of_health_are_told_together() -> None:
    def undrain(number: int, caller: str) -> Record:
        reason = f"gpu{number}: repaired"
        return CallNoted(kind=CallKind.AGENT_UNDRAINED, reason=reason, caller=caller)

    sick: list[Record] = [HealthNoted(name=f"gpu{i}", reason="ECC") for i in range(9)]
    well: list[Record] = [HealthNoted(name=f"gpu{i}") for i in range(9)]
    state = a_state(*(undrain(i, "ann") for i in range(9)), undrain(9, "bob"), *sick, *well)
    names = "gpu0, gpu1, gpu2, gpu3, gpu4 and 4 more"
    assert [(entry.reason, entry.caller) for entry in state.history] == [
        (f"9 agents undrained: {names}: repaired", "ann"),
        ("gpu9: repaired", "bob"),
        (f"9 agents unhealthy: {names}: ECC", ""),
        (f"9 agents healthy again: {names}", ""),
    ]


def test_what_stands_between_is_not_passed_over() -> None:
    state = a_state(*joins(range(1, 10)), *a_crash(0), *joins(range(10, 19)))
    assert [entry.count for entry in state.history] == [9, 1, 1, 9]
    assert [entry.round_id for entry in state.history] == [None, 0, 0, 0]


def test_a_reader_is_told_of_what_it_does_not_know_alone() -> None:
    state = a_state(*joins(range(1, 21)))
    assert told(state, 3) == [
        (20, 17, "17 agents joined: gpu16, gpu17, gpu18, gpu19, gpu20 and 12 more")
    ]
    assert told(state, 17) == [(20, 3, "3 agents joined: gpu18, gpu19 and gpu20")]
    assert told(state, 19) == [(20, 0, "gpu20 joined")]
    assert told(state, 20) == []


def test_one_alone_of_several_reasons_is_told_with_its_own() -> None:
    state = a_state(*joins(range(10)), *losses(range(9)), *losses([9], "it left"))
    assert told(state, 19) == [(20, 0, "gpu9: it left")]
    assert told(state, 18) == [(20, 2, "2 agents removed: gpu8 and gpu9")]


def test_what_an_event_stands_for_is_not_missed() -> None:
    state = a_state(*joins(range(1, 101)), *a_crash(0))
    for after in (0, 5, 99, 100):
        events, missed = new_events(state, after, now=10.0)
        assert ([event.sequence for event in events][-2:], missed) == ([101, 102], 0)


def test_what_is_forgotten_is_missed() -> None:
    state = a_state(*joins(range(4)), *a_crash(0), *joins(range(4, 20)), history_max=4)
    events, missed = new_events(state, 0, now=10.0)
    assert missed == state.events_count - sum(event.count or 1 for event in events) > 0


def test_the_log_tells_each_decision() -> None:
    state = a_state(*joins(range(1, 20)))
    _, log = decided(state, joins([20])[0])
    assert isinstance(log, Decided)
    assert log.reason == "gpu20 joined"


def test_crashes_outlast_joins_and_losses() -> None:
    """Whatever the order in which hosts come and go."""
    storm = [r for i in range(1_100) for r in (*joins([f"{i}x"]), *losses([f"{i}x"]))]
    state = a_state(*joins([1]), *a_crash(0), *a_crash(1), *storm)
    assert [entry.reason for entry in state.history if entry.round_id is not None][:4] == [
        "1 agent; all are there",
        "round 0 failed",
        "1 agent; all are there",
        "round 1 failed",
    ]
    assert len(state.history) == 1_000


def test_the_latest_tenth_is_kept_of_whatever_kind() -> None:
    rounds = [r for i in range(20) for r in a_crash(i)]
    ends: list[Record] = [NoticeEnded(notice_id=i, reason="saved") for i in range(3)]
    state = a_state(*joins([1]), *rounds, *ends, history_max=20)
    assert reasons(state)[-3:] == ["saved"] * 3
    for record in a_crash(20):
        state.apply(record)
    assert reasons(state)[-3:] == ["saved", "1 agent; all are there", "round 20 failed"]
    assert len(state.history) == 20


def test_a_reason_of_many_is_bounded() -> None:
    state = a_state(*joins("x" * 500 + str(i) for i in range(20)))
    (entry,) = state.history
    assert len(entry.reason) == REASON_CHARACTERS_MAX
    assert len(told(state, 10)[0][2]) <= REASON_CHARACTERS_MAX


def test_the_latest_events_of_an_overview_are_entries() -> None:
    state = a_state(*joins(range(1, 101)), *(r for i in range(6) for r in a_crash(i)))

    class NoOverview:
        rows_count = 0
        behind = str
        chosen = dict
        growing = tuple

    overview = overview_message(state, None, NoOverview(), now=10.0)  # type: ignore[arg-type]
    assert [event.sequence for event in overview.events] == list(range(103, 113))
    few = a_state(*joins(range(1, 101)), *a_crash(0))
    shown = overview_message(few, None, NoOverview(), now=10.0)  # type: ignore[arg-type]
    assert [event.count for event in shown.events] == [100, 0, 0]


@given(
    steps=st.lists(st.sampled_from("jjjjjjjjjjjjlllllllllllllcu"), max_size=120),
    most=st.integers(min_value=3, max_value=40),
    cut=st.integers(min_value=0, max_value=120),
)
def test_each_decision_is_told_once_or_missed_however_it_is_read(
    steps: list[str], most: int, cut: int
) -> None:
    """Also by a coordinator that went on from a snapshot."""
    state, known, missed = a_state(*joins([1]), history_max=most), 0, 0
    rounds = count = 0
    for number, step in enumerate(steps):
        match step:
            case "j":
                records = joins([f"{number}x"])
            case "l":
                records = losses([f"{number - 12}x"])
            case "c":
                records, rounds = a_crash(rounds), rounds + 1
            case _:
                records = [HealthNoted(name="gpu1", reason="ECC")]
        for record in records:
            state.apply(record)
        if number == cut:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=RunState)
        if number % 7 == 0:
            events, lost = new_events(state, known, now=10.0)
            sequences = [event.sequence for event in events]
            assert sequences == sorted(set(sequences))
            known = sequences[-1] if sequences else known
            count, missed = count + sum(event.count or 1 for event in events), missed + lost
            assert known == count + missed == state.events_count
            assert lost >= 0
    state.check_invariants()
    ends = [entry.sequence for entry in state.history]
    begins = [entry.sequence - entry.count + 1 for entry in state.history]
    assert all(end < begin for end, begin in zip(ends, begins[1:], strict=False))


@pytest.mark.parametrize("number", [10_000])
def test_ten_thousand_joins_hold_one_entry_at_any_time(number: int) -> None:
    state = a_state()
    for record in joins(range(number)):
        state.apply(record)
        assert len(state.history) <= SINGLE_MAX
    assert state.history[0].count == number
