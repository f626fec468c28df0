"""Pure. What an agent's core wants done."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.agent.core import model
from drumbeat.agent.core.model import Beat, Failure
from drumbeat.agent.core.notice import Notice
from drumbeat.agent.core.watchdog import model as watchdog
from drumbeat.agent.errors import AgentError
from drumbeat.agent.failures.report import FailureReport
from drumbeat.agent.model import messages
from drumbeat.model import Assignment

# The supervisor, the worker and the watchdog take these as they are.
StopWorkers = messages.StopWorkers
KillWorkers = messages.KillWorkers
WorkerOrder = model.WorkerOrder
SignalWorkers = messages.SignalWorkers
JudgeKnown = watchdog.JudgeKnown
HeldReleased = watchdog.HeldReleased


class OpenSession(Struct, frozen=True, kw_only=True):
    """Open a session after a random delay of at most ``delay_max_s``; ends an older one.

    ``lost_term``: of the coordinator that this agent has lost, if that is why it comes.
    """

    attempt: int
    delay_max_s: float
    beat: Beat
    address: str = ""
    lost_term: int = 0


class SendBeat(Struct, frozen=True, kw_only=True):
    """Report the actual state; a newer one replaces it unsent."""

    beat: Beat


class SendGoodbye(Struct, frozen=True, kw_only=True):
    """Leave the run."""

    reason: str


class ReservePort(Struct, frozen=True, kw_only=True):
    """Hold a free port and answer with ``PortReserved``; let go of all others but ``kept``."""

    kept: frozenset[int] = frozenset()


class StartSupervisor(Struct, frozen=True, kw_only=True):
    """Start another supervisor; ``is_command_kept``: it does what the one before has not begun."""

    delay_s: float = 0.0
    is_command_kept: bool = False


class AwaitGpuMemory(Struct, frozen=True, kw_only=True):
    """Wait until the memory of ended workers is free; answer with ``GpuMemoryFree``."""


class StartRound(Struct, frozen=True, kw_only=True):
    """Start the workers of a round."""

    assignment: Assignment


class ShowNotice(Struct, frozen=True, kw_only=True):
    """Have the workers of its round find it; answer with ``NoticeAnswered``."""

    notice: Notice


class Crash(Struct, frozen=True, kw_only=True):
    """Die as by SIGKILL, for a rehearsal: the supervisor ends the workers."""


class RunChecks(Struct, frozen=True, kw_only=True):
    """Run the health checks, in place of those that run; answer with ``ChecksEnded``."""

    number: int


class StopChecks(Struct, frozen=True, kw_only=True):
    """End the health checks that run, without an answer."""


class WriteFailure(Struct, frozen=True, kw_only=True):
    """Spool a failure record, before any beat that counts it leaves."""

    failure: Failure


class Tell(Struct, frozen=True, kw_only=True):
    """Say so on the console. ``what`` is a fixed phrase, ``why`` a sentence, ``details`` lines."""

    what: str
    why: str
    round_id: int | None = None
    details: str = ""


class Finish(Struct, frozen=True, kw_only=True):
    """End the agent: with an error of its own, or with the run's outcome.

    ``is_too_late``: its run had ended already, and takes no more failure records.
    """

    exit_code: int
    report: FailureReport | None = None
    error: AgentError | None = None
    is_too_late: bool = False


SupervisorCommand = StopWorkers | KillWorkers | SignalWorkers
ToWorkers = WorkerOrder | ShowNotice | JudgeKnown | HeldReleased
WorkersEffect = StartSupervisor | AwaitGpuMemory | StartRound | ToWorkers | SupervisorCommand
SessionEffect = OpenSession | SendBeat | SendGoodbye
ChecksEffect = RunChecks | StopChecks
HostEffect = ReservePort | WriteFailure | ChecksEffect | Crash
Effect = SessionEffect | WorkersEffect | HostEffect | Tell | Finish
