"""Pure. The environment of a worker: torchrun's contract, and ours beside it.

Source of the names and meanings: ``worker_sdk.context``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.core.model import Assignment
from agent.settings.kinds import SIGNALS_HANDLED
from agent.workers.devices.visible import VISIBLE_DEVICES, device_of
from worker_sdk import context

OPTION_PREFIX = "DRUMBEAT_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What workers of this host have in common, whatever the round."""

    run_id: str
    role: str
    local_world_size: int
    restarts_max: int
    signals_to_handle: tuple[str, ...] = SIGNALS_HANDLED
    """Names of the signals that end the agent; a launcher within a worker handles the same."""
    is_local_rank_virtual: bool = False
    """Whether each worker sees its own GPU only, as number 0."""


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what workers inherit of the agent's environment: all but the agent's own options.

    An ``agent join`` within a worker must not take the outer one's settings for its own.
    """
    return {
        name: value for name, value in environment.items() if not name.startswith(OPTION_PREFIX)
    }


def needs_omp_default(base: Mapping[str, str], local_world_size: int) -> bool:
    """Return whether ``OMP_NUM_THREADS`` has to be set: unset, and several workers share cores."""
    return local_world_size > 1 and context.OMP_NUM_THREADS not in base


def round_environment(host: Host, assignment: Assignment) -> dict[str, str]:
    """Return what a round says to all workers of this host."""
    added = {
        context.WORLD_SIZE: assignment.world_size,
        context.LOCAL_WORLD_SIZE: host.local_world_size,
        context.GROUP_RANK: assignment.group_rank,
        context.GROUP_WORLD_SIZE: assignment.group_world_size,
        context.ROLE_NAME: host.role,
        context.ROLE_WORLD_SIZE: assignment.role_world_size,
        context.MASTER_ADDR: assignment.master_addr,
        context.MASTER_PORT: assignment.master_port,
        context.RESTART_COUNT: assignment.restart_count,
        context.MAX_RESTARTS: host.restarts_max,
        context.TORCH_RUN_ID: host.run_id,
        context.SIGNALS_TO_HANDLE: ",".join(host.signals_to_handle),
        context.USE_AGENT_STORE: False,
        context.RUN_ID: host.run_id,
        context.ROUND: assignment.round_id,
    }
    return {name: str(value) for name, value in added.items()}


def common_environment(
    base: Mapping[str, str], host: Host, assignment: Assignment
) -> dict[str, str]:
    """Return what all workers of this host get in this round, on top of ``base``."""
    environment = {**base, **round_environment(host, assignment)}
    environment.setdefault(context.NCCL_ASYNC_ERROR_HANDLING, "1")
    if needs_omp_default(base, host.local_world_size):
        environment[context.OMP_NUM_THREADS] = "1"
    return environment


def worker_environments(
    host: Host,
    assignment: Assignment,
    error_files: Mapping[int, str] | None = None,
    *,
    visible_devices: str | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each local rank with what only that worker gets.

    Args:
        host: What they have in common.
        assignment: The round.
        error_files: Where each leaves its error, by local rank; None: that is added by others.
        visible_devices: The agent's own ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    for local_rank in range(host.local_world_size):
        environment = {
            context.LOCAL_RANK: str(local_rank),
            context.RANK: str(assignment.rank_first + local_rank),
            context.ROLE_RANK: str(assignment.role_rank_first + local_rank),
        }
        if error_files is not None:
            environment[context.ERROR_FILE] = error_files[local_rank]
        if host.is_local_rank_virtual:
            environment[context.LOCAL_RANK] = "0"
            environment[VISIBLE_DEVICES] = device_of(local_rank, visible_devices)
        yield local_rank, environment
