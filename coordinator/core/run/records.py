"""Pure. What the journal keeps: every accepted change of a run; ``RunState`` is their fold."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from drumbeat.coordinator.core.failures.root_cause import NO_LIMIT
from drumbeat.coordinator.core.inprocess.records import IterationRecord
from drumbeat.coordinator.core.model import (
    AgentIdentity,
    FailureRecord,
    HangDiagnosis,
    RunSpec,
    Verdict,
    VerdictCause,
)
from drumbeat.coordinator.core.rehearsal.model import RehearsalNoted
from drumbeat.coordinator.core.restarts.tally import Attempt
from drumbeat.coordinator.core.run.adaptive_timeouts import LearnedLimit
from drumbeat.coordinator.core.run.notice import NoticeRecord
from drumbeat.coordinator.observe.observations import Observation
from drumbeat.coordinator.observe.steps.worker_progress import NOWHERE, Standings

CALLER_CHARACTERS_MAX = 256


class RoundEnd(StrEnum):
    """Why a round ended without a verdict."""

    WORKER_FAILED = "WORKER_FAILED"
    AGENT_LOST = "AGENT_LOST"
    AGENT_JOINED = "AGENT_JOINED"
    RESTART_ASKED = "RESTART_ASKED"
    REHEARSED = "REHEARSED"  # a fault of a rehearsal ended it
    PREFLIGHT_OVER = "PREFLIGHT_OVER"  # it went well, or named the hosts that are left out


class RunCreated(Struct, frozen=True, kw_only=True):
    """The first agent brought the spec. Limits are recorded so that replay keeps the same."""

    run_id: str
    spec: RunSpec
    failures_kept_max: int = 1_000
    history_max: int = 1_000
    generation: int = 1
    predecessor_ended_at: float | None = None  # agents that began before belong to that run
    created_by: str = ""  # the name of its first agent's token or certificate
    created_at: float = 0.0  # on the coordinator's clock
    labels: dict[str, str] = {}  # of its first agent; no more and no longer than a hello has


class AgentAdmitted(Struct, frozen=True, kw_only=True):
    """An agent became a member of the run."""

    agent: AgentIdentity
    # Above every round it has held: a coordinator that lost its memory must not use them again.
    rounds_seen: int = 0
    at_s: float = 0.0  # of all decisions: when it was taken, on the coordinator's clock


class AgentRemoved(Struct, frozen=True, kw_only=True):
    """A member left or was lost."""

    incarnation: str
    reason: str
    at_s: float = 0.0
    is_drained: bool = False  # the operator wants it to leave
    is_excused: bool = False  # its round goes on without it
    is_lost: bool = False  # it did not leave: it was given up
    # Charged to failures elsewhere since it was last heard: perhaps its own end was the cause.
    restarts_returned: int = 0


class RoundStarted(Struct, frozen=True, kw_only=True):
    """A round was assigned."""

    round_id: int
    participants: tuple[str, ...]  # incarnations by group rank
    master_addr: str
    master_port: int
    reason: str  # why there had to be a round
    closing: str = ""  # why it closed now
    at_s: float = 0.0
    is_preflight: bool = False  # its workers run the preflight


class GroupSucceeded(Struct, frozen=True, kw_only=True):
    """All workers of one participant exited with 0."""

    round_id: int
    incarnation: str


class RoundEnded(Struct, frozen=True, kw_only=True):
    """The run gathers for another round; a worker's failure is charged to the budget here."""

    cause: RoundEnd
    reason: str
    at_s: float = 0.0
    where: Standings = NOWHERE
    left_out: dict[str, str] = {}  # incarnations that take part in no later round, and why
    attempt: Attempt | None = None  # None: of an earlier version

    @property
    def is_charged(self) -> bool:
        """Whether a restart is charged to the budget."""
        is_free = self.attempt is not None and self.attempt.is_free
        return self.cause is RoundEnd.WORKER_FAILED and not is_free


class EndingStarted(Struct, frozen=True, kw_only=True):
    """The run has failed; workers are being stopped and failure records collected."""

    reason: str
    at_s: float = 0.0
    where: Standings = NOWHERE
    cause: VerdictCause = VerdictCause.WORKER_FAILED


class FailureRecorded(Struct, frozen=True, kw_only=True):
    """A failure record was accepted; all that are kept may take ``bytes_max`` from now on."""

    record: FailureRecord
    bytes_max: int = NO_LIMIT


class FailuresCounted(Struct, frozen=True, kw_only=True):
    """Failure records came that tell less than those kept: they are counted, and dropped."""

    heard: dict[str, int]  # the highest sequence of each incarnation among them
    count: int

    @staticmethod
    def together(records: Iterable[FailuresCounted]) -> FailuresCounted:
        """Return one record for all of these."""
        heard: dict[str, int] = {}
        count = 0
        for record in records:
            count += record.count
            for incarnation, sequence in record.heard.items():
                heard[incarnation] = max(sequence, heard.get(incarnation, 0))
        return FailuresCounted(heard=heard, count=count)


class HangJudged(Struct, frozen=True, kw_only=True):
    """Workers of the round exceed a limit, and what all its ranks did then was judged."""

    hang: HangDiagnosis
    at_s: float = 0.0


class HangOver(Struct, frozen=True, kw_only=True):
    """The workers went on by themselves."""

    round_id: int
    reason: str
    at_s: float = 0.0


class LimitsLearned(Struct, frozen=True, kw_only=True):
    """What is known of the run's limits, all of it; empty after they were forgotten."""

    limits: tuple[LearnedLimit, ...]


class CallKind(StrEnum):
    """What a caller did; as a decision in the history of a run."""

    LIMITS_RESET = "limits reset"
    ACCESS_REFUSED = "access refused"
    TOKEN_CHANGED = "token changed"  # noqa: S105 - no secret
    STOP_ASKED = "stop asked"
    RESTART_ASKED = "restart asked"
    CHECKPOINT_ASKED = "checkpoint asked"
    AGENT_DRAINED = "agent drained"
    AGENT_UNDRAINED = "agent undrained"
    NOTE_ADDED = "note added"
    REHEARSAL_STARTED = "rehearsal started"
    REHEARSAL_STOPPED = "rehearsal stopped"


class CallNoted(Struct, frozen=True, kw_only=True):
    """A caller did what concerns the run, asked it for something, or was refused it."""

    kind: CallKind
    reason: str
    caller: str  # the id of a token or the name in a certificate
    at_s: float = 0.0
    call_id: str = ""  # of what asks the run for something: repeated, it changes nothing


class HostEvent(StrEnum):
    """What became of a host; as a decision in the history of a run."""

    ACCUSED = "host accused"
    EXCLUDED = "host excluded"
    NOT_EXCLUDED = "host not excluded"
    READMITTED = "host readmitted"


class HostNoted(Struct, frozen=True, kw_only=True):
    """Something became of a host."""

    kind: HostEvent
    reason: str
    at_s: float = 0.0
    # Of an accusation: who is accused and why, and the ranks of both sides.
    incarnation: str = ""
    blame: str = ""
    ranks: tuple[int, int] | None = None
    obstacle: str = ""  # of one that is not excluded: by which the event is known


class BlameRow(Struct, frozen=True, kw_only=True):
    """A host that was blamed for rounds in a row, and when each of these was counted."""

    name: str
    host_id: str
    at_s: tuple[float, ...]


class BlameCounted(Struct, frozen=True, kw_only=True):
    """It was counted which hosts are to blame for the last round. All rows that go on."""

    rows: tuple[BlameRow, ...]


class RunEnded(Struct, frozen=True, kw_only=True):
    """The run has its verdict."""

    verdict: Verdict
    at_s: float = 0.0


class MembersForgotten(Struct, frozen=True, kw_only=True):
    """The run ended so long ago that no agent can come for the verdict any more."""


Record = (
    RunCreated
    | AgentAdmitted
    | AgentRemoved
    | RoundStarted
    | GroupSucceeded
    | RoundEnded
    | EndingStarted
    | FailureRecorded
    | FailuresCounted
    | HangJudged
    | HangOver
    | LimitsLearned
    | CallNoted
    | HostNoted
    | BlameCounted
    | RunEnded
    | MembersForgotten
    | IterationRecord
    | NoticeRecord
    | RehearsalNoted
    | Observation
)


class HistoryEntry(Struct, frozen=True, kw_only=True):
    """One decision on a run, or many of one kind in a row: then the latest of them."""

    at_s: float  # on the coordinator's clock
    decision: str  # a fixed phrase
    reason: str
    round_id: int | None  # of the current or last round then
    sequence: int = 0  # counts the decisions of the run, from 1
    caller: str = ""  # who asked for it; empty: its own decision
    names: tuple[str, ...] = ()  # of the agents it is about; the first and the latest of many
    count: int = 1  # decisions that it stands for
    # Of several: what their reasons have behind the names, if it is the same; the latest reason.
    tail: str = ""
    latest: str = ""
    is_failure: bool = False  # one of those that the ledger counts


def asked(record: CallNoted) -> str:
    """Say who asked for something, and why if that was said."""
    what = "stopped" if record.kind is CallKind.STOP_ASKED else "restarted"
    who = f"{what} by {record.caller[:CALLER_CHARACTERS_MAX] or 'the operator'}"
    return f"{who}: {record.reason}" if record.reason else who


# What a usual record takes in a journal; larger ones count as several.
USUAL_BYTES = 2_048
_NAME_BYTES = 40


def weight(record: Record) -> int:
    """Return as how many usual records one counts in a journal, at least 1."""
    match record:
        case FailureRecorded():
            return 1 + record.record.size_bytes // USUAL_BYTES
        case (
            FailuresCounted(heard=names)
            | RoundStarted(participants=names)
            | RoundEnded(left_out=names)
        ):
            return 1 + len(names) * _NAME_BYTES // USUAL_BYTES
    return 1
