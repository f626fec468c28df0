"""Pure. What coordinators decide, as models for ``history``: terms, runs, notes; and the seats.

Each is checked by itself, because a history is linearizable if that of each object in it is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Leads:
    """A coordinator said that it leads."""

    term: int
    address: str


class TermModel:
    """Terms rise, and each has one leader, from its first answer to the next term."""

    initial = Leads(0, "")
    returns = False

    def step(self, state: Leads, action: Leads) -> Leads | None:
        """Take an answer."""
        return None if self.is_past(state, action) else action

    def is_past(self, state: Leads, action: Leads) -> bool:
        """A term is over with the next, and another leader never has it."""
        return action != state and action.term <= state.term


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, as a coordinator said or as a worker saw when it started."""

    round_id: int = -1
    restarts: int = 0
    failures: int = 0
    events: int = 0
    verdict: str = ""
    """Empty: the run has not ended."""


@dataclass(frozen=True, slots=True)
class Began:
    """A worker of a round has started: the round was decided on before."""

    round_id: int
    restarts: int


class RunModel:
    """Nothing decided is taken back, and nothing is decided after the verdict."""

    initial = Progress()
    returns = False

    def step(self, state: Progress, action: Progress | Began) -> Progress | None:
        """Take an answer, or the start of a worker."""
        if self.is_past(state, action):
            return None
        if isinstance(action, Began):
            return replace(state, round_id=action.round_id, restarts=action.restarts)
        return action

    def is_past(self, state: Progress, action: Progress | Began) -> bool:
        """No number falls but that of restarts, which a window forgets.

        A round has one count of them, and a verdict keeps both.
        """
        of_round = action.round_id, action.restarts
        if action.round_id <= state.round_id and of_round != (state.round_id, state.restarts):
            return True
        if state.verdict and of_round != (state.round_id, state.restarts):
            return True
        if isinstance(action, Began):
            return False
        is_less = action.failures < state.failures or action.events < state.events
        return is_less or (bool(state.verdict) and action.verdict != state.verdict)


@dataclass(frozen=True, slots=True)
class Append:
    """A client asked to keep something; whether there was an answer, the operation knows."""

    item: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A coordinator listed all that was kept."""

    items: frozenset[str]


class ListModel:
    """What was kept is there for good."""

    initial: frozenset[str] = frozenset()
    returns = False

    def step(self, state: frozenset[str], action: Append | Listed) -> frozenset[str] | None:
        """Keep one, or list all."""
        if isinstance(action, Append):
            return state | {action.item}
        return state if action.items == state else None

    def is_past(self, state: frozenset[str], action: Append | Listed) -> bool:
        """A list without one that is kept by then was made before."""
        return isinstance(action, Listed) and not state <= action.items


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place, as it read it from its environment when it started."""

    run_id: str
    round_id: int
    rank: int
    world_size: int
    restarts: int
    master: str
    host: str
    pid: int


def seat_problems(seats: Iterable[Seat]) -> list[str]:
    """Return what contradicts that each rank of a round is given once, and all alike."""
    problems = []
    rounds: dict[tuple[str, int], list[Seat]] = defaultdict(list)
    for seat in seats:
        rounds[seat.run_id, seat.round_id].append(seat)
    masters: dict[tuple[str, str], int] = {}
    for (run_id, round_id), those in sorted(rounds.items()):
        name = f"round {round_id} of {run_id}"
        common = {(seat.world_size, seat.restarts, seat.master) for seat in those}
        if len(common) > 1:
            problems.append(f"{name}: workers were told different things: {sorted(common)}")
        owners: dict[int, Seat] = {}
        for seat in those:
            if not 0 <= seat.rank < seat.world_size:
                problems.append(f"{name}: rank {seat.rank} of {seat.world_size}")
            if (other := owners.setdefault(seat.rank, seat)) != seat:
                problems.append(
                    f"{name}: rank {seat.rank} was given twice: to pid {other.pid} on "
                    f"{other.host} and to pid {seat.pid} on {seat.host}"
                )
        if (earlier := masters.setdefault((run_id, those[0].master), round_id)) != round_id:
            problems.append(f"{name} has the address of round {earlier}: {those[0].master}")
    return problems
