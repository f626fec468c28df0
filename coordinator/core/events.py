"""Pure. What happens to the coordinator's core."""

from __future__ import annotations

import dataclasses

from msgspec import Struct, field
from msgspec.structs import replace

from drumbeat.access.token import Role
from drumbeat.coordinator.core.failures.hang_evidence import SeenRanks
from drumbeat.coordinator.core.model import (
    AgentIdentity,
    Beat,
    FailureRecord,
    RunSpec,
    VerdictCause,
)
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.rehearsal.model import RehearsalPlan
from drumbeat.coordinator.core.run.records import CallKind
from drumbeat.coordinator.core.run.state import RunState


class SessionOpened(Struct, frozen=True, kw_only=True):
    """An agent sent its ``Hello``; ``session_id`` was made for it by the shell."""

    session_id: str
    run_id: str
    spec: RunSpec
    agent: AgentIdentity
    beat: Beat
    uptime_s: float | None = None
    version: str = ""  # for readers, as the labels
    labels: dict[str, str] = field(default_factory=dict)
    devices: str = ""  # its GPUs in short
    caller: str = ""  # the name of its token or certificate; empty: it was not asked for one
    features: frozenset[str] = frozenset()
    is_id_made_up: bool = False  # by the agent, which comes alone

    def without_beat(self) -> SessionOpened:
        """Return the same, to be kept while the session lasts: its first beat may be large."""
        return replace(self, beat=Beat(state=self.beat.state))


class BeatReceived(Struct, frozen=True, kw_only=True):
    """An agent reported its actual state."""

    run_id: str
    session_id: str
    incarnation: str
    beat: Beat
    uptime_s: float | None = None


class AgentLeft(Struct, frozen=True, kw_only=True):
    """An agent said goodbye."""

    run_id: str
    session_id: str
    incarnation: str
    reason: str


class SessionClosed(Struct, frozen=True, kw_only=True):
    """The stream of a session ended, for whatever reason."""

    run_id: str
    session_id: str
    incarnation: str
    is_revoked: bool = False  # its token was; its agent may come back with another one


class FailureReported(Struct, frozen=True, kw_only=True):
    """A failure record arrived; the driver sets ``request_id`` and awaits its answer by it."""

    run_id: str
    request_id: int = 0
    record: FailureRecord
    uptime_s: float | None = None  # of its agent when it was sent, if known
    # Of this incarnation in its stream, in which records come in order: those that are not
    # acknowledged begin the next one.
    is_first: bool = False


class EvidenceTaken(Struct, frozen=True, kw_only=True):
    """What all workers of a round do is known, as far as their agents said so in time."""

    run_id: str  # `RunState.key`
    round_id: int
    question: int
    seen: SeenRanks


class LimitsReset(Struct, frozen=True, kw_only=True):
    """The operator wants learned limits forgotten; the answer goes to ``request_id``."""

    run_id: str
    request_id: int = 0
    caller: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenCreated:
    """The operator wants a token, whose id and secret the shell made; answered as above."""

    request_id: int = 0
    token_id: str
    role: Role
    secret_sha256: bytes = dataclasses.field(repr=False)
    run_id: str = ""  # the only run that it is for; empty: any
    ttl_s: float | None = None
    caller: str = ""
    kept_secret: str = dataclasses.field(default="", repr=False)  # to be kept, for coordinators


class TokenRevoked(Struct, frozen=True, kw_only=True):
    """The operator wants a token revoked; answered as above."""

    request_id: int = 0
    token_id: str
    caller: str = ""


class CallNoted(Struct, frozen=True, kw_only=True):
    """A caller did what concerns a run and changes nothing in it, or was refused it."""

    run_id: str
    kind: CallKind
    reason: str
    caller: str


class SteeringAsked(Struct, frozen=True, kw_only=True):
    """``call_id`` tells repetitions; ``grace_s`` is how long training may take to save before.

    ``None``: as the policy says.
    """

    run_id: str
    request_id: int = 0
    call_id: str = ""
    reason: str = ""
    caller: str = ""
    grace_s: float | None = None


class StopAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator wants a run to end; answered as above."""


class RestartAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator wants another round now; as ``StopAsked``."""


class CheckpointAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator wants training to save now, and to go on; as ``StopAsked``."""


class NoteAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator adds a note, the reason, to the history of a run; as ``StopAsked``."""


class RehearsalAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator wants faults injected into a run, or no more of them; as ``StopAsked``."""

    plan: RehearsalPlan | None = None  # None: no more


class ForgetAsked(Struct, frozen=True, kw_only=True):
    """The operator wants an ended run forgotten; as ``StopAsked``."""

    run_id: str
    request_id: int = 0
    call_id: str = ""
    caller: str = ""


class DrainAsked(SteeringAsked, frozen=True, kw_only=True):
    """The operator wants agents of a name or on a host to leave, or lets them in again.

    Answered as above; to runs it comes as well, once the table has changed.
    """

    name: str
    run_id: str = ""  # empty: in all runs
    is_lifted: bool = False


class EndDecided(Struct, frozen=True, kw_only=True):
    """The registry ends a run: its id begins another, or too few groups of its job can go on."""

    run_id: str
    cause: VerdictCause
    reason: str


class QuorumFormed(Struct, frozen=True, kw_only=True):
    """A quorum of a job is to be kept; answered as above."""

    quorum: KeptQuorum
    request_id: int = 0


class DeadlineReached(Struct, frozen=True, kw_only=True):
    """The instant of ``next_deadline()`` has come."""


class OutageEnded(Struct, frozen=True, kw_only=True):
    """The coordinator goes on, after a time in which agents could not open sessions.

    The journal could not be written, or it stood still and agents went to look for another one.
    """

    has_cut_off: bool = False
    """Whether it has ended sessions itself that are closed now: a front end of it has died."""


class Deafened(Struct, frozen=True, kw_only=True):
    """For so long nothing came from some agents for no fault of theirs: a front end was stuck."""

    seconds: float


class RunRead(Struct, frozen=True, kw_only=True):
    """A run was read from the journal, as ``ReadRun`` asked; ``None`` if it can't be."""

    run_id: str  # `RunState.key`
    state: RunState | None


class TurnCame(Struct, frozen=True, kw_only=True):
    """Others had their turn, and a run goes on telling its members, as ``TellMore`` asked."""

    run_id: str  # `RunState.key`


SessionEvent = SessionOpened | BeatReceived | AgentLeft | SessionClosed
OfGroups = StopAsked | RestartAsked | CheckpointAsked | NoteAsked
Steering = OfGroups | RehearsalAsked
OfJob = OfGroups | LimitsReset | ForgetAsked | DrainAsked  # what can be asked of a job, too
ToRun = SessionEvent | FailureReported | LimitsReset | CallNoted | Steering
# What needs an answer before long.
OperatorRequest = LimitsReset | TokenCreated | TokenRevoked | Steering | ForgetAsked | DrainAsked
ToAll = DeadlineReached | OutageEnded | Deafened
OtherEvent = ToRun | DrainAsked | EndDecided | ToAll
CoreEvent = OtherEvent | EvidenceTaken | TurnCame
Event = ToRun | OperatorRequest | ToAll | QuorumFormed | EvidenceTaken | RunRead | TurnCame
