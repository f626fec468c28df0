"""Shell. The ranks of a run as columns of JSON, shared by readers.

A column is the base64 of a little-endian array, with a value for each host of the round in order
of group ranks, or for each rank: bytes, 16 bits (``MOST``, ``UNKNOWN``), or floats of 32. Silences
are tenths of a second, a rank's since its latest heartbeat, or else since its agent was heard.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import json

from drumbeat.coordinator.core.model import Round
from drumbeat.coordinator.core.run.state import Phase, RunState
from drumbeat.coordinator.observe.goodput.stretches import Marks
from drumbeat.coordinator.observe.readings import Readings, View
from drumbeat.coordinator.observe.steps.behind import Laggard, laggards
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.run_status import AnyRun, behind_peers
from drumbeat.model import GroupState
from drumbeat.text.durations import SECOND

# Ranks visited between two turns of other tasks: about 2 ms.
ROWS_PER_TURN = 2_000
# Time to send one reader a byte: writing and encrypting.
SECONDS_PER_BYTE = 2e-9
# Different scopes beside the empty one; ranks in any other share one more.
SCOPES_MAX = 254
OTHER_SCOPES = "(others)"
BEHIND_MAX = 1_000  # ranks that are named as behind, the first
# Tenths of a second, and steps, as 16 bits hold them; more is as much.
MOST, UNKNOWN = 2**16 - 2, 2**16 - 1
_NO_STEP = -(2**63)


class HostState(StrEnum):
    """State of a host of the round. The columns have its index in this list."""

    UNKNOWN = "unknown"  # not heard since the coordinator started
    WAITING = "waiting"  # holds no workers of this round
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SILENT = "silent"  # its beat is overdue
    AWAY = "away"  # its connection broke, and may come back
    LOST = "lost"  # it left, or was given up


_CODES = {state: code for code, state in enumerate(HostState)}


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of one run as JSON."""

    current: Round | None
    hosts: bytes  # names and sizes, the same for a whole round
    columns: bytes

    @property
    def whole(self) -> bytes:
        """Both in one document."""
        return self.hosts[:-1] + b"," + self.columns[1:]


_RANKS = View[Grid](giving_s=lambda grid: SECONDS_PER_BYTE * len(grid.columns))


async def ranks_of(
    readings: Readings, state: RunState, run: AnyRun | None, *, is_repeated: bool, readers: int = 0
) -> Grid:
    """Return a grid made after this call; if the call is repeated, a fresh one.

    ``readers``: how many readers are sent each new grid; the more, the fewer grids are made.
    """
    return await readings.get(
        _RANKS,
        lambda latest: make_grid(state, run, latest, now=readings.now()),
        state,
        is_repeated=is_repeated,
        readers=readers,
    )


def make_grid(
    state: RunState, run: AnyRun | None, latest: Grid | None = None, *, now: float
) -> Generator[None, None, Grid]:
    """Make a grid in several turns: about 1.2 µs for each rank and 4 µs for each host."""
    current = None if state.phase is Phase.ENDED else state.round
    columns = _Columns(now)
    yield from _passed(state, run, current, columns)
    hosts = latest.hosts if latest is not None and latest.current is current else b""
    if not hosts:
        hosts = _hosts(current)
        yield
    return Grid(current, hosts, _changing(state, run, current, columns))


@dataclass(slots=True)
class _Columns:
    """Collects hosts in order of group ranks."""

    now: float
    host_state: bytearray = field(default_factory=bytearray)
    host_silence: array[int] = field(default_factory=lambda: array("H"))
    host_step_time_s: array[float] = field(default_factory=lambda: array("f"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    lag: array[int] = field(default_factory=lambda: array("H"))
    silence: array[int] = field(default_factory=lambda: array("H"))
    scope: bytearray = field(default_factory=bytearray)
    scopes: dict[str, int] = field(default_factory=lambda: {"": 0})
    behind: list[tuple[int, int]] = field(default_factory=list)

    def take(
        self,
        state: HostState,
        heard_at: float | None,
        workers: Mapping[int, tuple[WorkerProgress, float]],
        workers_count: int,
    ) -> None:
        """Add a host, with where its workers stand by local rank, and since when that is known."""
        now, step_time_s = self.now, math.nan
        age = UNKNOWN if heard_at is None else _tenths(now - heard_at)
        add_step, add_silence = self.steps.append, self.silence.append
        add_scope, scopes = self.scope.append, self.scopes
        for local_rank in range(workers_count):
            if (known := workers.get(local_rank)) is None:
                add_step(_NO_STEP)
                add_silence(age)
                add_scope(0)
                continue
            worker, told_at = known
            step, beat_age_s, scope = worker.step, worker.heartbeat_age_s, worker.scope
            add_step(_NO_STEP if step is None else step)
            add_silence(age if beat_age_s is None else _tenths(now - told_at + beat_age_s))
            index = scopes.get(scope)
            add_scope(self._index(scope) if index is None else index)
            if worker.step_time_s is not None:
                step_time_s = worker.step_time_s
        self.host_state.append(_CODES[state])
        self.host_silence.append(age)
        self.host_step_time_s.append(step_time_s)

    def take_behind(self, behind: Iterable[Laggard]) -> None:
        """Add the ranks of a host that are behind, with the number of steps."""
        ranks = sorted((laggard.standing.rank, laggard.lag.steps) for laggard in behind)
        self.behind += ranks[: BEHIND_MAX - len(self.behind)]

    def take_lags(self, furthest: int, begin: int, end: int) -> None:
        """Add how many steps these ranks are below the furthest one."""
        steps = self.steps[begin:end]
        self.lag.extend(
            [UNKNOWN if step == _NO_STEP else min(furthest - step, MOST) for step in steps]
        )

    @property
    def furthest(self) -> int | None:
        """The highest step, ``None`` if no rank counts steps."""
        most = max(self.steps, default=_NO_STEP)
        return None if most == _NO_STEP else most

    def _index(self, scope: str) -> int:
        name = scope if len(self.scopes) <= SCOPES_MAX else OTHER_SCOPES
        return self.scopes.setdefault(name, len(self.scopes))


def _passed(
    state: RunState, run: AnyRun | None, current: Round | None, columns: _Columns
) -> Iterator[None]:
    """Fill the columns with a round; yield so that other tasks can run."""
    rows, due, peers = 0, ROWS_PER_TURN, behind_peers(state, run)
    for incarnation, seat in current.seats.items() if current is not None else ():
        presence = run.members.presences.get(incarnation) if run is not None else None
        workers: Mapping[int, tuple[WorkerProgress, float]] = {}
        if presence is not None and current is not None:
            workers = presence.whereabouts.received(current.round_id)
        heard_at = None if presence is None else presence.heard_at
        workers_count = seat.agent.local_world_size
        host_state = _host_state(state, run, current, incarnation)
        columns.take(host_state, heard_at, workers, workers_count)
        if workers and presence and current and incarnation not in state.given_up:
            of_role, where = peers.get(seat.agent.role), presence.whereabouts
            if of_role is not None:
                columns.take_behind(laggards(of_role, where, current.round_id, seat).values())
        rows += workers_count
        if rows >= due:
            due = rows + ROWS_PER_TURN
            yield
    furthest, at_once = columns.furthest or 0, 8 * ROWS_PER_TURN
    for begin in range(0, len(columns.steps), at_once):
        columns.take_lags(furthest, begin, begin + at_once)
        yield


def _host_state(
    state: RunState, run: AnyRun | None, current: Round | None, incarnation: str
) -> HostState:
    if incarnation in state.succeeded:
        return HostState.SUCCEEDED
    if incarnation not in state.members or incarnation in state.given_up:
        return HostState.LOST
    presence = run.members.presences.get(incarnation) if run is not None else None
    if run is None or presence is None or presence.heard_at is None:
        return HostState.UNKNOWN
    if not run.members.is_present(incarnation):
        return HostState.SILENT if incarnation in run.members.connected else HostState.AWAY
    beat, round_id = presence.beat, None if current is None else current.round_id
    is_waiting = beat.round_id != round_id or beat.state is GroupState.IDLE
    return HostState.WAITING if is_waiting else HostState(beat.state.lower())


def _hosts(current: Round | None) -> bytes:
    """Encode what is the same for a whole round."""
    agents = [] if current is None else [seat.agent for seat in current.seats.values()]
    document = {
        "states": list(HostState),
        "names": [agent.name for agent in agents],
        "hosts": [agent.host if agent.host != agent.name else None for agent in agents],
        "counts": _bytes(array("H", [agent.local_world_size for agent in agents])),
    }
    return json.encode(document)


def _changing(
    state: RunState, run: AnyRun | None, current: Round | None, columns: _Columns
) -> bytes:
    """Encode what changes."""
    is_over, seats = state.phase is Phase.ENDED, {} if current is None else current.seats
    document = {
        "round_id": state.round_id if is_over or current is None else current.round_id,
        "furthest_step": columns.furthest,
        "interval_s": None if run is None else run.members.pace.heartbeat_interval_s,
        "step_s": None if run is None else _pace_s(run.members.observer.meter.marks),
        "standbys_count": 0 if is_over else len(state.members.keys() - seats.keys()),
        "host_state": columns.host_state,
        "host_silence": _bytes(columns.host_silence),
        "host_step_time_s": _bytes(columns.host_step_time_s),
        "behind": columns.behind,
        "lag": _bytes(columns.lag),
        "silence": _bytes(columns.silence),
        "scope_index": columns.scope,
        "scopes": list(columns.scopes),
    }
    return json.encode(document)


def _pace_s(marks: Marks) -> float | None:
    """Return the average time of a step of the round; ``None``: not known yet."""
    first, latest, began = marks.step_first, marks.step, marks.began
    if first is None or latest is None or began is None or marks.progress is None:
        return None
    return (marks.progress - began) / SECOND / (latest - first) if latest > first else None


def _tenths(seconds: float) -> int:
    return min(MOST, int(10 * seconds)) if seconds > 0.0 else 0


def _bytes(column: array[Any]) -> bytes:
    """Return a column in little-endian order."""
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()
