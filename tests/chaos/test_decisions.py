"""Histories of coordinators with mistakes that were made in them, and without."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.decisions import (
    Append,
    Began,
    Leads,
    Listed,
    ListModel,
    Progress,
    RunModel,
    Seat,
    TermModel,
    seat_problems,
)
from tests.chaos.history import Operation, contradiction


def history(*actions: Any, overlap_s: float = 0.0) -> list[Operation[Any]]:
    """Return one operation a second, each of which ends before the next begins."""
    return [
        Operation("client", second - overlap_s, second + 0.5, action)
        for second, action in enumerate(actions)
    ]


def is_possible(model: Any, operations: list[Operation[Any]]) -> bool:
    return contradiction(model, operations) is None


A, B = "head1", "head2"


def test_terms_rise_and_each_has_one_leader() -> None:
    assert is_possible(TermModel(), history(Leads(1, A), Leads(1, A), Leads(4, B), Leads(9, A)))


def test_two_leaders_of_one_term_are_a_contradiction() -> None:
    assert not is_possible(TermModel(), history(Leads(1, A), Leads(1, B)))


def test_a_leader_that_answers_after_the_next_one_is_a_contradiction() -> None:
    assert not is_possible(TermModel(), history(Leads(1, A), Leads(2, B), Leads(1, A)))


def test_an_answer_that_was_asked_for_before_the_next_term_may_come_late() -> None:
    late = Operation("late", 0.4, 9.0, Leads(1, A))
    assert is_possible(TermModel(), [*history(Leads(1, A), Leads(2, B)), late])


def test_two_leaders_in_turns_are_a_contradiction() -> None:
    turns = [Leads(1, A), Leads(2, B)] * 3
    assert not is_possible(TermModel(), history(*turns, overlap_s=0.6))


def test_a_run_goes_on_round_by_round_to_its_verdict() -> None:
    assert is_possible(
        RunModel(),
        history(
            Progress(),
            Began(0, 0),
            Progress(0, 0, 0, 3),
            Began(1, 1),
            Progress(1, 1, 1, 5),
            Progress(1, 1, 1, 6, "SUCCEEDED"),
            Progress(1, 1, 1, 7, "SUCCEEDED"),
        ),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(Progress(3, 1, 1, 9), Progress(2, 1, 1, 9), id="forgets a round"),
        pytest.param(Began(3, 1), Progress(2, 1), id="forgets a round that workers were in"),
        pytest.param(Progress(3, 1, 1, 9), Progress(3, 0, 1, 9), id="forgets a restart"),
        pytest.param(Progress(3, 1, 2, 9), Progress(3, 1, 1, 9), id="forgets a failure"),
        pytest.param(Progress(3, 1, 1, 9), Progress(3, 1, 1, 8), id="forgets an event"),
        pytest.param(Progress(3, verdict="FAILED"), Progress(3), id="forgets the verdict"),
        pytest.param(
            Progress(3, verdict="FAILED"), Progress(3, verdict="SUCCEEDED"), id="another verdict"
        ),
        pytest.param(Progress(3, verdict="FAILED"), Began(4, 0), id="a round after the verdict"),
        pytest.param(Began(3, 1), Began(3, 2), id="two counts of restarts in one round"),
    ],
)
def test_what_was_decided_is_never_taken_back(before: Any, after: Any) -> None:
    assert not is_possible(RunModel(), history(before, after))


def test_a_worker_that_starts_late_contradicts_nothing() -> None:
    """Its round was decided on at some time before, which nobody saw."""
    late = Operation("worker", -math.inf, 7.0, Began(0, 0))
    answers = history(Progress(), Progress(1, 1), overlap_s=0.0)
    assert is_possible(RunModel(), [*answers, late])


def test_a_round_that_nobody_decided_on_when_it_began_is_a_contradiction() -> None:
    early = Operation("worker", -math.inf, 0.2, Began(2, 0))
    assert not is_possible(RunModel(), [early, *history(Progress(0), Progress(1), Progress(2))[1:]])


def test_what_was_acknowledged_is_listed_for_good() -> None:
    kept = history(Append("a"), Listed(frozenset("a")), Append("b"), Listed(frozenset("ab")))
    assert is_possible(ListModel(), kept)


def test_what_was_acknowledged_and_is_not_listed_is_a_contradiction() -> None:
    assert not is_possible(ListModel(), history(Append("a"), Listed(frozenset())))


def test_what_was_not_acknowledged_may_be_listed_or_not_but_not_both() -> None:
    lost = Operation("client", 0.0, math.inf, Append("a"))
    with_it, without = Listed(frozenset("a")), Listed(frozenset())
    assert is_possible(ListModel(), [lost, *history(without, with_it)])
    assert is_possible(ListModel(), [lost, *history(without, without)])
    assert not is_possible(ListModel(), [lost, *history(with_it, without)])


@given(st.data())
def test_a_coordinator_that_forgets_nothing_is_never_accused(data: st.DataObject) -> None:
    state = Progress()
    operations: list[Operation[Any]] = []
    for second in range(data.draw(st.integers(0, 25))):
        match data.draw(st.sampled_from(["read", "round", "restart", "failure"])):
            case "round":
                state = replace(state, round_id=state.round_id + 1, events=state.events + 1)
            case "restart":
                state = replace(state, round_id=state.round_id + 1, restarts=state.restarts + 1)
            case "failure":
                state = replace(state, failures=state.failures + 1)
            case _:
                pass
        early, late = data.draw(st.floats(0, 4)), data.draw(st.floats(0, 4))
        operations.append(Operation("reader", second - early, second + late, state))
        if state.round_id >= 0:
            began = Began(state.round_id, state.restarts)
            operations.append(Operation("worker", -math.inf, second + late, began))
    assert is_possible(RunModel(), operations)


SEAT = Seat("run", 0, 0, 2, 0, "10.0.0.1:1", "h1", 11)
OTHER = replace(SEAT, rank=1, host="h2", pid=12)


def test_each_rank_of_a_round_is_given_once() -> None:
    later = [replace(s, round_id=1, master="10.0.0.1:2", pid=s.pid + 9) for s in (SEAT, OTHER)]
    assert seat_problems([SEAT, OTHER, *later]) == []


@pytest.mark.parametrize(
    ("seats", "problem"),
    [
        ([SEAT, replace(SEAT, host="h2", pid=12)], "rank 0 was given twice"),
        ([SEAT, replace(OTHER, world_size=3)], "different things"),
        ([SEAT, replace(OTHER, restarts=1)], "different things"),
        ([SEAT, replace(OTHER, rank=2)], "rank 2 of 2"),
        ([SEAT, replace(SEAT, round_id=1, pid=12)], "has the address of round 0"),
    ],
)
def test_seats_that_contradict_each_other_are_named(seats: list[Seat], problem: str) -> None:
    problems = seat_problems(seats)
    assert len(problems) == 1
    assert problem in problems[0]
