"""Pure. The environment of a worker: torchrun's contract, and ours beside it.

Source of the names and meanings: ``worker_sdk.context``.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.model import Assignment
from agent.settings.config import AgentConfig
from agent.workers.devices.visible import VISIBLE_DEVICES, device_of
from worker_sdk import context

OPTION_PREFIX = "DRUMBEAT_"


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


def common_environment(base: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    """Return what all workers of this host get in every round: ``base``, and some defaults."""
    environment = {context.NCCL_ASYNC_ERROR_HANDLING: "1", **base}
    if needs_omp_default(base, local_world_size):
        environment[context.OMP_NUM_THREADS] = "1"
    return environment


def worker_environments(
    config: AgentConfig, assignment: Assignment, visible_devices: str | None = None
) -> dict[int, dict[str, str]]:
    """Return what each worker is told of a round, by local rank.

    Args:
        config: What this host's agent was told.
        assignment: The round.
        visible_devices: The agent's own ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    of_round: dict[str, object] = {
        context.WORLD_SIZE: assignment.world_size,
        context.LOCAL_WORLD_SIZE: config.nproc_per_node,
        context.GROUP_RANK: assignment.group_rank,
        context.GROUP_WORLD_SIZE: assignment.group_world_size,
        context.ROLE_NAME: config.role,
        context.ROLE_WORLD_SIZE: assignment.role_world_size,
        context.MASTER_ADDR: assignment.master_addr,
        context.MASTER_PORT: assignment.master_port,
        context.RESTART_COUNT: assignment.restart_count,
        context.MAX_RESTARTS: config.max_restarts,
        context.TORCH_RUN_ID: config.run_id,
        context.SIGNALS_TO_HANDLE: ",".join(config.signals_to_handle),
        context.USE_AGENT_STORE: False,
        context.RUN_ID: config.run_id,
        context.ROUND: assignment.round_id,
    }
    environments = {}
    for local_rank in range(config.nproc_per_node):
        is_virtual = config.virtual_local_rank
        own: dict[str, object] = {
            context.LOCAL_RANK: 0 if is_virtual else local_rank,
            context.RANK: assignment.rank_first + local_rank,
            context.ROLE_RANK: assignment.role_rank_first + local_rank,
        }
        if is_virtual:
            own[VISIBLE_DEVICES] = device_of(local_rank, visible_devices)
        environments[local_rank] = {name: str(value) for name, value in (of_round | own).items()}
    return environments
