"""Pure. The watchdog's policy, what boards say, its events and effects; times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from drumbeat.agent.model.hang import BoardProgress, Hang, HangEvidence, Purpose
from drumbeat.model import HangKind


class WorkerKey(Struct, frozen=True, order=True):
    """One worker of one round."""

    round_id: int
    local_rank: int


AUTO: Final = "auto"  # instead of a limit: the one that was learned, none until then
REPORT: Final = "report"  # a worker that exceeds the limit, if any, is only reported
Limit = float | Literal["auto", "report"] | None  # seconds, or None for no limit
Tally = tuple[int, float]  # how many there were, and the longest


class WatchdogPolicy(Struct, frozen=True, kw_only=True):
    """The settings of a watchdog."""

    startup_timeout_s: float | None = None  # from its start to its first heartbeat; None: no limit
    runtime_timeout_s: float | None = 300.0  # without a sign of life of a runtime that has attached
    # Between two heartbeats, once there was one. If it is learned, so is the time to the first one,
    # of ranks that had one in an earlier round.
    progress_timeout_s: Limit = REPORT
    # From the beginning of an interpreter's end to its end.
    exit_timeout_s: float | Literal["report"] | None = REPORT
    # In which no process group of a worker moves that waits in a call of one. A worker that exceeds
    # a duration is killed if the coordinator finds that no worker of the run has moved.
    collective_timeout_s: float | Literal["report"] | None = REPORT
    kill_grace_s: float = 5.0  # from SIGTERM to SIGKILL for a worker that hangs
    pulse_s: float = 1.0  # how often the watchdog wakes, to notice that it was asleep itself
    # After a wake-up later than this every limit is given as much more time: this process, or
    # its host, has stood still.
    stall_s: float = 0.1
    evidence_timeout_s: float = 0.15  # the longest wait for a worker's stacks
    held_s: float = 5.0  # how long a worker is held for the coordinator's evidence of all ranks
    unkilled_every_s: float = 10.0  # how often it is said that a worker does not die of SIGKILL
    timers_max: int = 1024  # that one worker may have open by calls; more are refused
    tells_step_sums: bool = False  # of workers, beside where they stand
    observes_workers: bool = False  # a thread in each tells its stacks and collectives
    is_preflight: bool = False  # how long a worker takes to its first heartbeat tells nothing

    def of_preflight(self) -> WatchdogPolicy:
        """Return the policy for workers of the preflight, which has a limit of its own."""
        limits = ("startup", "runtime", "progress", "exit", "collective")
        none = dict.fromkeys(f"{name}_timeout_s" for name in limits)
        return replace(self, is_preflight=True, **none)


class Slot(Struct, frozen=True, kw_only=True):
    """What has a limit: an open timer or section, as the worker's board or a call says.

    ``slot`` is its number on the board. ``deadline`` is None for one without a limit of its own.
    ``signal`` is None for SIGTERM and then SIGKILL; 0 or less: only report. ``grace_s`` lies
    between these two, if it is shorter than the policy's; ``None``: that counts.
    """

    slot: int = -1
    name: str = ""
    is_section: bool = False
    since: float
    deadline: float | None
    limit_s: Limit
    signal: int | None = None
    purpose: Purpose = Purpose.USER
    grace_s: float | None = None


class FatalLine(Struct, frozen=True, kw_only=True):
    """A line of a worker's output that only a restart repairs: which pattern says so, and when."""

    pattern: str
    line: str
    at: float


class Snapshot(BoardProgress, frozen=True, kw_only=True):
    """What a worker's board and its output say.

    ``slots`` are only those open and not suspended. One that did not change since the
    last reading should be the same object: that makes following it cheap.
    """

    owner_pid: int = 0
    stack_signal: int = 0
    answers: bool = False  # a thread of the runtime writes its stacks when it is asked
    exiting_at: float | None = None
    is_debugged: bool = False
    heartbeats: int = 0
    gap_max_s: float = 0.0
    gaps: int = 0
    slots: tuple[Slot, ...] = ()
    sections: Mapping[str, Tally] = field(default_factory=dict)  # times of each, when left
    fatal_line: FatalLine | None = None  # the first one


class _OfWorker(Struct, frozen=True, kw_only=True):
    worker: WorkerKey


class _OfProcess(_OfWorker, frozen=True, kw_only=True):
    pid: int = 0  # a process below the worker, 0 for the worker itself


class Exceeded(Struct, frozen=True, kw_only=True):
    """A limit that a worker exceeds; ``number`` counts them.

    ``is_held``: the worker is killed once its coordinator has evidence of all ranks; one that waits
    in a collective only if its coordinator says so.
    """

    worker: WorkerKey
    number: int
    kind: HangKind
    scope: str
    limit_s: float
    since: float
    is_held: bool = False


# Events.


class WorkerStarted(_OfWorker, frozen=True, kw_only=True):
    """A worker runs. Repeating it changes nothing."""

    is_preflight: bool = False


class WorkerGone(_OfWorker, frozen=True, kw_only=True):
    """A worker has ended, or its agent stops it: it is watched no more."""


class BoardRead(_OfWorker, frozen=True, kw_only=True):
    """Answer to ``ReadBoard``, or a worker kicked; ``snapshot`` is None if it has no owner yet."""

    snapshot: Snapshot | None


class TimerAcquired(_OfProcess, frozen=True, kw_only=True):
    """A timer was asked for by a call. ``signal`` as in ``Slot``; with a ``pid`` it is given."""

    scope: str
    timeout_s: float
    signal: int | None = None


class TimerReleased(_OfWorker, frozen=True, kw_only=True):
    """A timer was released by a call."""

    scope: str


class HeartbeatReceived(_OfWorker, frozen=True, kw_only=True):
    """A worker made progress, by a call."""

    step: int | None = None


class CollectivesRead(_OfWorker, frozen=True, kw_only=True):
    """Answer to ``ReadCollectives``: how far the worker's process groups are, in any form.

    Equal as long as none moves; None: it has none, or does not tell.
    """

    progress: object | None
    is_waiting: bool = False  # in a call that is not done


class EvidenceTaken(_OfWorker, frozen=True, kw_only=True):
    """Answer to ``TakeEvidence``."""

    evidence: HangEvidence


class LimitsLearned(Struct, frozen=True, kw_only=True):
    """What the run has learned: limits by name of section, "" between heartbeats."""

    limits: Mapping[str, float]


class JudgeKnown(Struct, frozen=True, kw_only=True):
    """Whether a coordinator takes evidence of all ranks; a worker is held for it before its end."""

    is_there: bool


class HeldReleased(Struct, frozen=True, kw_only=True):
    """Evidence was taken: a round's workers held for limits up to this number may be killed."""

    round_id: int
    number: int


class DeadlineReached:
    """The instant of ``next_deadline()`` has come."""


TimerCall = TimerAcquired | TimerReleased | HeartbeatReceived
News = BoardRead | TimerCall | CollectivesRead | EvidenceTaken
OfRun = LimitsLearned | JudgeKnown | HeldReleased
Event = WorkerStarted | WorkerGone | News | OfRun | DeadlineReached


# Effects.


class ReadBoard(_OfWorker, frozen=True, kw_only=True):
    """Read a worker's board at once, and answer with ``BoardRead``."""


class ReadCollectives(_OfWorker, frozen=True, kw_only=True):
    """Ask a worker how far its process groups are, and answer with ``CollectivesRead``."""


class AnnounceLook(_OfWorker, frozen=True, kw_only=True):
    """Write on a worker's board until when it need not kick: ``look_at``, this host's clock."""

    look_at: float


class TakeEvidence(_OfProcess, frozen=True, kw_only=True):
    """Take the stacks within ``timeout_s``; answer with ``EvidenceTaken``.

    ``is_by_signal``: by the signal that may end a system call early, of a worker that is killed
    in any case; else only ask, which changes nothing.
    """

    timeout_s: float
    is_by_signal: bool = False


class Signal(_OfProcess, frozen=True, kw_only=True):
    """Send a signal."""

    signum: int


class Report(_OfProcess, frozen=True, kw_only=True):
    """Log a hang; if ``is_ending``, keep it for the failure record of the worker it ends.

    ``aftermath`` says what became of a worker that left its limit before it was judged.
    """

    hang: Hang
    is_ending: bool
    signal: int | None = None
    aftermath: str = ""


class EndForLine(_OfWorker, frozen=True, kw_only=True):
    """Log that a worker is ended for a line, and keep it for the worker's failure record."""

    line: FatalLine


class TellUnkilled(_OfWorker, frozen=True, kw_only=True):
    """Log the state of a worker that is still there so long after SIGKILL, in seconds."""

    after_s: float


class Warn(Struct, frozen=True, kw_only=True):
    """Log a warning: ``event``, a fixed phrase. ``worker`` is None if it is of the watchdog."""

    worker: WorkerKey | None
    event: str
    reason: str


Effect = (
    ReadBoard
    | ReadCollectives
    | AnnounceLook
    | TakeEvidence
    | Signal
    | Report
    | EndForLine
    | TellUnkilled
    | Warn
)


class Refusal(Exception):
    """A call is not for this agent to take; ``status`` as gRPC names it, ``why`` for its author."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class WorkerIsGone(Refusal):
    """The worker is watched no more."""

    def __init__(self) -> None:
        super().__init__("FAILED_PRECONDITION", "the worker has ended, or its round is over")


class TooManyTimers(Refusal):
    """The worker has as many timers open as one may."""
