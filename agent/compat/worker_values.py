"""Pure. Workers as training code thinks of them: spec, worker, group, state and result.

Names, fields and meanings are those of ``torch.distributed.elastic.agent.server.api`` (2.13.0).
For programs that use these values; drumbeat itself does not. ``WorkerSpec`` has no
``rdzv_handler``: the coordinator assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.kinds import PORT_MAX
from drumbeat.model import Assignment
from drumbeat.text.violation import Violation

if TYPE_CHECKING:
    from drumbeat.agent.errors import ProcessFailure

UNASSIGNED = -1  # a rank or a size before there is a round


class WorkerState(StrEnum):
    """What the workers of a host do, as a unit: one that fails makes the group fail."""

    INIT = "INIT"  # not running yet
    HEALTHY = "HEALTHY"  # they run
    STOPPED = "STOPPED"  # by the agent; another round may start them again
    SUCCEEDED = "SUCCEEDED"  # all exited with 0
    FAILED = "FAILED"  # one exited with anything else, or could not be started


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What the workers of one role are; the same on all hosts of that role.

    ``entrypoint`` is a function, or the program, script or module to run; ``fn`` is its older
    name. ``max_restarts`` is the budget of the whole run. ``monitor_interval`` (seconds) is checked
    and has no effect: the end of a worker is told, not looked for. ``master_addr``, ``master_port``
    and ``local_addr`` are None unless given.

    Raises ``InvalidConfiguration``, which names every field that is impossible.
    """

    role: str
    local_world_size: int
    entrypoint: Callable[..., Any] | str | None = None
    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 30.0
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None

    def __post_init__(self) -> None:
        rules = (
            ("role", bool(self.role), "a name"),
            ("local_world_size", self.local_world_size >= 1, "1 to inf workers"),
            ("max_restarts", self.max_restarts >= 0, "0 to inf restarts"),
            ("master_port", 0 <= (self.master_port or 0) <= PORT_MAX, f"0 to {PORT_MAX}"),
            ("monitor_interval", self.monitor_interval > 0, "more than 0 s"),
            ("fn", self.fn is None or self.entrypoint is None, "either fn or entrypoint, not both"),
            ("entrypoint", bool(self.fn or self.entrypoint), "a function or a program"),
        )
        broken = [(name, getattr(self, name), what) for name, is_met, what in rules if not is_met]
        if broken:
            raise InvalidConfiguration(tuple(Violation(*parts) for parts in broken))
        if self.fn is not None:
            object.__setattr__(self, "entrypoint", self.fn)

    def get_entrypoint_name(self) -> str:
        """Return a function's qualified name, or the last part of a program's path."""
        if isinstance(self.entrypoint, str):
            return self.entrypoint.rpartition("/")[2]
        return getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process, or the place of one before it runs. Ranks hold for one round.

    ``id`` is the pid, None if it never ran. ``role_rank`` and ``role_world_size``
    count the workers of its role, ``global_rank`` and ``world_size`` all.
    """

    local_rank: int
    global_rank: int = UNASSIGNED
    role_rank: int = UNASSIGNED
    world_size: int = UNASSIGNED
    role_world_size: int = UNASSIGNED
    id: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers of this host. Before a round there are as many, without ranks."""

    spec: WorkerSpec
    workers: tuple[Worker, ...] = ()
    group_rank: int | None = None
    group_world_size: int | None = None
    state: WorkerState = WorkerState.INIT

    def __post_init__(self) -> None:
        if not self.workers:
            workers = tuple(map(Worker, range(self.spec.local_world_size)))
            object.__setattr__(self, "workers", workers)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the workers of this host ended: all succeeded, or the group did not.

    Both tables are by global rank and never share one. ``return_values`` is for
    functions; a program has none. ``failures`` holds each worker that failed by itself;
    one the agent stopped is in neither.
    """

    state: WorkerState
    return_values: Mapping[int, Any] = field(default_factory=dict)
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether the group failed."""
        return self.state is WorkerState.FAILED


def worker_spec(config: AgentConfig) -> WorkerSpec:
    """Return what the workers of this agent are."""
    program = config.program
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=program.target,
        args=() if program.kind == "function" else program.args,
        max_restarts=config.max_restarts,
        master_port=config.master_port or None,
        master_addr=config.master_addr or None,
        local_addr=config.local_addr,
    )


def worker_group(config: AgentConfig, assignment: Assignment) -> WorkerGroup:
    """Return this host's workers as they are seated in a round, not started yet."""
    rank, role_rank = assignment.rank_first, assignment.role_rank_first
    sizes = (assignment.world_size, assignment.role_world_size)
    return WorkerGroup(
        worker_spec(config),
        tuple(Worker(i, rank + i, role_rank + i, *sizes) for i in range(config.nproc_per_node)),
        assignment.group_rank,
        assignment.group_world_size,
    )
