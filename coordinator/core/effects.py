"""Pure. What the coordinator's core wants done."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from drumbeat.coordinator.core.collecting.log_reading import LogsAsked
from drumbeat.coordinator.core.model import Desired, KeptDrain
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit
from drumbeat.coordinator.core.run.notice import PendingNotice
from drumbeat.coordinator.core.run.records import Record
from drumbeat.coordinator.core.tokens.token_table import KeptToken
from drumbeat.coordinator.errors import CoordinatorError
from drumbeat.inprocess import InprocessDirective
from drumbeat.model import FaultOrder, Pace


class Persist(Struct, frozen=True, kw_only=True):
    """Journal a record, before any other effect of the same event leaves."""

    run_id: str  # `RunState.key`, here and in `Forget`, `ReadRun` and `TellMore`
    record: Record


class Forget(Struct, frozen=True, kw_only=True):
    """Remove an ended run from the journal."""

    run_id: str


class KeepToken(Struct, frozen=True, kw_only=True):
    """Journal what is known of a token; ``None``: remove it."""

    token_id: str
    token: KeptToken | None


class KeepDrain(Struct, frozen=True, kw_only=True):
    """Journal a drain; ``is_kept`` is false: remove it."""

    drain: KeptDrain
    is_kept: bool = True


class KeepForgets(Struct, frozen=True, kw_only=True):
    """Journal what is known of runs that were forgotten."""

    calls: tuple[str, ...] = ()  # ids of the latest calls that made runs forgotten
    generation: int = 0  # the highest of them: no new run has this or a lower one


class KeepQuorum(Struct, frozen=True, kw_only=True):
    """Journal the latest quorum of a job; ``is_kept`` is false: remove it."""

    quorum: KeptQuorum
    is_kept: bool = True


class Welcome(Struct, frozen=True, kw_only=True):
    """Answer ``Hello``, and again once an agent that waited outside is let in."""

    session_id: str
    pace: Pace
    name: str = ""  # of the agent in the run; empty: it is no member


class TellAuthorities(Struct, frozen=True, kw_only=True):
    """Tell an agent whose certificates the coordinator may have; the shell does, not the core."""

    session_id: str
    keys: tuple[str, ...]  # public ones, as tokens have them


class SetPace(Struct, frozen=True, kw_only=True):
    """Tell an agent its new pace."""

    session_id: str
    pace: Pace


class TellLimits(Struct, frozen=True, kw_only=True):
    """Tell an agent all that has been learned; what is newer replaces it unsent."""

    session_id: str
    limits: tuple[LearnedLimit, ...]


class Direct(Struct, frozen=True, kw_only=True):
    """Push the desired state of one agent; a newer one replaces it unsent."""

    session_id: str
    state: Desired
    master_port_spent: int = 0  # of this agent, by a round: if it still holds it, it takes another


class Instruct(Struct, frozen=True, kw_only=True):
    """Tell an agent what its workers do in an iteration; a newer one replaces it unsent."""

    session_id: str
    directive: InprocessDirective


class TellNotice(Struct, frozen=True, kw_only=True):
    """Tell an agent what is pending for its round; a newer one replaces it unsent."""

    session_id: str
    notice: PendingNotice
    round_id: int
    time_left_s: float
    is_over: bool = False


class StackRequest(Struct, frozen=True, kw_only=True):
    """Asks for the stacks of some workers of a round, as they are now."""

    request_id: str
    round_id: int
    local_ranks: tuple[int, ...]
    time_left_s: float
    may_signal: bool = False
    is_evidence: bool = False  # to judge a hang


class Collect(Struct, frozen=True, kw_only=True):
    """Tell an agent all that it is asked at present; the shell does, not the core."""

    session_id: str
    stacks: tuple[StackRequest, ...]


class EndHeld(Struct, frozen=True, kw_only=True):
    """Tell an agent to end the workers it holds for limits up to this number: evidence is taken."""

    session_id: str
    round_id: int
    number: int


class InjectFault(Struct, frozen=True, kw_only=True):
    """Have an agent inject a fault of a rehearsal."""

    session_id: str
    order: FaultOrder


class TakeEvidence(Struct, frozen=True, kw_only=True):
    """Ask for what all workers of a round do now; answer with ``EvidenceTaken``.

    ``may_signal``: workers are ended for the hang, so those that do not answer may get a signal.
    """

    run_id: str  # `RunState.key`
    round_id: int
    question: int
    may_signal: bool


class TellLogs(Struct, frozen=True, kw_only=True):
    """Tell an agent all output that is asked for at present; the shell does, not the core."""

    session_id: str
    requests: Mapping[str, LogsAsked]  # by the id of the request


class Reject(Struct, frozen=True, kw_only=True):
    """End a session with an error."""

    session_id: str
    error: CoordinatorError


class Steered(Struct, frozen=True, kw_only=True):
    """What an operator's wish has led to."""

    outcome: str  # in words
    is_new: bool = True  # otherwise it was so before


# Whether a record is kept; how many limits were forgotten, `None` if there is no such run; a token
# as it is now; what steering has led to.
AnswerResult = int | KeptToken | Steered | CoordinatorError | None


class Answer(Struct, frozen=True, kw_only=True):
    """Answer what was asked: it is journaled, or has to be asked again."""

    request_id: int
    result: AnswerResult


class ReadRun(Struct, frozen=True, kw_only=True):
    """A run's core raised: once what it decided before is journaled, answer with ``RunRead``."""

    run_id: str
    error: Exception


class TellMore(Struct, frozen=True, kw_only=True):
    """A run has more to tell than fits into one turn: answer with ``TurnCame``."""

    run_id: str


class Decided(Struct, frozen=True, kw_only=True):
    """Log what was decided, and why. ``decision`` is a fixed phrase."""

    run_id: str
    decision: str
    reason: str
    round_id: int | None = None


Kept = Persist | Forget | KeepToken | KeepDrain | KeepForgets | KeepQuorum
ToWorkers = Instruct | TellNotice | EndHeld | InjectFault | Collect | TellLogs
# Sent in this order: an agent hears what is to be read before it is told to leave.
Push = Welcome | TellAuthorities | SetPace | TellLimits | TellLogs | Direct | ToWorkers
Effect = Kept | Push | Reject | Answer | Decided | ReadRun | TellMore | TakeEvidence
