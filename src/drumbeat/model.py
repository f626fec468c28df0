"""Pure. The values that agents and the coordinator exchange. Durations are seconds.

The values of enums, and the names of fields but for the ``_s`` of durations, are those of the
protocol, ``drumbeat.v1``. What one side alone knows is in its own ``core/model.py``.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

# Far beyond any run or host, and well within what messages and clocks can hold.
DURATION_MAX_S = 1e9

_EXIT_CODES = {"SUCCEEDED": 0, "STOPPED": 4, "FAILED_BY_RULE": 5, "NO_PROGRESS": 5}


def exit_code_of(cause: str) -> int:
    """Return the exit code of an agent whose run ended like this; 5: no new job helps."""
    return _EXIT_CODES.get(cause, 1)


class ReplicaGroup(Struct, frozen=True, kw_only=True):
    """Which replica group of a job a run is. ``groups_min``: with fewer groups the job ends."""

    job: str
    index: int
    count: int
    groups_min: int = 1

    @property
    def run_id(self) -> str:
        """The id of the group's run."""
        return f"{self.job}.{self.index}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count} with --min-groups {self.groups_min}"


class GroupState(StrEnum):
    """What a host's worker group does."""

    IDLE = "IDLE"
    """No workers; waits for a round."""
    STARTING = "STARTING"
    """The supervisor was told to start them; waits for its answer."""
    RUNNING = "RUNNING"
    """They run; waits for exits."""
    STOPPING = "STOPPING"
    """The coordinator wants something else; waits for the last process to end."""
    SUCCEEDED = "SUCCEEDED"
    """All exited with 0; waits for the other agents."""
    FAILED = "FAILED"
    """One failed, the others are being stopped; waits for the coordinator's decision."""


class HangKind(StrEnum):
    """Which limit a worker broke."""

    TIMER = "TIMER"
    SECTION = "SECTION"
    STARTUP = "STARTUP"
    RUNTIME = "RUNTIME"
    PROGRESS = "PROGRESS"
    EXIT = "EXIT"
    OUTPUT = "OUTPUT"
    COLLECTIVE = "COLLECTIVE"


class HealthState(StrEnum):
    """Whether a host is healthy; only then it gets a place in a new round."""

    CHECKING = "CHECKING"  # its checks run
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


class NoticeKind(StrEnum):
    """What a notice is about."""

    PREEMPTION = "PREEMPTION"
    DRAIN = "DRAIN"
    STOP = "STOP"
    RESTART = "RESTART"
    SCALE_UP = "SCALE_UP"
    CHECKPOINT = "CHECKPOINT"  # nothing will change
    OTHER = "OTHER"  # of a later version


class NoticeReport(Struct, frozen=True, kw_only=True):
    """What the workers of a host say of a notice, together.

    ``proposed`` and ``chosen`` are the steps that they know, ``asked`` the latest that any of
    them asked about. ``is_missed`` is about the proposed step, if there is one; ``is_ready`` if all
    of them will stop at it. ``is_saved`` if no worker is left that asks and has not saved.
    ``step_time_s`` is the shortest.
    """

    notice_id: int
    chosen: int | None = None
    asked: int | None = None
    is_missed: bool = False
    is_saved: bool = False
    step_time_s: float | None = None
    proposed: int | None = None
    is_ready: bool = False


class WorkerMemory(Struct, frozen=True, kw_only=True):
    """Resident memory of one worker's process in bytes, and by how much it grows in a minute."""

    local_rank: int
    resident_bytes: int
    growth_bytes: int = 0  # 0: it does not grow


class HostMemory(Struct, frozen=True, kw_only=True):
    """Memory of a host's workers; ``used_bytes`` and the limit are of their cgroup, or the host."""

    workers: tuple[WorkerMemory, ...] = ()
    used_bytes: int = 0  # 0, here and below: not known
    limit_bytes: int = 0
    is_cgroup: bool = False


class GpuUse(Struct, frozen=True, kw_only=True):
    """What the GPUs of a host do: a value for each in all fields."""

    utilization: tuple[float, ...] = ()  # of the last second or so, from 0 to 1
    memory_used_bytes: tuple[int, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    power_watts: tuple[float, ...] = ()  # 0: not known


class Health(Struct, frozen=True, kw_only=True):
    """What the health checks of a host say, and for how long."""

    state: HealthState
    reason: str = ""  # what is wrong
    age_s: float = 0.0


class PreflightFinding(Struct, frozen=True, kw_only=True):
    """Ranks whose hosts shall take part in no later round, as workers of the preflight say."""

    ranks: tuple[int, ...]
    reason: str = ""


class FaultKind(StrEnum):
    """What a rehearsal does to a run. ``OTHER``: of a later version."""

    OTHER = "OTHER"
    WORKER = "WORKER"
    AGENT = "AGENT"
    HOST_PAUSE = "HOST_PAUSE"


class FaultOrder(Struct, frozen=True, kw_only=True):
    """A fault that an agent shall inject, once; ``number`` rises in a run."""

    number: int
    round_id: int
    kind: FaultKind
    local_rank: int = 0  # of the worker to kill
    pause_s: float = 0.0  # how long workers are stopped


class FaultReport(Struct, frozen=True, kw_only=True):
    """What became of the fault; ``refusal``: why it was not injected, empty if it was."""

    number: int
    refusal: str = ""


class GroupBeat(Struct, frozen=True, kw_only=True):
    """The part of a beat that is the same on both sides: a host's worker group."""

    state: GroupState
    round_id: int | None = None  # of the state and its workers; None: the agent holds no round
    master_port: int = 0  # it holds for the next round it leads
    failures_written: int = 0
    workers_alive: int = 0
    workers_done: int = 0  # exited with 0 before they were told to stop
    is_start_impossible: bool = False  # the group failed at its start, and was the first one
    notice: NoticeReport | None = None  # what its workers say of the one that is pending
    preflight: tuple[PreflightFinding, ...] = ()  # whom its workers name, once they have ended
    fault: FaultReport | None = None  # the latest of a rehearsal


class Pace(Struct, frozen=True, kw_only=True):
    """How often agents beat, how they come back, and how long a silence is tolerated."""

    heartbeat_interval_s: float
    reconnect_delay_max_s: float
    lease_s: float = 0.0  # the coordinator's; agents do not use it
    waiting_interval_s: float = 0.0  # of an agent that stands by, if that is longer


class Standby(Struct, frozen=True, kw_only=True):
    """Desired: hold no workers. ``reason`` says what the run waits for, and how long it will."""

    reason: str
    agents_present: int = 0
    agents_wanted: int = 0
    time_left_s: float | None = None


class Assignment(Struct, frozen=True, kw_only=True):
    """Desired: hold the workers of a round, seated like this; ranks are those of worker 0."""

    round_id: int
    restart_count: int
    group_rank: int
    group_world_size: int
    rank_first: int
    world_size: int
    role_rank_first: int
    role_world_size: int
    master_addr: str
    master_port: int
    reason: str
    restarts_used: int = 0
    restarts_max: int = 0
    has_store: bool = False  # torch's store listens at the master's port already
    is_preflight: bool = False  # its workers run the preflight


class Stop(Struct, frozen=True, kw_only=True):
    """Desired: stop the workers; the verdict follows."""

    reason: str


class HangGroup(Struct, frozen=True, kw_only=True):
    """Ranks that are at the same place when a round hangs."""

    count: int
    ranks: str  # as ranges, cut if there are many
    place: str  # e.g. "backward (train.py:20)"
    activity: str = ""  # what ranks there do, in words
    stack: str = ""  # of one of them, innermost call first
    is_cause: bool = False
    collective: str = ""  # in which they wait, in words


class CollectiveCall(Struct, frozen=True, kw_only=True):
    """One call of a process group, as a rank's flight recorder has it.

    It is a collective, or one side of a point-to-point operation.
    """

    sequence: int  # in its group, from 1; point-to-point operations are counted by themselves
    op: str  # e.g. "all_reduce", "send", "recv"
    tensors: str = ""  # types and sizes, e.g. "float32 [25557032]"
    is_done: bool = False
    age_s: float | None = None  # since the rank made the call
    peer: int | None = None  # of a point-to-point operation: the other side's rank in the world


class GroupCalls(Struct, frozen=True, kw_only=True):
    """The latest calls of one process group by one of its ranks, the oldest first.

    ``ranks`` are those of the world that belong to the group, as ranges with strides: "0-3,8-14:2";
    empty if they are not known.
    """

    name: str  # as torch names it; groups with the same name and other ranks are others
    ranks: str
    label: str = ""  # a description for display, e.g. "mesh_dp"
    calls: tuple[CollectiveCall, ...] = ()
