"""What failure records may take: of one run, of all, in memory and in the journal."""

from hypothesis import given
from hypothesis import strategies as st

from drumbeat.coordinator.core.failures.root_cause import insert_most_telling
from drumbeat.coordinator.core.model import FailureRecord
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.run.records import (
    USUAL_BYTES,
    FailureRecorded,
    FailuresCounted,
    RoundStarted,
    weight,
)
from tests.support.journal import fold, round_trip
from tests.support.world import Story, a_record, a_story

KIB = 1024


def a_running(policy: Policy, *names: str) -> Story:
    """Return a story with a run of one agent under each of these names."""
    story = a_story(1, policy=policy)
    for name in names or ("a",):
        story.join(name, run_id=name)
        story.obey(name)
    return story


def limits(per_run: int, of_all: int, least: int) -> Policy:
    return Policy(
        failures_bytes_per_run_max=per_run,
        failures_bytes_max=of_all,
        failures_bytes_least=least,
    )


def test_a_record_that_tells_less_than_those_kept_is_only_counted() -> None:
    story = a_running(limits(100 * KIB, 10**9, 64 * KIB))
    for number in range(5):  # each happened before the one that came before it
        story.record("a", size_bytes=40 * KIB, age_s=float(number))
    for number in range(5):
        (answer,) = [e for e in story.record("a", size_bytes=40 * KIB) if hasattr(e, "result")]
        assert answer.result is False, number
    state = story.state("a")
    assert [record.sequence for record in state.failures] == [5, 4]
    assert (state.failures_count, state.failures_heard) == (10, {"a.1": 10})
    assert state.failures_bytes == 80 * KIB
    assert len(story.records(FailureRecorded)) == 5
    assert len(story.records(FailuresCounted)) == 5
    assert not any(weight(record) > 1 for record in story.records(FailuresCounted))
    assert fold(round_trip(story.journal))["a"] == state
    story.registry.check_invariants()


def test_a_dropped_record_that_comes_again_is_counted_once() -> None:
    story = a_running(limits(10, 10**9, 10))
    story.record("a", size_bytes=10)
    story.record("a", size_bytes=10)
    story.restart()
    story.back("a")
    story.record("a", sequence=2, size_bytes=10)
    assert story.state("a").failures_count == 2


def test_all_runs_share_a_budget_and_each_can_tell_its_first_failure() -> None:
    story = a_running(limits(100, 150, 20), "a", "b", "c")
    for name in ("a", "b", "c"):
        for _ in range(20):
            story.record(name, size_bytes=10)
    held = {name: story.state(name).failures_bytes for name in ("a", "b", "c")}
    assert held == {"a": 100, "b": 50, "c": 20}
    story.registry.check_invariants()
    story.succeed("a")  # what it held is free again
    for _ in range(20):
        story.record("c", size_bytes=10)
    assert story.state("c").failures_bytes == 100
    story.registry.check_invariants()
    story.restart()
    story.registry.check_invariants()


def test_the_most_telling_record_is_kept_however_large_it_is() -> None:
    story = a_running(limits(100, 100, 50))
    story.record("a", size_bytes=40)
    story.record("a", size_bytes=10_000, age_s=5.0)
    assert [record.sequence for record in story.state("a").failures] == [2]


@given(
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 60)), max_size=30),
    st.integers(1, 8),
    st.integers(10, 200),
)
def test_a_table_keeps_to_its_limits_and_knows_its_size(
    records: list[tuple[float, int]], count_max: int, bytes_max: int
) -> None:
    table: list[FailureRecord] = []
    held = 0
    for sequence, (happened_at, size) in enumerate(records):
        record = a_record(sequence, happened_at=happened_at, size_bytes=size)
        held = insert_most_telling(
            table, record, held=held, count_max=count_max, bytes_max=bytes_max
        )
        assert held == sum(each.size_bytes for each in table)
        assert len(table) <= count_max
        assert held <= bytes_max or len(table) == 1


def test_large_records_bring_a_snapshot_sooner() -> None:
    record = a_record(size_bytes=256 * KIB)
    assert weight(FailureRecorded(record=record)) == 1 + 256 * KIB // USUAL_BYTES
    started = RoundStarted(
        round_id=0,
        participants=tuple("i" * 32 for _ in range(10_000)),
        master_addr="a",
        master_port=1,
        reason="",
    )
    assert weight(started) > 100
    assert weight(FailuresCounted(heard={"a": 1}, count=1)) == 1
