"""Pure. What happens to an agent."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.inprocess.model import InprocessDirective, WorkerStep
from agent.core.model import DesiredState, Pace, WorkerError
from agent.errors import AgentError
from agent.watchdog.core.model import Hang
from agent.workers.supervisor import messages

# The supervisor's reports, as they are.
WorkersStarted = messages.WorkersStarted
WorkerStartFailed = messages.WorkerStartFailed
WorkersStopped = messages.WorkersStopped


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWelcomed:
    """The coordinator answered the ``Hello`` of this attempt."""

    attempt: int
    pace: Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceChanged:
    """The coordinator stretched or tightened the heartbeats."""

    attempt: int
    pace: Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveReceived:
    """The coordinator's directive: the desired state, and a port of this agent that is used."""

    attempt: int
    state: DesiredState
    master_port_spent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessDirected:
    """The coordinator said what the workers shall do in an iteration of their round."""

    attempt: int
    directive: InprocessDirective


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """The session ended or could not be opened.

    ``is_stale``: the coordinator has given this agent up. ``refusal``: it will never
    let it in.
    """

    attempt: int
    reason: str
    is_stale: bool = False
    refusal: AgentError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReserved:
    """A port is held for the next round this agent leads."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InprocessStepTaken:
    """A worker said how far it is in an iteration."""

    round_id: int
    local_rank: int
    step: WorkerStep


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited(messages.WorkerExit):
    """A worker ended; with what it left behind."""

    error: WorkerError | None = None
    explanation: str = ""
    stderr_tail: str = ""
    hang: Hang | None = None
    """Set if the agent ended it because it hung."""
    error_file: str = ""
    """Where it recorded its error, if that file is kept."""

    @classmethod
    def of(cls, end: messages.WorkerExit, hang: Hang | None = None) -> WorkerExited:
        """Return what is known when the supervisor has reported the end."""
        return cls(**{name: getattr(end, name) for name in end.__dataclass_fields__}, hang=hang)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogActed:
    """The watchdog did something about a worker; for telemetry, for the end tells what to do."""

    round_id: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimitExpired(WatchdogActed):
    """A timer or another limit of a worker is over.

    ``pid`` is the process that it is about, 0 for the worker itself. ``signal`` is what it
    sends: None for SIGTERM and then SIGKILL; 0 or less: nothing, it is only told.
    """

    hang: Hang
    signal: int | None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSignalled(WatchdogActed):
    """A worker, or the process ``pid`` below it, gets a signal because it hangs."""

    signum: int
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorDied:
    """The supervisor ended by itself, and all its workers with it."""

    ending: str
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorNotStarted:
    """The system gave no process for a supervisor; what it was to do still waits for one."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryFree:
    """Old workers' GPU memory is free, or was waited for long enough; ``note`` says what isn't."""

    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived:
    """Somebody wants this agent to end."""

    signum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalToForward:
    """Somebody has a signal for the workers, e.g. a batch system's warning."""

    signum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """Somebody pressed Ctrl-Z."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


Event = (
    SessionWelcomed
    | PaceChanged
    | DirectiveReceived
    | InprocessDirected
    | SessionLost
    | PortReserved
    | WorkersStarted
    | WorkerStartFailed
    | InprocessStepTaken
    | WorkerExited
    | WorkerLimitExpired
    | WorkerSignalled
    | WorkersStopped
    | SupervisorDied
    | SupervisorNotStarted
    | GpuMemoryFree
    | SignalReceived
    | SignalToForward
    | SuspendRequested
    | DeadlineReached
)
