"""Pure. Workers as training code thinks of them: spec, worker, group, state and result.

The names, fields and meanings are those of ``torch.distributed.elastic.agent.server.api``
(2.13.0), so that what was written against them reads the same here. They describe;
what this host really does is decided in ``agent.core.agent``. Left out of ``WorkerSpec`` is
``rdzv_handler``: no host takes part in a rendezvous by itself, the coordinator assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agent.core.model import Assignment
from agent.errors import InvalidConfiguration
from agent.settings.config import AgentConfig
from drumbeat.violation import Violation, check_range

if TYPE_CHECKING:
    from agent.errors import ProcessFailure

PORT_MAX = 65535
UNASSIGNED = -1
"""A rank or a size before there is a round."""


class WorkerState(StrEnum):
    """What the workers of a host do, as a unit: one that fails makes the group fail."""

    INIT = "INIT"
    """Not running yet."""
    HEALTHY = "HEALTHY"
    """They run."""
    STOPPED = "STOPPED"
    """Stopped by the agent; another round may start them again."""
    SUCCEEDED = "SUCCEEDED"
    """All exited with 0."""
    FAILED = "FAILED"
    """One exited with anything else, or could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What the workers of one role are; the same on all hosts of that role.

    ``entrypoint`` is a function, or the program, script or module to run; ``fn`` is
    its older name. ``args`` are its arguments. ``max_restarts`` is the budget of the
    whole run. ``monitor_interval`` (seconds) is checked and has no effect: the end of
    a worker is told, not looked for. ``master_addr`` and ``master_port`` are None
    unless fixed; ``local_addr`` is None unless given.

    Raises:
        InvalidConfiguration: Names every field that is impossible.
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
        if violations := self._violations():
            raise InvalidConfiguration(tuple(violations))
        if self.fn is not None:
            object.__setattr__(self, "entrypoint", self.fn)

    def get_entrypoint_name(self) -> str:
        """Return a function's qualified name, or the last part of a program's path."""
        if isinstance(self.entrypoint, str):
            return self.entrypoint.rpartition("/")[2]
        return getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__)

    def _violations(self) -> list[Violation]:
        found: list[Violation] = []
        if not self.role:
            found.append(Violation("role", self.role, "a name"))
        found += check_range("local_world_size", self.local_world_size, 1, float("inf"), "workers")
        found += check_range("max_restarts", self.max_restarts, 0, float("inf"), "restarts")
        found += check_range("master_port", self.master_port or 0, 0, PORT_MAX, "")
        if not self.monitor_interval > 0:
            found.append(Violation("monitor_interval", self.monitor_interval, "more than 0 s"))
        if self.fn is not None and self.entrypoint is not None:
            found.append(Violation("fn", self.fn, "either fn or entrypoint, not both"))
        if self.fn is None and not self.entrypoint:
            found.append(Violation("entrypoint", self.entrypoint, "a function or a program"))
        return found


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
            ranks = range(self.spec.local_world_size)
            object.__setattr__(self, "workers", tuple(Worker(rank) for rank in ranks))

    def with_ids(self, pids: Mapping[int, int]) -> WorkerGroup:
        """Return the group with the processes that run, by local rank."""
        workers = (replace(w, id=pids.get(w.local_rank, w.id)) for w in self.workers)
        return replace(self, workers=tuple(workers))


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
    return WorkerGroup(
        spec=worker_spec(config),
        workers=tuple(
            Worker(
                local_rank=local_rank,
                global_rank=assignment.rank_first + local_rank,
                role_rank=assignment.role_rank_first + local_rank,
                world_size=assignment.world_size,
                role_world_size=assignment.role_world_size,
            )
            for local_rank in range(config.nproc_per_node)
        ),
        group_rank=assignment.group_rank,
        group_world_size=assignment.group_world_size,
    )
