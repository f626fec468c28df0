"""Pure. What happens to an agent."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core import model
from agent.core.model import DesiredState, Pace
from agent.core.notice import Notice, NoticeReport
from agent.errors import AgentError
from agent.watchdog.core import model as watchdog
from agent.workers.supervisor import messages
from drumbeat.inprocess import InprocessDirective

# The supervisor's reports, the watchdog's acts and the workers' steps, as they are.
WorkersStarted = messages.WorkersStarted
WorkerExited = messages.WorkerExited
WorkerStartFailed = messages.WorkerStartFailed
WorkersStopped = messages.WorkersStopped
WorkerStep = model.WorkerStep
LimitExpired = watchdog.Report
WorkerSignalled = watchdog.Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWelcomed:
    """The coordinator answered the ``Hello`` of this attempt, or set another pace since."""

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
class NoticeReceived:
    """The coordinator said what training shall know of a change to come, or that it is over."""

    attempt: int
    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeAnswered:
    """What this host's workers say of a notice, together, is new."""

    round_id: int
    report: NoticeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """It ended or could not be opened; ``is_stale``: the coordinator has given this agent up.

    ``refusal``: it will never let it in. ``hint``: what to do about the reason.
    """

    attempt: int
    reason: str
    hint: str = ""
    is_stale: bool = False
    refusal: AgentError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReserved:
    """A port is held for the next round this agent leads."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorDied:
    """The supervisor ended by itself, and all its workers with it.

    Not ``has_lived``: the system gave no process for it; what it was to do still waits for one.
    """

    ending: str
    explanation: str = ""
    has_lived: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryFree:
    """Old workers' GPU memory is free, or was waited for long enough; ``note`` says what isn't."""

    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived:
    """A signal is to end this agent, e.g. Ctrl-C; or it is for the workers, e.g. a warning."""

    signum: int
    is_for_workers: bool = False
    is_preemption: bool = False  # the host will go away, but not yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """Ctrl-Z was pressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


Directed = DirectiveReceived | InprocessDirected | NoticeReceived
SessionEvent = SessionWelcomed | Directed | SessionLost
WorkersSaid = WorkerStep | NoticeAnswered
WorkersEvent = WorkersStarted | WorkerStartFailed | WorkersSaid | WorkerExited | WorkersStopped
# What only telemetry and the console look at: a worker's end tells what there is to do.
ObservedEvent = LimitExpired | WorkerSignalled | SuspendRequested
HostEvent = PortReserved | GpuMemoryFree | SupervisorDied | SignalReceived | DeadlineReached
Event = SessionEvent | WorkersEvent | HostEvent | ObservedEvent
