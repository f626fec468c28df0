"""Who was where, as text."""

from drumbeat.agent.failures.report import (
    PLACES_MAX,
    FailureReport,
    Position,
    describe_positions,
)


def at(rank: int, step: int = 41, scope: str = "", age_s: float = 2.0) -> Position:
    return Position(
        rank=rank,
        host=f"node-{rank}",
        step=step,
        scope=scope,
        scope_age_s=age_s,
        heartbeat_age_s=age_s,
    )


def written(
    positions: list[Position], *, count_all: int | None = None, world_size: int | None = None
) -> list[str]:
    count_all = len(positions) if count_all is None else count_all
    world_size = len(positions) if world_size is None else world_size
    report = FailureReport(
        reason="",
        positions=tuple(positions),
        positions_count=count_all,
        world_size=world_size,
    )
    return list(describe_positions(report))


def test_whoever_is_alone_comes_first_and_with_its_host() -> None:
    positions = [at(rank, 41, "all-reduce", 60.0) for rank in range(10_000) if rank != 17]
    assert written([*positions, at(17, 40, age_s=61.25)]) == [
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
    assert written([at(0, step=-1)], world_size=4, count_all=3)[1:] == [
        "  no step, last heartbeat 2 s before: rank 0 on node-0",
        "  not listed: 2 workers",
        "  unknown: 1 worker",
    ]


def test_names_cannot_speak_to_a_terminal() -> None:
    assert "in '\\x1b[2J'" in written([at(0, scope="\x1b[2J")])[1]
