"""Pure. What a worker knows of its place in an iteration."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Mode(enum.Enum):
    """What a worker does in an iteration."""

    INITIALIZED = enum.auto()
    """Waits to be given a place."""
    ACTIVE = enum.auto()
    """Calls the function."""
    INACTIVE = enum.auto()
    """Stands by, to take the place of one that is lost."""
    TERMINATED = enum.auto()
    """Takes no part any more."""


Status = Mode


@dataclass(frozen=True, slots=True)
class State:
    """A worker's place in an iteration. Hooks are given it and can't change it."""

    rank: int
    """Among all workers that take part."""
    world_size: int
    active_rank: int | None = None
    """Among those that call the function; ``None`` for who stands by."""
    active_world_size: int | None = None
    initial_rank: int | None = None
    """Rank in the process's first iteration."""
    initial_world_size: int | None = None
    iteration: int = 0
    """How often the function was restarted in this call of the wrapper."""
    mode: Mode = Mode.INITIALIZED
    fn_exception: BaseException | None = None
    """What the function raised here in this iteration."""

    @property
    def status(self) -> Mode:
        """The same as ``mode``."""
        return self.mode

    def placed(self, place: Place, iteration: int) -> State:
        """Return the state at the start of an iteration."""
        return replace(
            self,
            rank=place.rank,
            world_size=place.world_size,
            active_rank=place.active_rank,
            active_world_size=place.active_world_size,
            iteration=iteration,
            mode=Mode.INACTIVE if place.active_rank is None else Mode.ACTIVE,
            fn_exception=None,
        )


FrozenState = State


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A worker's place in an iteration, as it was told."""

    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int
    master_addr: str
    """Where active rank 0 listens in this iteration alone; empty: as before."""
    master_port: int
    role_rank: int = 0
    """Among those of its role, of those that call the function if it does."""
    role_world_size: int = 0
    """How many these are; 0 if the agent does not tell."""


def initial(rank: int, world_size: int) -> State:
    """Return the state of a worker that has no place yet."""
    return State(rank=rank, world_size=world_size, initial_rank=rank, initial_world_size=world_size)
