"""Pure. Where workers stand, as far as they say so: the latest of each, and nothing older."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SCOPE_BYTES_MAX = 128
"""Of the name of an open timer or section, in UTF-8; enough to recognize it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """Where one worker stands. Ages are seconds, as of one instant.

    ``step``: of its latest heartbeat, if that named one. ``heartbeat_age_s`` is
    ``None`` if there was no heartbeat, ``runtime_age_s`` if it does not use the
    SDK. ``scope``: the innermost open section, else the latest open timer.
    """

    local_rank: int
    step: int | None = None
    step_time_s: float | None = None
    heartbeat_age_s: float | None = None
    runtime_age_s: float | None = None
    scope: str = ""
    scope_age_s: float | None = None
    scopes_open: int = 0

    def aged(self, seconds: float) -> WorkerProgress:
        """Return the same, told ``seconds`` later."""
        return replace(
            self,
            heartbeat_age_s=_older(self.heartbeat_age_s, seconds),
            runtime_age_s=_older(self.runtime_age_s, seconds),
            scope_age_s=_older(self.scope_age_s, seconds),
        )


def _older(age_s: float | None, seconds: float) -> float | None:
    return None if age_s is None else age_s + seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one worker of a round stood."""

    rank: int
    host: str
    progress: WorkerProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """Who was where when a round failed, by rank: the most telling, of ``count`` in all."""

    shown: tuple[Standing, ...] = ()
    count: int = 0


NOWHERE = Standings()


class Whereabouts:
    """Where the workers of one host stand in one round: one entry for each local rank.

    A worker that the latest message leaves out stays where it was last: who died
    says no more, and where it died is what the report has to show.
    """

    __slots__ = ("_latest", "_round_id")

    def __init__(self) -> None:
        self._round_id: int | None = None
        self._latest: dict[int, tuple[WorkerProgress, float]] = {}

    def take(self, round_id: int | None, workers: Iterable[WorkerProgress], *, now: float) -> None:
        """Take in what a message that arrived ``now`` says of the workers of a round."""
        if round_id != self._round_id:
            self._round_id, self._latest = round_id, {}
        for worker in workers:
            self._latest[worker.local_rank] = (worker, now)

    def in_round(self, round_id: int, *, now: float) -> list[WorkerProgress]:
        """Return where they stand in this round, by local rank, with the ages of ``now``."""
        if round_id != self._round_id:
            return []
        known = sorted(self._latest.items())
        return [worker.aged(max(0.0, now - since)) for _, (worker, since) in known]
