"""The durable state is the fold of its records."""

import itertools
from typing import Any

import msgspec
import pytest

from drumbeat.coordinator.core.model import Verdict, VerdictCause
from drumbeat.coordinator.core.run.history import REASON_CHARACTERS_MAX
from drumbeat.coordinator.core.run.records import (
    AgentAdmitted,
    AgentRemoved,
    EndingStarted,
    FailureRecorded,
    GroupSucceeded,
    HistoryEntry,
    Record,
    RoundEnd,
    RoundEnded,
    RoundStarted,
    RunCreated,
    RunEnded,
)
from drumbeat.coordinator.core.run.state import (
    MASTERS_SPENT_MAX,
    TRANSITION_HISTORY_MAX,
    TRANSITIONS,
    InvalidTransition,
    Phase,
    RunState,
)
from tests.support.journal import json_round_trip
from tests.support.world import a_record, a_spec, an_agent


def started(round_id: int = 0, names: str = "ab", port: int = 1) -> RoundStarted:
    return RoundStarted(
        round_id=round_id,
        participants=tuple(f"{name}.1" for name in names),
        master_addr=f"10.{names[0]}",
        master_port=port,
        reason=f"round {round_id}",
        closing="all are there",
        at_s=float(round_id),
    )


def ended() -> RoundEnded:
    return RoundEnded(cause=RoundEnd.WORKER_FAILED, reason="failed")


FAILED = RunEnded(
    verdict=Verdict(cause=VerdictCause.WORKER_FAILED, reason="no", restart_count=0, round_id=0)
)
# The record that enters a phase, and the records that lead to it.
ENTERS: dict[Phase, Record] = {
    Phase.GATHERING: ended(),
    Phase.RUNNING: started(1),
    Phase.ENDING: EndingStarted(reason="failing"),
    Phase.ENDED: FAILED,
}
PATHS: dict[Phase, list[Record]] = {
    Phase.GATHERING: [],
    Phase.RUNNING: [started()],
    Phase.ENDING: [started(), ENTERS[Phase.ENDING]],
    Phase.ENDED: [FAILED],
}


def state_of(*records: Record, **limits: Any) -> RunState:
    created = RunCreated(run_id="run", spec=a_spec(1, 4, restarts_max=9), **limits)
    state = RunState.created(created)
    for record in (
        AgentAdmitted(agent=an_agent("a", local_world_size=2)),
        AgentAdmitted(agent=an_agent("b")),
        *records,
    ):
        state.apply(record)
    return state


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Phase, Phase)))
def test_every_pair_of_phases_is_a_transition_or_a_mistake(source: Phase, target: Phase) -> None:
    state = state_of(*PATHS[source])
    assert state.phase is source
    if target in TRANSITIONS[source]:
        state.apply(ENTERS[target])
        assert state.phase is target
    else:
        with pytest.raises(InvalidTransition) as caught:
            state.apply(ENTERS[target])
        assert str(caught.value).startswith(f"run run: {source} can't become {target}; history: ")


def test_which_phases_follow_which() -> None:
    follow = {
        str(source): sorted(str(t) for t in targets) for source, targets in TRANSITIONS.items()
    }
    assert follow == {
        "GATHERING": ["ENDED", "RUNNING"],
        "RUNNING": ["ENDED", "ENDING", "GATHERING"],
        "ENDING": ["ENDED", "GATHERING"],
        "ENDED": [],
    }


def test_a_round_has_seats_and_the_restart_count_of_its_time() -> None:
    state = state_of(started(), ended(), started(1, "ba", port=2))
    assert state.round is not None
    assert [seat.group_rank for seat in state.seats.values()] == [0, 1]
    assert list(state.seats) == ["b.1", "a.1"]
    assert [seat.rank_first for seat in state.round.seats.values()] == [0, 1]
    assert (state.round.world_size, state.round.restart_count) == (3, 1)
    assert (state.round_id, state.next_round_id) == (1, 2)
    assert state.masters_spent == [("10.a", 1), ("10.b", 2)]


def test_before_the_first_round_there_is_none() -> None:
    state = state_of()
    assert (state.round_id, state.next_round_id, state.seats) == (None, 0, {})
    assert state.lost_participants() == set()
    assert not state.is_awaited("a.1")


def test_a_new_round_awaits_everyone_anew() -> None:
    succeeded = GroupSucceeded(round_id=0, incarnation="a.1")
    state = state_of(started(), succeeded)
    assert (state.is_awaited("a.1"), state.is_awaited("b.1")) == (False, True)
    state.apply(ended())
    assert not state.is_awaited("b.1")
    state.apply(started(1))
    assert state.is_awaited("a.1")


def test_lost_participants_are_those_who_had_not_succeeded() -> None:
    state = state_of(
        started(),
        GroupSucceeded(round_id=0, incarnation="a.1"),
        AgentRemoved(incarnation="a.1", reason="left"),
        AgentRemoved(incarnation="b.1", reason="lost"),
    )
    assert state.lost_participants() == {"b.1"}
    assert state.members == {}


def test_failures_are_counted_all_and_kept_up_to_a_limit() -> None:
    records = [FailureRecorded(record=a_record(n, happened_at=float(n))) for n in range(1, 6)]
    state = state_of(started(), *records, failures_kept_max=3)
    assert [record.sequence for record in state.failures] == [1, 2, 3]
    assert (state.failures_count, state.failures_heard) == (5, {"a.1": 5})


def test_history_and_spent_addresses_are_bounded() -> None:
    rounds = 2 * MASTERS_SPENT_MAX
    records = [r for n in range(rounds) for r in (started(n, port=n + 1), ended())]
    state = state_of(*records, history_max=5)
    assert len(state.masters_spent) == MASTERS_SPENT_MAX
    assert state.masters_spent[-1] == ("10.a", rounds)
    assert [f"{entry.decision}: {entry.reason}" for entry in state.history] == [
        "round ended: failed",
        "round started: 2 agents; all are there",
        "round ended: failed",
        "round started: 2 agents; all are there",
        "round ended: failed",
    ]
    assert [entry.round_id for entry in state.history] == [
        rounds - 3, rounds - 2, rounds - 2, rounds - 1, rounds - 1,
    ]  # fmt: skip


def test_every_decision_is_in_the_history_with_its_time_and_round() -> None:
    failed = Verdict(cause=VerdictCause.WORKER_FAILED, reason="no", restart_count=1, round_id=0)
    state = state_of(
        AgentAdmitted(agent=an_agent("c"), at_s=1.0),
        AgentRemoved(incarnation="c.1", reason="left", at_s=2.0),
        AgentRemoved(incarnation="d.1", reason="nobody knows it", at_s=2.5),
        GroupSucceeded(round_id=0, incarnation="a.1"),
        started(),
        RoundEnded(cause=RoundEnd.AGENT_LOST, reason="lost b", at_s=3.0),
        started(4),
        EndingStarted(reason="spent", at_s=5.0),
        RunEnded(verdict=failed, at_s=6.0),
    )
    told = [(e.at_s, e.decision, e.reason, e.round_id) for e in state.history[2:]]
    assert told == [
        (1.0, "agent admitted", "c joined", None),
        (2.0, "agent removed", "c: left", None),
        (2.5, "agent removed", "d.1: nobody knows it", None),
        (0.0, "round started", "2 agents; all are there", 0),
        (3.0, "round ended", "lost b", 0),
        (4.0, "round started", "2 agents; all are there", 4),
        (5.0, "run failing", "spent", 4),
        (6.0, "run failed", "no", 4),
    ]
    won = Verdict(cause=VerdictCause.SUCCEEDED, reason="all", restart_count=0, round_id=0)
    state = state_of(started(), RunEnded(verdict=won))
    assert state.history[-1].decision == "run succeeded"


def test_a_reason_in_the_history_is_bounded() -> None:
    state = state_of(started(), EndingStarted(reason="x" * 9999))
    kept = state.history[-1].reason
    assert (len(kept), kept[-1]) == (REASON_CHARACTERS_MAX, "…")
    assert len(state.reason) == 9999


def test_a_broken_transition_tells_the_latest_decisions() -> None:
    rounds = [r for n in range(TRANSITION_HISTORY_MAX) for r in (started(n), ended())]
    state = state_of(*rounds)
    with pytest.raises(InvalidTransition) as caught:
        state.apply(ended())
    story = str(caught.value).partition("history: ")[2].split("; ")
    assert story.count("round ended: failed") == TRANSITION_HISTORY_MAX // 2
    assert story[-1] == "round ended: failed"
    assert len(state.history) == 2 + 2 * TRANSITION_HISTORY_MAX, "a refused record leaves no entry"


def test_a_journal_from_before_there_was_a_history_is_read() -> None:
    old = json_round_trip(AgentRemoved(incarnation="a.1", reason="left"))
    state = state_of(old)
    assert state.history[-1] == HistoryEntry(
        at_s=0.0,
        decision="agent removed",
        reason="a: left",
        round_id=None,
        sequence=3,
        names=("a",),
    )


def test_a_run_read_back_from_json_is_the_same_run() -> None:
    records: list[Record] = [
        started(),
        GroupSucceeded(round_id=0, incarnation="a.1"),
        FailureRecorded(record=a_record(happened_at=1 / 3, message="ü\0")),
        ended(),
        started(1),
        AgentRemoved(incarnation="b.1", reason="lost"),
        EndingStarted(reason="failing"),
        FAILED,
    ]
    state = state_of(*records)
    assert state_of(*map(json_round_trip, records)) == state
    assert msgspec.json.decode(msgspec.json.encode(state), type=RunState) == state


def test_records_of_a_journal_from_before_explanations_are_read() -> None:
    record = FailureRecorded(record=a_record(explanation="no memory"))
    old = msgspec.to_builtins(record)
    assert old["record"].pop("explanation") == "no memory"
    read = msgspec.json.decode(msgspec.json.encode(old), type=FailureRecorded)
    assert read == FailureRecorded(record=a_record())
    assert json_round_trip(record) == record
