"""What workers wrote is read and judged; and a plan is that of its seed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chaos import plan
from tests.chaos.decisions import Seat
from tests.chaos.plan import FaultKind, Kind, Part
from tests.chaos.promises import BEHIND_S, Absence, Life, lives, overlaps

PLACE: dict[str, Any] = {
    "at": 10.0,
    "pid": 7,
    "host": "h1",
    "run_id": "run",
    "round_id": 2,
    "iteration": 0,
    "rank": 1,
    "world_size": 4,
    "restarts": 1,
    "master": "10.0.0.1:5",
}
SEAT = Seat("run", 2, 1, 4, 1, "10.0.0.1:5", "h1", 7)


def life(host: str, round_id: int, began_at: float, last_at: float, iteration: int = 0) -> Life:
    seat = Seat("run", round_id, 0, 1, 0, f"10.0.0.1:{round_id}", host, 10 * round_id + iteration)
    return Life(seat, iteration, began_at, last_at, is_done=False)


def test_a_worker_that_was_killed_lived_until_its_last_whole_line() -> None:
    text = f"{json.dumps(PLACE)}\nA 10.5 1\nA 11.25 2\nA 12."
    assert lives(text) == [Life(SEAT, 0, 10.0, 11.25, is_done=False)]


def test_a_worker_that_starts_again_in_its_process_has_a_life_for_each_iteration() -> None:
    again = PLACE | {"at": 12.0, "iteration": 1}
    text = f"{json.dumps(PLACE)}\nA 11.0 1\n{json.dumps(again)}\nA 13.0 2\nE 13.5\n"
    assert lives(text) == [
        Life(SEAT, 0, 10.0, 11.0, is_done=False),
        Life(SEAT, 1, 12.0, 13.5, is_done=True),
    ]


def test_a_worker_that_had_no_time_to_write_has_no_life() -> None:
    assert lives("") == lives('{"at": 1') == []


def test_generations_one_after_the_other_are_no_overlap() -> None:
    assert overlaps([life("h1", 0, 0.0, 5.0), life("h2", 1, 5.001, 9.0)], []) == []


def test_two_generations_at_once_are_an_overlap() -> None:
    (problem,) = overlaps([life("h1", 0, 0.0, 5.0), life("h2", 1, 4.0, 9.0)], [])
    assert problem.startswith("rank 0 of run lived twice for 1.000 s: (0, 0) (pid 0 on h1)")


def test_two_processes_of_one_round_are_an_overlap() -> None:
    twice = [life("h1", 0, 0.0, 5.0), life("h2", 0, 1.0, 5.0)]
    assert len(overlaps(twice, [])) == 1


def test_two_iterations_at_once_are_an_overlap() -> None:
    assert len(overlaps([life("h1", 0, 0.0, 5.0), life("h1", 0, 4.0, 9.0, iteration=1)], [])) == 1


@pytest.mark.parametrize(
    ("absence", "is_excused"),
    [
        (Absence("h1", 1.0, 4.5), True),
        (Absence("h1", 1.0, 5.0 - BEHIND_S - 0.1), False),
        (Absence("h1", 4.2, 9.0), False),
        (Absence("h2", 1.0, 4.5), False),
    ],
)
def test_a_host_that_was_cut_off_may_go_on_for_a_while(absence: Absence, is_excused: bool) -> None:
    both = [life("h1", 0, 0.0, 5.0), life("h2", 1, 4.0, 9.0)]
    assert (overlaps(both, [absence]) == []) == is_excused


def test_on_one_host_nothing_excuses_an_overlap() -> None:
    both = [life("h1", 0, 0.0, 5.0), life("h1", 1, 4.0, 9.0)]
    assert len(overlaps(both, [Absence("h1", 1.0, 4.5)])) == 1


def test_a_seed_is_one_plan() -> None:
    assert [plan.draw(seed) for seed in range(50)] == [plan.draw(seed) for seed in range(50)]


def test_all_kinds_of_runs_and_faults_are_drawn() -> None:
    plans = [plan.draw(seed) for seed in range(1000)]
    assert {run.kind for each in plans for run in each.runs} == set(Kind)
    faults = [fault for each in plans for fault in each.faults]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.part for fault in faults} == {None, *Part}
    assert any(run.is_doomed for each in plans for run in each.runs)
    assert {bool(each.members) for each in plans} == {False, True}


def test_only_limits_what_is_drawn() -> None:
    plans = [plan.draw(seed, ("inprocess", "cut", "kill")) for seed in range(50)]
    assert {run.kind for each in plans for run in each.runs} == {Kind.INPROCESS}
    assert {fault.kind for each in plans for fault in each.faults} == {
        FaultKind.CUT,
        FaultKind.KILL,
    }
