"""Who was where, in words."""

from __future__ import annotations

from agent.session.convert import duration
from agent.workers.failures.stragglers import PLACES_MAX, who_was_where
from drumbeat.v1 import failure_pb2


def at(
    rank: int, step: int | None = 41, scope: str = "", age_s: float = 2.0
) -> failure_pb2.Standing:
    progress = failure_pb2.WorkerProgress(
        step=step,
        heartbeat_age=duration(age_s),
        scope=scope,
        scope_age=duration(age_s) if scope else None,
    )
    return failure_pb2.Standing(rank=rank, host=f"node-{rank}", progress=progress)


def written(standings: list[failure_pb2.Standing], **more: int) -> list[str]:
    given = {"world_size": len(standings), "standings_count": len(standings)} | more
    report = failure_pb2.FailureReport(
        standings=standings,
        world_size=given["world_size"],
        standings_count=given["standings_count"],
    )
    return list(who_was_where(report))


def test_whoever_is_alone_comes_first_and_with_its_host() -> None:
    standings = [at(rank, 41, "all-reduce", 60.0) for rank in range(10_000) if rank != 17]
    assert written([*standings, at(17, 40, age_s=61.25)]) == [
        "Who was where:",
        "  step 40, last heartbeat 61.2 s before: rank 17 on node-17",
        (
            "  step 41, in 'all-reduce' for 60 s, last heartbeat 60 s before: "
            "9999 workers, ranks 0-16, 18-9999"
        ),
    ]


def test_a_place_has_its_oldest_ages() -> None:
    assert written([at(0, age_s=1.0), at(1, age_s=3.5)])[1:] == [
        "  step 41, last heartbeat 3.5 s before: 2 workers, ranks 0-1"
    ]


def test_places_and_ranges_are_bounded() -> None:
    lines = written([at(rank, step=rank) for rank in range(100)])
    assert len(lines) == 1 + PLACES_MAX + 1
    assert lines[-1] == f"  {100 - PLACES_MAX} other places: {100 - PLACES_MAX} workers"
    [_, line] = written([at(rank) for rank in range(0, 100, 2)])
    assert line.endswith("50 workers, ranks 0, 2, 4, 6, 8, 10, 12, 14, ...")


def test_what_is_not_there_is_counted() -> None:
    assert written([at(0, step=None)], world_size=4, standings_count=3)[1:] == [
        "  no step, last heartbeat 2 s before: rank 0 on node-0",
        "  not listed: 2 workers",
        "  unknown: 1 worker",
    ]


def test_names_cannot_speak_to_a_terminal() -> None:
    assert "in '\\x1b[2J'" in written([at(0, scope="\x1b[2J")])[1]
