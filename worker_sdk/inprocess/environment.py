"""Shell. The variables by which torch learns a worker's place in an iteration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from worker_sdk import context
from worker_sdk.inprocess.state import State

if TYPE_CHECKING:
    from drumbeat.worker.v1 import worker_pb2


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


def apply(state: State, begin: worker_pb2.WorkerBegin) -> None:
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
    os.environ.update({name: str(number) for name, number in variables.items()})


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError as error:
        raise ValueError(f"{name} must be an integer, not {os.environ[name]!r}") from error
