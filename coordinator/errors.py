"""Pure. What the coordinator refuses, and what keeps it from starting.

A ``CommandFailed`` ends a process with its exit code; callers get all others as statuses.
Statuses and refusals are names, so that this module needs neither grpc nor generated enums.
What an agent does then: ``Refusal`` in ``drumbeat/v1/common.proto``.
"""

from typing import ClassVar, NamedTuple

from drumbeat.command.leader_search import NONE_LEADS, NOT_LEADING, Outcome
from drumbeat.text.format import install_command
from drumbeat.text.violation import InvalidField, show_value

# Fields of ``drumbeat.v1.RunSpec`` are options of ``agent join``; these have other names there.
_OPTIONS = {
    "agents_min": "--nnodes (minimum)",
    "agents_max": "--nnodes (maximum)",
    "restarts_max": "--max-restarts",
    "straggler_factor": "--straggler-report (factor)",
    "straggler_steps": "--straggler-report (steps)",
    "restart_rules": "--restart-rule",
    "launcher": "the launcher",
    "replica_group.count": "--replica-group (number of groups)",
    "replica_group.groups_min": "--min-groups",
}


class Difference(NamedTuple):
    """One field of ``drumbeat.v1.RunSpec`` in which an agent and the run disagree."""

    field: str
    theirs: object
    ours: object

    def __str__(self) -> str:
        name = _OPTIONS.get(self.field, f"--{self.field.replace('_', '-')}")
        return f"{name}: the run has {show_value(self.ours)}, not {show_value(self.theirs)}"


class CommandDifference(Difference):
    """What the workers of an agent and those of the run disagree in; both values in words."""

    def __str__(self) -> str:
        return f"{self.field}: the run has {self.ours}, not {self.theirs}"


class CoordinatorError(Exception):
    """Base of everything the coordinator raises on purpose. Its ``args`` are what it is made of."""

    status: ClassVar[str] = "INTERNAL"  # name of the gRPC status of a call that fails with this
    refusal: ClassVar[str] = "UNSPECIFIED"  # of the values of ``drumbeat.v1.Refusal``
    is_retryable: ClassVar[bool] = False  # the same agent may succeed later, in a new session
    text: ClassVar[str] = "{0}"  # what happened, with places for ``args``

    def __str__(self) -> str:
        return self.text.format(*self.args)


class InvalidRequest(InvalidField, CoordinatorError):
    """A field of a message is missing or out of range: a bug of the sender."""

    status, refusal = "INVALID_ARGUMENT", "INVALID"


class SpecMismatch(CoordinatorError):
    """The agent would run this run differently than its first agent said."""

    status, refusal = "FAILED_PRECONDITION", "SPEC_MISMATCH"
    text = "run {0!a} was started with other settings: {1}"

    def __init__(self, run_id: str, differences: tuple[Difference, ...]) -> None:
        super().__init__(run_id, differences)
        self.differences = differences

    def __str__(self) -> str:
        return self.text.format(self.args[0], "; ".join(map(str, self.differences)))


class RunMissesAgents(SpecMismatch):
    """The agent brought other settings, and none of the run's agents is connected.

    They may come back within their grace. If none does, the agent begins a new run.
    """

    status, refusal, is_retryable = "ABORTED", "AGENTS_MISSING", True
    text = SpecMismatch.text + "; its agents are missing, and it ends if none of them returns"


class RunClosed(CoordinatorError):
    """The run ended after this agent began; the verdict is the sentence that says how."""

    status, refusal = "FAILED_PRECONDITION", "RUN_CLOSED"
    text = "run {0!a} has ended: {1}; started again, the agent begins a new run of that name"

    def __init__(self, run_id: str, why: str, exit_code: int | None = None) -> None:
        super().__init__(run_id, why)
        self.exit_code = exit_code


class RunIdTaken(CoordinatorError):
    """An agent made up the id of a run that lives, and is not a member of it."""

    status, refusal = "FAILED_PRECONDITION", "RUN_CLOSED"
    text = "run {0!a} is another job, which has the same made-up id; start the agent again"


class RunMissed(RunClosed):
    """The run succeeded before this host came, and had room for it; it is not trained once more."""

    text = "run {0!a} has ended before this host came: {1}; to train again, choose another --run-id"


class StaleSession(CoordinatorError):
    """The agent was given up: others may hold its ranks. It stops its workers and returns."""

    status, refusal, is_retryable = "FAILED_PRECONDITION", "STALE_SESSION", True
    text = "the session is over: {0}"


class SessionReplaced(CoordinatorError):
    """The agent has a newer session, or an older hello came late: it keeps what it holds."""

    status, refusal, is_retryable = "ABORTED", "SESSION_REPLACED", True
    text = "the session is over: the agent opened another one"


class Deposed(CoordinatorError):
    """A coordinator of a later term has welcomed the agent: this one does not lead any more."""

    status, refusal, is_retryable = "ABORTED", "DEPOSED", True
    text = "this coordinator was deposed: the agent has seen one of term {0}"


class NotLeader(CoordinatorError):
    """This coordinator does not lead. Made of the leader's address, empty if none is known."""

    status, refusal, is_retryable = "UNAVAILABLE", "NOT_LEADER", True
    text = NOT_LEADING

    def __init__(self, leader: str = "", reason: str = "") -> None:
        super().__init__(leader, reason)
        self.leader, self.reason = leader, reason

    def __str__(self) -> str:
        return f"{self.text}, {self.leader} does" if self.leader else f"{NONE_LEADS}{self.reason}"


class CannotStepDown(CoordinatorError):
    """This coordinator does not lead, or no other one would in its place."""

    status = "FAILED_PRECONDITION"
    text = "leadership is not handed over: {0}"


class LimitReached(CoordinatorError):
    """A named limit of the coordinator is reached."""

    status, refusal, is_retryable = "RESOURCE_EXHAUSTED", "LIMIT_REACHED", True
    text = "the coordinator's limit {0} is reached: {1}"


class Unavailable(CoordinatorError):
    """The coordinator can't answer now; it does so later, or its successor does."""

    status, refusal, is_retryable = "UNAVAILABLE", "UNAVAILABLE", True
    text = "the coordinator does not answer requests now: {0}"


class UnknownRun(CoordinatorError):
    """There is no run of this name, or it ended too long ago to be remembered."""

    status, refusal = "NOT_FOUND", "UNKNOWN_RUN"

    def __str__(self) -> str:
        run_id, *which = self.args
        return " ".join(filter(None, (f"there is no run {show_value(run_id)}", *which)))


class NoWorkers(CoordinatorError):
    """A run has no workers that could be asked; ``args`` are the run and why."""

    status, refusal = "NOT_FOUND", "UNKNOWN_RUN"
    text = "run {0!a} {1}"


class WrongPhase(CoordinatorError):
    """A run is not in a phase for what was asked; ``args`` are the run, how it is, what to do."""

    status = "FAILED_PRECONDITION"
    text = "run {0!a} {1}; {2}"


class UnknownHost(CoordinatorError):
    """No run knows of a host or an agent of this name."""

    status = "NOT_FOUND"

    def __str__(self) -> str:
        return f"no run knows of a host {show_value(self.args[0])}"


class UnknownToken(CoordinatorError):
    """There is no token of this id, or it ended too long ago to be remembered."""

    status = "NOT_FOUND"

    def __str__(self) -> str:
        return f"there is no token {show_value(self.args[0])}"


class Unauthenticated(CoordinatorError):
    """Who calls is not known. The text says why, and nothing that helps to guess."""

    status, refusal = "UNAUTHENTICATED", "UNAUTHENTICATED"
    text = "the coordinator does not let this caller in: {0}"


class RevokedToken(Unauthenticated):
    """A token was right until it was revoked. ``run_id``: the only run it was for; may be empty."""

    text = "the coordinator does not let this caller in: its token {0} was revoked"

    def __init__(self, token_id: str, run_id: str) -> None:
        super().__init__(token_id, run_id)
        self.run_id = run_id


class Forbidden(CoordinatorError):
    """Who calls is known, and may not do this."""

    status, refusal = "PERMISSION_DENIED", "FORBIDDEN"
    text = "{0} may not do this: {1}"


class NoOwnAuthority(CoordinatorError):
    """The server's certificate is the operator's own, or it has none: nothing is to be replaced."""

    status, refusal = "FAILED_PRECONDITION", "INVALID"
    text = "the coordinator has no authority of its own: it was started with {0}"

    def __init__(self, option: str = "--tls-cert") -> None:
        super().__init__(option)


class NoPage(CoordinatorError):
    """The coordinator serves no page to link to."""

    status = "FAILED_PRECONDITION"
    text = "the coordinator serves no page: it was started without --http-port"


class CommandFailed(CoordinatorError):
    """The process cannot do what it was told to; no caller of a server sees it."""

    exit_code: int = 2
    hint: str = ""  # what the operator can do about it; empty if the error says it all

    def __init__(self, *args: object, hint: str = "") -> None:
        super().__init__(*args)
        self.hint = hint or self.hint


class CallFailed(CommandFailed):
    """A coordinator was asked, and could not be reached or refused.

    ``leader``: that it names in its place.
    """

    def __init__(
        self,
        problem: str,
        exit_code: int,
        hint: str = "",
        *,
        outcome: Outcome = Outcome.REFUSED,
        leader: str = "",
    ) -> None:
        super().__init__(problem, exit_code, hint=hint)
        self.exit_code = exit_code
        self.outcome, self.leader = outcome, leader


class InvalidConfiguration(CommandFailed):
    """The configuration breaks rules; its ``args`` are all of them."""

    hint = "try 'coordinator serve --help'"

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class MissingExtra(CommandFailed):
    """A setting needs packages that are not installed; ``args`` are both, and their extra."""

    text = "{0} needs the package {1}, which is not installed"

    def __init__(self, option: str, package: str | None, extra: str) -> None:
        super().__init__(option, package, extra, hint=install_command(extra))


class PortInUse(CommandFailed):
    """The address cannot be bound."""

    text = "cannot listen on port {1} of {0}: {2}"
    hint = "another coordinator may run here already; choose another --port, or end that one"


class StateDirectoryInUse(CommandFailed):
    """Another coordinator holds the state directory."""

    text = "the state directory {0} is in use by another coordinator"
    hint = "one state directory belongs to one coordinator; choose another with --state-dir"


class LostLeadership(StateDirectoryInUse):
    """Another coordinator has taken the journal over; this one must not decide any more."""


class StateDirectoryUnusable(CommandFailed):
    """The state directory cannot be created, read or written."""

    text = "the state directory {0} cannot be used: {1}"
    hint = "make it a directory that this user may write and lock, or name one with --state-dir"


class AuthorityUnusable(CommandFailed):
    """The file of the coordinator's certificate authority cannot be used."""

    hint = (
        "bring it back as it was, for this user alone (chmod 600); if it is lost or others know "
        "it, move it away: then there is another authority, and machines join with new tokens"
    )


class CertificateUnusable(CommandFailed):
    """A file of the operator's certificate, or of the authorities of clients, cannot be used."""


class JournalCorrupt(CommandFailed):
    """The journal holds what this coordinator did not write or cannot read."""

    text = "the journal {0} cannot be read: {1}"
    hint = "restore a backup, or save what can be read with `coordinator journal export`"


class JournalUnusable(CommandFailed):
    """The journal is where this coordinator is not let in, or needs what is not installed."""

    text = "the journal {0} cannot be used: {1}"


class TracesUnusable(CommandFailed):
    """What the environment says of traces is not to be understood."""

    text = "traces cannot be told, for a variable OTEL_* of the environment is wrong: {0}"
    hint = "unset it, or see opentelemetry.io for what it may be"


class NotificationsUnusable(CommandFailed):
    """The endpoints of notifications cannot be used. Messages have no URL in them."""

    text = "notifications cannot be sent: {0}"
    hint = "see docs/operating.md for URLs"


class JournalOutage(CommandFailed):
    """The journal cannot be written now. What is in it is sound, so it has to stay where it is.

    Keeps a coordinator from starting; one that runs waits until it can write again.
    """

    text = "the journal {0} cannot be written: {1}"
    hint = (
        "make the directory, its files and its file system writable for this user; "
        "every run is still in the journal, so leave it where it is"
    )


class JournalFull(JournalOutage):
    """There is no room for the journal: the disk, a quota or a limit of the process is full."""

    text = "the journal {0} has no room to grow: {1}"
    hint = "free some space there; every run is still in the journal, so leave it where it is"
