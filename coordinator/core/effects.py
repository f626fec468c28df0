"""Pure. What the coordinator's core wants done."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.access.token_table import KeptToken
from coordinator.core.model import Desired, KeptDrain, Pace
from coordinator.core.progress.adaptive_timeouts import LearnedLimit
from coordinator.core.progress.notice import PendingNotice
from coordinator.core.run.records import Record
from coordinator.errors import CoordinatorError
from drumbeat.inprocess import InprocessDirective


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Journal a record, before any other effect of the same event leaves."""

    run_id: str  # `RunState.key`, here and in `Forget` and `ReadRun`
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Remove an ended run from the journal."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepToken:
    """Journal what is known of a token; ``None``: remove it."""

    token_id: str
    token: KeptToken | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepDrain:
    """Journal a drain; ``is_kept`` is false: remove it."""

    drain: KeptDrain
    is_kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepForgets:
    """Journal the ids of the latest calls that made runs forgotten; all that are known."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answer ``Hello``."""

    session_id: str
    pace: Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAuthorities:
    """Tell an agent whose certificates the coordinator may have; the shell does, not the core."""

    session_id: str
    keys: tuple[str, ...]  # public ones, as tokens have them


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPace:
    """Tell an agent its new pace."""

    session_id: str
    pace: Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLimits:
    """Tell an agent all that has been learned; what is newer replaces it unsent."""

    session_id: str
    limits: tuple[LearnedLimit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Push the desired state of one agent; a newer one replaces it unsent."""

    session_id: str
    state: Desired
    master_port_spent: int = 0  # of this agent, by a round: if it still holds it, it takes another


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruct:
    """Tell an agent what its workers do in an iteration; a newer one replaces it unsent."""

    session_id: str
    directive: InprocessDirective


@dataclass(frozen=True, slots=True, kw_only=True)
class TellNotice:
    """Tell an agent what is pending for its round; a newer one replaces it unsent."""

    session_id: str
    notice: PendingNotice
    round_id: int
    time_left_s: float
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRequest:
    """Asks for the stacks of some workers of a round, as they are now."""

    request_id: str
    round_id: int
    local_ranks: tuple[int, ...]
    time_left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Tell an agent all that it is asked at present; the shell does, not the core."""

    session_id: str
    stacks: tuple[StackRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Asks for output of workers; see ``coordinator.core.progress.log_reading``."""

    request_id: str
    ranks: tuple[int, ...]
    since_round: int
    tail: int
    follow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLogs:
    """Tell an agent all output that is asked for at present; the shell does, not the core."""

    session_id: str
    requests: tuple[LogRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """End a session with an error."""

    session_id: str
    error: CoordinatorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """What an operator's wish has led to."""

    outcome: str  # in words
    is_new: bool = True  # otherwise it was so before


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer what was asked: it is journaled, or has to be asked again."""

    request_id: int
    # Whether the record is kept; how many limits were forgotten, `None` if there is no such run;
    # the token as it is now; what steering has led to.
    result: int | KeptToken | Steered | CoordinatorError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRun:
    """A run's core raised: once what it decided before is journaled, answer with ``RunRead``."""

    run_id: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Log what was decided, and why. ``decision`` is a fixed phrase."""

    run_id: str
    decision: str
    reason: str
    round_id: int | None = None


Kept = Persist | Forget | KeepToken | KeepDrain | KeepForgets
ToWorkers = Instruct | TellNotice | Collect | TellLogs
Push = Welcome | TellAuthorities | SetPace | TellLimits | Direct | ToWorkers  # sent in this order
Effect = Kept | Push | Reject | Answer | Decided | ReadRun
