"""Shell. Who was where when a run failed: short enough to read, however many there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.watchdog.core.format import seconds
from drumbeat.format import count
from drumbeat.v1 import failure_pb2

PLACES_MAX = 20
"""More places than this are counted only: whoever is alone comes first."""

RANGES_MAX = 8
"""More ranges of ranks than this in a line are counted only."""


def who_was_where(report: failure_pb2.FailureReport) -> Iterator[str]:
    """Yield a line for each place where workers stood, those with the fewest first.

    A place is a step and a scope; the oldest heartbeat of those there is told.
    """
    yield "Who was where:"
    places: dict[tuple[int, str], list[failure_pb2.Standing]] = {}
    for standing in report.standings:
        progress = standing.progress
        step = progress.step if progress.HasField("step") else -1
        places.setdefault((step, progress.scope), []).append(standing)
    # Who is alone somewhere is who is looked for; of equals, who is behind.
    ordered = sorted(places.items(), key=lambda place: (len(place[1]), place[0]))
    for (step, scope), standings in ordered[:PLACES_MAX]:
        yield f"  {_place(step, scope, standings)}: {_ranks(standings)}"
    if rest := ordered[PLACES_MAX:]:
        there = sum(len(standings) for _, standings in rest)
        yield f"  {count(len(rest), 'other place')}: {count(there, 'worker')}"
    silent = report.world_size - report.standings_count
    if unlisted := report.standings_count - len(report.standings):
        yield f"  not listed: {count(unlisted, 'worker')}"
    if silent > 0:
        yield f"  unknown: {count(silent, 'worker')}"


def _place(step: int, scope: str, standings: list[failure_pb2.Standing]) -> str:
    parts = [f"step {step}" if step >= 0 else "no step"]
    if scope:
        longest = max(_seconds(each, "scope_age") for each in standings)
        parts.append(f"in {scope!r} for {seconds(longest)}")
    if any(each.progress.HasField("heartbeat_age") for each in standings):
        oldest = max(_seconds(each, "heartbeat_age") for each in standings)
        parts.append(f"last heartbeat {seconds(oldest)} before")
    return ", ".join(parts)


def _seconds(standing: failure_pb2.Standing, field: str) -> float:
    age = getattr(standing.progress, field)
    return float(age.seconds + age.nanos / 1e9)


def _ranks(standings: list[failure_pb2.Standing]) -> str:
    """Write ranks as ranges; a single worker comes with its host."""
    if len(standings) == 1:
        return f"rank {standings[0].rank} on {standings[0].host}"
    ranges = list(_ranges(sorted(each.rank for each in standings)))
    shown = ", ".join(ranges[:RANGES_MAX])
    more = ", ..." if len(ranges) > RANGES_MAX else ""
    return f"{len(standings)} workers, ranks {shown}{more}"


def _ranges(ranks: Iterable[int]) -> Iterator[str]:
    first = last = -1
    for rank in ranks:
        if first >= 0 and rank == last + 1:
            last = rank
            continue
        if first >= 0:
            yield _range(first, last)
        first = last = rank
    if first >= 0:
        yield _range(first, last)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
