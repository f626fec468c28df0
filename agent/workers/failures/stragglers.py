"""Pure. Which workers were where when a run failed: readable, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent.watchdog.hang import seconds
from drumbeat.format import count

PLACES_MAX = 20
"""More places than this are counted only; those with the fewest workers come first."""

RANGES_MAX = 8
"""More ranges of ranks than this in a line are counted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a worker was. ``step`` is -1 if it named none; ages are seconds before the failure."""

    rank: int
    host: str
    step: int = -1
    scope: str = ""
    scope_age_s: float = 0.0
    heartbeat_age_s: float | None = None


def describe_positions(
    positions: Sequence[Position], *, count_all: int, world_size: int
) -> Iterator[str]:
    """Yield a line for each place, which is a step and a scope, with the oldest ages there."""
    yield "Who was where:"
    places: dict[tuple[int, str], list[Position]] = {}
    for position in positions:
        places.setdefault((position.step, position.scope), []).append(position)
    # Whoever is alone somewhere is looked for; of equals, who is behind.
    ordered = sorted(places.items(), key=lambda place: (len(place[1]), place[0]))
    for (step, scope), there in ordered[:PLACES_MAX]:
        yield f"  {_place(step, scope, there)}: {_ranks(there)}"
    if rest := ordered[PLACES_MAX:]:
        workers = count(sum(len(there) for _, there in rest), "worker")
        yield f"  {count(len(rest), 'other place')}: {workers}"
    if unlisted := count_all - len(positions):
        yield f"  not listed: {count(unlisted, 'worker')}"
    if (silent := world_size - count_all) > 0:
        yield f"  unknown: {count(silent, 'worker')}"


def _place(step: int, scope: str, there: list[Position]) -> str:
    parts = [f"step {step}" if step >= 0 else "no step"]
    if scope:
        parts.append(f"in {scope!r} for {seconds(max(each.scope_age_s for each in there))}")
    ages = [each.heartbeat_age_s for each in there if each.heartbeat_age_s is not None]
    if ages:
        parts.append(f"last heartbeat {seconds(max(ages))} before")
    return ", ".join(parts)


def _ranks(there: list[Position]) -> str:
    """Write ranks as ranges; a single worker comes with its host."""
    if len(there) == 1:
        return f"rank {there[0].rank} on {there[0].host}"
    ranks = sorted(position.rank for position in there)
    ranges = []
    # Of ranks in a row, each has the same distance to its index.
    for _, row in groupby(enumerate(ranks), key=lambda item: item[1] - item[0]):
        run = [rank for _, rank in row]
        ranges.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    more = ", ..." if len(ranges) > RANGES_MAX else ""
    return f"{len(there)} workers, ranks {', '.join(ranges[:RANGES_MAX])}{more}"
