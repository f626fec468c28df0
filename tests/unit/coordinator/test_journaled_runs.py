"""The runs as the journal has them: when a snapshot is due, and whose a run is."""

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.effects import Effect, Forget, Persist
from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.run.records import (
    USUAL_BYTES,
    AgentAdmitted,
    FailureRecorded,
    FailuresCounted,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.journal.batches import Compact
from drumbeat.coordinator.journal.journal import JournaledRuns
from tests.support.world import a_record, a_spec, an_agent

CREATED = Persist(run_id="r", record=RunCreated(run_id="r", spec=a_spec(1)))
ADMITTED = Persist(run_id="r", record=AgentAdmitted(agent=an_agent("a")))


def test_a_snapshot_is_due_after_so_many_records_of_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drumbeat.coordinator.journal.journal.RECORDS_PER_SNAPSHOT", 3)
    runs = JournaledRuns()
    large = FailureRecorded(record=replace(a_record(1), size_bytes=USUAL_BYTES))
    heavy = Persist(run_id="r", record=large)
    batches: list[list[Effect]] = [[CREATED, ADMITTED], [heavy], [heavy], [heavy]]
    written = []
    for effects in batches:
        changes = runs.changes(effects)
        written.append([type(change) for change in changes])
        runs.take(changes)
    assert written == [[Persist, Persist], [Persist], [Compact, Persist], [Persist]]


def test_counted_failures_of_a_run_are_one_record_and_what_is_not_kept_is_none() -> None:
    counts = [FailuresCounted(heard={"a.1": number}, count=1) for number in (2, 3)]
    effects: list[Effect] = [Persist(run_id="r", record=count) for count in counts]
    both = FailuresCounted(heard={"a.1": 3}, count=2)
    changes = JournaledRuns().changes([CREATED, effects[0], Forget(run_id="q"), effects[1]])
    assert changes == [CREATED, Forget(run_id="q"), Persist(run_id="r", record=both)]


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_counted_failures_come_before_the_end_of_their_run(is_forgotten: bool) -> None:
    counted = Persist(run_id="r", record=FailuresCounted(heard={"a.1": 1}, count=1))
    verdict = Verdict(cause=VerdictCause.STOPPED, reason="", restart_count=0, round_id=None)
    end = (
        Forget(run_id="r")
        if is_forgotten
        else Persist(run_id="r", record=RunEnded(verdict=verdict))
    )
    changes = JournaledRuns().changes([CREATED, counted, end])
    assert changes[:3] == [CREATED, counted, end]
    assert [type(change) for change in changes[3:]] == ([] if is_forgotten else [Compact])


def test_who_takes_a_run_takes_a_copy() -> None:
    runs = JournaledRuns()
    runs.take([CREATED, ADMITTED])
    copied = runs.copy("r")
    assert copied is not None
    assert copied == runs.find("r")
    copied.members.clear()
    assert runs.states["r"].members
    assert runs.copy("s") is None
