"""Pure. What a worker knows of its place in an iteration."""

import enum
from dataclasses import dataclass


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
    """A worker's place in an iteration."""

    rank: int
    """Among all workers that take part."""
    world_size: int
    active_rank: int | None = None
    """Among those that call the function; ``None`` for a worker that stands by."""
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


FrozenState = State
