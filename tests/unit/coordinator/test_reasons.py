"""What people are told; every reason is one bounded line."""

from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.phases.ranks import assign_seats
from drumbeat.coordinator.core.run import reasons
from tests.support.world import a_record, an_agent


def a_round(size: int) -> Round:
    seats = assign_seats([an_agent(f"h{i}") for i in range(size)])
    return Round(
        round_id=3,
        seats=seats,
        world_size=size,
        restart_count=0,
        master_addr="a",
        master_port=1,
        reason="",
    )


def test_a_failed_round_names_the_root_cause_or_at_least_the_hosts() -> None:
    current = a_round(3)
    cause = a_record(host="h1", rank=1)
    assert reasons.round_failed(current, [cause], {"h1.1"}) == (
        "round 3 failed: rank 1 on h1 (exit code 1)"
    )
    assert reasons.round_failed(current, [], {"h2.1", "h0.1"}) == (
        "round 3 failed: a worker on h0, h2"
    )


def test_a_thousand_lost_hosts_are_one_readable_line() -> None:
    current = a_round(1000)
    assert reasons.round_lost(current, set(current.seats)).endswith("h106, 990 more")
    assert reasons.round_lost(current, {"h7.1"}) == "round 3 lost h7"


def test_an_exit_barrier_names_who_is_late() -> None:
    assert reasons.barrier_over(a_round(3), {"h1.1"}, 90.0) == (
        "exit barrier timeout: 2 agents not done after 90 s: h0 (group rank 0), h2 (group rank 2)"
    )


def test_a_cause_that_came_late_is_added_once() -> None:
    cause = a_record(host="h1", rank=1)
    late = reasons.run_failed("round 3 failed: a worker on h1", [cause])
    assert late == "round 3 failed: a worker on h1; root cause: rank 1 on h1 (exit code 1)"
    assert reasons.run_failed(late, [cause]) == late
    assert reasons.run_failed("too bad", []) == "too bad"


def test_a_start_that_is_impossible_names_what_and_where_or_at_least_the_host() -> None:
    current = a_round(3)
    cause = a_record(host="h1", rank=2, exit_code=127, message="cannot start ./train: no\nmore")
    other = a_record(host="h0", rank=0, exit_code=1, pid=7)
    known = "round 3 could not start: rank 2 on h1: cannot start ./train: no"
    assert reasons.start_impossible(current, [other, cause], ["h1.1"]) == known
    early = reasons.start_impossible(current, [other], ["h1.1"])
    assert early == "round 3 could not start: a worker on h1"
    assert reasons.run_failed(early, [cause]) == known
    assert reasons.run_failed(known, [cause]) == known
    assert reasons.run_failed(early, [other]).startswith(f"{early}; root cause: rank 0 on h0")


def test_what_kept_workers_from_starting_is_bounded() -> None:
    causes = [a_record(rank=i, exit_code=127, message="x" * 10_000) for i in range(100)]
    assert len(reasons.start_impossible(a_round(1), causes, ["h0.1"])) < 2000
