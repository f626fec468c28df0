"""Pure. What the worker group is told (events) and what it wants done (effects)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailure:
    """Why a worker could not be started.

    Attributes:
        local_rank: The worker.
        errno: The system's error number; 0 if the command itself is impossible.
        message: A sentence that names what is wrong.
    """

    local_rank: int
    errno: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """A reaped child: its exit code is its status, or the negative number of a signal."""

    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequested:
    """The agent wants these workers of a new round."""

    round_id: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFinished:
    """Result of `SpawnWorkers`: the started ones by local rank, and why the next one was not."""

    pids: Mapping[int, int]
    failure: SpawnFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The agent wants the workers to end, by `signal` within `timeout_s`, else by SIGKILL."""

    round_id: int
    signal: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """The agent wants everything to end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequested:
    """The agent wants a signal forwarded to the workers themselves."""

    round_id: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOneRequested:
    """The agent wants a signal for one worker, or for its process group."""

    round_id: int
    local_rank: int
    signal: int
    is_for_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildrenReaped:
    """All children that had ended were reaped; says whether any child is left."""

    exits: tuple[ChildExit, ...]
    is_any_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescendantsListed:
    """Result of `ListDescendants`."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of `WorkerGroup.next_deadline` has come."""


Event: TypeAlias = (
    StartRequested
    | SpawnFinished
    | StopRequested
    | KillRequested
    | SignalRequested
    | SignalOneRequested
    | ChildrenReaped
    | DescendantsListed
    | DeadlineReached
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnWorkers:
    """Start these workers in order, up to the first failure; ends as `SpawnFinished`."""

    round_id: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalGroups:
    """Send a signal to the process groups these unreaped workers lead."""

    pids: tuple[int, ...]
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalProcesses:
    """Send a signal to these unreaped workers alone."""

    pids: tuple[int, ...]
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOne:
    """Send a signal to this unreaped worker, or to the process group it leads.

    If that is refused, the agent is told.
    """

    round_id: int
    local_rank: int
    pid: int
    signal: int
    is_for_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDescendants:
    """Send SIGKILL to every descendant that exists now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDescendants:
    """Reap, then find what is left; ends as `DescendantsListed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStarted:
    """Tell the agent that the workers run."""

    round_id: int
    pids: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStartFailed:
    """Tell the agent that a worker could not be started."""

    round_id: int
    failure: SpawnFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportExited:
    """Tell the agent that a worker ended; `ended_at` is in monotonic seconds."""

    round_id: int
    local_rank: int
    pid: int
    exit_code: int
    is_stopped: bool
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStopped:
    """Tell the agent that nothing of the round is alive, but for the stuck processes."""

    round_id: int
    stuck_pids: tuple[int, ...] = ()


Effect: TypeAlias = (
    SpawnWorkers
    | SignalGroups
    | SignalProcesses
    | SignalOne
    | KillDescendants
    | ListDescendants
    | ReportStarted
    | ReportStartFailed
    | ReportExited
    | ReportStopped
)
