"""Shell. A worker's place in an iteration, and the variables by which torch learns it."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker_sdk import context

if TYPE_CHECKING:
    from drumbeat.worker.v1 import worker_pb2


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


def initial_state() -> State:
    """Return the state of this process before its first iteration."""
    rank, size = _number(context.RANK, 0), _number(context.WORLD_SIZE, 1)
    return State(rank=rank, world_size=size, initial_rank=rank, initial_world_size=size)


def local_rank() -> int | None:
    """Return which worker of its host this is, ``None`` if the environment does not say."""
    return _number(context.LOCAL_RANK, 0) if context.LOCAL_RANK in os.environ else None


def master() -> tuple[str, int]:
    """Return where active rank 0 listens in this iteration, port 0 if that is not known."""
    return os.environ.get(context.MASTER_ADDR, ""), _number(context.MASTER_PORT, 0)


def set_environment(state: State, begin: worker_pb2.WorkerBegin) -> None:
    """Set the variables for an iteration; for a spare, whose hooks may ask, its rank among all."""
    is_active = state.active_rank is not None
    variables = {
        context.RANK: state.active_rank if is_active else state.rank,
        context.WORLD_SIZE: state.active_world_size if is_active else state.world_size,
    }
    if begin.role_world_size:
        variables[context.ROLE_RANK] = begin.role_rank
        variables[context.ROLE_WORLD_SIZE] = begin.role_world_size
    if begin.master_addr:
        os.environ[context.MASTER_ADDR] = begin.master_addr
        variables[context.MASTER_PORT] = begin.master_port
        os.environ[context.USE_AGENT_STORE] = str(begin.has_store)
    os.environ.update({name: str(number) for name, number in variables.items()})


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError as error:
        raise ValueError(f"{name} must be an integer, not {os.environ[name]!r}") from error
