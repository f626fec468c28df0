"""Pure. Who was where when a round failed, and who seems to hold the others up."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from coordinator.core.membership.leases import Presence
from coordinator.core.model import Round
from coordinator.core.progress.worker_progress import Standing, Standings, WorkerProgress

# Ranks named in one line; if more are behind, none in particular is.
BEHIND_SHOWN_MAX = 4


RankOf = Callable[[str, int], int | None]
"""Returns the rank of an agent's worker, ``None`` if it takes no part any more."""


def standings(
    current: Round,
    presences: Mapping[str, Presence],
    *,
    rank_of: RankOf,
    shown_max: int,
    now: float,
) -> Standings:
    """Return where the workers of a round stand at ``now``. Linear in workers.

    Of more than ``shown_max`` the most telling are kept: those furthest behind.
    """
    found = [
        Standing(rank=rank, host=seat.agent.name, progress=at)
        for incarnation, seat in current.seats.items()
        if (presence := presences.get(incarnation)) is not None
        for at in presence.whereabouts.in_round(current.round_id, now=now)
        if (rank := rank_of(incarnation, at.local_rank)) is not None
    ]
    scope = _common_scope(found)
    most_telling = heapq.nsmallest(shown_max, found, key=partial(_lag, scope))
    shown = sorted(most_telling, key=lambda standing: standing.rank)
    return Standings(shown=tuple(shown), count=len(found))


def furthest_behind(found: Sequence[Standing]) -> str:
    """Name who is behind the others, e.g. "rank 3 on b at step 40"; empty if none is.

    Behind are those with the lowest step; if all are equally far, those that are
    not within the scope in which most of the others are. Of half or more nothing
    is said.
    """
    steps = [_steps(standing.progress) for standing in found]
    counted = [step for step in steps if math.isfinite(step)] or steps
    least, most = min(steps, default=0.0), max(counted, default=0.0)
    if least < most:
        return _named([at for at, step in zip(found, steps, strict=True) if step == least], found)
    scope = _common_scope(found)
    outside = [standing for standing in found if standing.progress.scope != scope]
    line = _named(outside, found) if scope else ""
    return f"{line}, not in {scope!r} as the others" if line else ""


def _steps(progress: WorkerProgress) -> float:
    """Return how far a worker has come; one that counts no steps is not behind for it."""
    if progress.step is not None:
        return progress.step
    return -math.inf if progress.heartbeat_age_s is None else math.inf


def _lag(scope: str, standing: Standing) -> tuple[float, bool, float, int]:
    """Order by how telling it is: few steps, elsewhere than the others, long silent."""
    progress = standing.progress
    silence = progress.heartbeat_age_s or 0.0
    return (_steps(progress), progress.scope == scope, -silence, standing.rank)


def _common_scope(found: Sequence[Standing]) -> str:
    """Return the scope that more than half of the workers are in; empty if there is none."""
    scopes = Counter(standing.progress.scope for standing in found)
    scope, count = scopes.most_common(1)[0] if scopes else ("", 0)
    return scope if 2 * count > len(found) else ""


def _named(behind: Sequence[Standing], found: Sequence[Standing]) -> str:
    if not behind or len(behind) > BEHIND_SHOWN_MAX or 2 * len(behind) >= len(found) > 2:
        return ""
    return ", ".join(_place(standing) for standing in behind)


def _place(standing: Standing) -> str:
    step = standing.progress.step
    who = f"rank {standing.rank} on {standing.host}"
    if step is not None:
        return f"{who} at step {step}"
    return f"{who} before its first heartbeat" if _steps(standing.progress) < 0 else who
