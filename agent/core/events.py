"""Pure. What happens to an agent."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.agent.core import model
from drumbeat.agent.core.model import DesiredState, Exit
from drumbeat.agent.core.notice import Notice
from drumbeat.agent.core.watchdog import model as watchdog
from drumbeat.agent.errors import AgentError
from drumbeat.agent.model import messages
from drumbeat.command.leader_search import Outcome
from drumbeat.inprocess import InprocessDirective
from drumbeat.model import FaultOrder, NoticeReport, Pace

# The supervisor's reports, the watchdog's acts and the workers' steps, as they are.
WorkersStarted = messages.WorkersStarted
WorkerExited = messages.WorkerExited
WorkerStartFailed = messages.WorkerStartFailed
WorkersStopped = messages.WorkersStopped
WorkerStep = model.WorkerStep
LimitExpired = watchdog.Report
WorkerSignalled = watchdog.Signal


class SessionWelcomed(Struct, frozen=True, kw_only=True):
    """The coordinator answered the ``Hello`` of this attempt, or set another pace since."""

    attempt: int
    pace: Pace
    term: int = 0  # of an answer
    takes_evidence: bool = False  # of all ranks, before a worker is killed
    name: str = ""  # of this agent among those of its run; empty: not told


class DirectiveReceived(Struct, frozen=True, kw_only=True):
    """The coordinator's directive: the desired state, and a port of this agent that is used."""

    attempt: int
    state: DesiredState
    master_port_spent: int = 0


class OrderReceived(Struct, frozen=True, kw_only=True):
    """The coordinator's order about this host's workers.

    A notice for their training, what they do in an iteration, that held ones may be killed, or a
    fault of a rehearsal.
    """

    attempt: int
    order: Notice | InprocessDirective | watchdog.HeldReleased | FaultOrder


class NoticeAnswered(Struct, frozen=True, kw_only=True):
    """What this host's workers say of a notice, together, is new."""

    round_id: int
    report: NoticeReport


class LimitsExceeded(Struct, frozen=True, kw_only=True):
    """Which limits this host's workers exceed is new; all that they exceed now."""

    exceeded: tuple[watchdog.Exceeded, ...]


class SessionLost(Struct, frozen=True, kw_only=True):
    """It ended or could not be opened; ``is_stale``: the coordinator has given this agent up.

    ``refusal``: it will never let it in. ``verdict``: that of the run, which failed or was stopped
    without this agent. ``hint``: what to do about the reason. ``leader``: that it names in its
    place.
    """

    attempt: int
    reason: str
    hint: str = ""
    is_stale: bool = False
    refusal: AgentError | None = None
    verdict: Exit | None = None
    outcome: Outcome = Outcome.NO_ANSWER
    leader: str = ""


class PortReserved(Struct, frozen=True, kw_only=True):
    """A port is held for the next round this agent leads."""

    port: int


class SupervisorDied(Struct, frozen=True, kw_only=True):
    """The supervisor ended by itself, and all its workers with it.

    Not ``has_lived``: the system gave no process for it; what it was to do still waits for one.
    ``is_final``: nor will it, for its program cannot be executed.
    """

    ending: str
    explanation: str = ""
    has_lived: bool = True
    is_final: bool = False


class GpuMemoryFree(Struct, frozen=True, kw_only=True):
    """Old workers' GPU memory is free, or was waited for long enough; ``note`` says what isn't."""

    note: str = ""


class ChecksEnded(Struct, frozen=True, kw_only=True):
    """The health checks of this ``number`` have ended; ``problem`` is empty if all succeeded."""

    number: int
    problem: str = ""


class SignalReceived(Struct, frozen=True, kw_only=True):
    """A signal is to end this agent, e.g. Ctrl-C; or it is for the workers, e.g. a warning."""

    signum: int
    is_for_workers: bool = False
    is_preemption: bool = False  # the host will go away, but not yet


class SuspendRequested(Struct, frozen=True, kw_only=True):
    """Ctrl-Z was pressed."""


class DeadlineReached(Struct, frozen=True, kw_only=True):
    """The instant of ``next_deadline()`` has come."""


SessionEvent = SessionWelcomed | DirectiveReceived | OrderReceived | SessionLost
WorkersSaid = WorkerStep | NoticeAnswered | LimitsExceeded
WorkersEvent = WorkersStarted | WorkerStartFailed | WorkersSaid | WorkerExited | WorkersStopped
# What only telemetry and the console look at: a worker's end tells what there is to do.
ObservedEvent = LimitExpired | WorkerSignalled | SuspendRequested
Found = GpuMemoryFree | ChecksEnded
HostEvent = PortReserved | Found | SupervisorDied | SignalReceived | DeadlineReached
Event = SessionEvent | WorkersEvent | HostEvent | ObservedEvent
