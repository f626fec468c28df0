"""Pure. What the coordinator refuses, and what keeps it from starting.

CoordinatorError
 ├─ InvalidRequest            a field is missing or out of range
 ├─ SpecMismatch              the agent's spec differs from the run's
 │   └─ RunMissesAgents       and none of the run's agents is connected
 ├─ RunClosed                 the run has ended
 ├─ StaleSession              the agent was given up
 ├─ SessionReplaced           the agent has a newer session
 ├─ Deposed                   another coordinator leads by now
 ├─ LimitReached              a named limit is reached
 ├─ Unavailable               the coordinator stops, or cannot write its journal
 ├─ UnknownRun                there is no such run
 └─ CommandFailed             the process cannot do its work; it ends with `exit_code`
     ├─ CallFailed            a coordinator was asked, and did not answer or refused
     ├─ InvalidConfiguration  the configuration breaks rules
     ├─ PortInUse             the address cannot be bound
     ├─ StateDirectoryInUse   another coordinator holds the state directory
     │   └─ LostLeadership    and has taken the journal over
     ├─ StateDirectoryUnusable  it cannot be created, locked or written
     └─ JournalError          something is wrong with the journal
         ├─ JournalCorrupt    it holds what cannot be read
         └─ JournalOutage     it cannot be written now; nothing in it is lost
             └─ JournalFull   for want of room

Names of statuses and refusals are texts, so that this module needs neither grpc nor the
generated enums; one interceptor turns an error into a gRPC status. The table of what an agent
does then: ``Refusal`` in ``drumbeat/v1/common.proto``.
"""

from dataclasses import dataclass
from typing import ClassVar

from drumbeat.violation import InvalidField, Violation, show_value

# Fields of ``drumbeat.v1.RunSpec`` are options of ``agent join``; these have other names there.
_OPTIONS = {
    "agents_min": "--nnodes (minimum)",
    "agents_max": "--nnodes (maximum)",
    "restarts_max": "--max-restarts",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of ``drumbeat.v1.RunSpec`` in which an agent and the run disagree."""

    field: str
    theirs: object
    ours: object

    def __str__(self) -> str:
        name = _OPTIONS.get(self.field, f"--{self.field.replace('_', '-')}")
        return f"{name}: the run has {show_value(self.ours)}, not {show_value(self.theirs)}"


class CoordinatorError(Exception):
    """Base of everything the coordinator raises on purpose."""

    status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status of a call that fails with this."""

    refusal: ClassVar[str] = "UNSPECIFIED"
    """Name of the value of ``drumbeat.v1.Refusal``, without its prefix."""

    is_retryable: ClassVar[bool] = False
    """Whether the same agent may succeed later, in a new session."""

    text: ClassVar[str]
    """What is said, with attributes in braces."""

    def __str__(self) -> str:
        return self.text.format_map(vars(self))


class InvalidRequest(InvalidField, CoordinatorError):
    """A field of a message is missing or out of range: a bug of the sender."""

    status, refusal = "INVALID_ARGUMENT", "INVALID"


@dataclass(eq=False, repr=False)
class SpecMismatch(CoordinatorError):
    """The agent would run this run differently than its first agent said."""

    status, refusal = "FAILED_PRECONDITION", "SPEC_MISMATCH"
    run_id: str
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        listed = "; ".join(str(difference) for difference in self.differences)
        return f"run {show_value(self.run_id)} was started with other settings: {listed}"


class RunMissesAgents(SpecMismatch):
    """The agent brought other settings, and none of the run's agents is connected.

    They may come back within their grace. If none does, the agent begins a new run.
    """

    status, refusal, is_retryable = "ABORTED", "AGENTS_MISSING", True

    def __str__(self) -> str:
        return f"{super().__str__()}; its agents are missing, and it ends if none of them returns"


@dataclass(eq=False, repr=False)
class RunClosed(CoordinatorError):
    """The run ended after this agent began; ``verdict`` is the sentence that says how."""

    status, refusal = "FAILED_PRECONDITION", "RUN_CLOSED"
    text = (
        "run {run_id!a} has ended: {verdict}; "
        "started again, the agent begins a new run of that name"
    )
    run_id: str
    verdict: str


@dataclass(eq=False, repr=False)
class StaleSession(CoordinatorError):
    """The agent was given up: others may hold its ranks. It stops its workers and returns."""

    status, refusal, is_retryable = "FAILED_PRECONDITION", "STALE_SESSION", True
    text = "the session is over: {reason}"
    reason: str


class SessionReplaced(CoordinatorError):
    """The agent has a newer session, or a hello of an older one came late.

    No fence: what the agent holds stays its own, so it keeps its workers and returns.
    """

    status, refusal, is_retryable = "ABORTED", "SESSION_REPLACED", True
    text = "the session is over: the agent opened another one"


@dataclass(eq=False, repr=False)
class Deposed(CoordinatorError):
    """A coordinator of a later term has welcomed the agent: this one does not lead any more."""

    status, refusal, is_retryable = "ABORTED", "DEPOSED", True
    text = "this coordinator was deposed: the agent has seen one of term {term}"
    term: int


@dataclass(eq=False, repr=False)
class LimitReached(CoordinatorError):
    """A named limit of the coordinator is reached (``coordinator.config.Limits``)."""

    status, refusal, is_retryable = "RESOURCE_EXHAUSTED", "LIMIT_REACHED", True
    text = "the coordinator's limit {limit_name} is reached: {limit}"
    limit_name: str
    limit: int


@dataclass(eq=False, repr=False)
class Unavailable(CoordinatorError):
    """The coordinator can't answer now; it does so later, or its successor does."""

    status, refusal, is_retryable = "UNAVAILABLE", "UNAVAILABLE", True
    text = "the coordinator does not answer requests now: {reason}"
    reason: str


@dataclass(eq=False, repr=False)
class UnknownRun(CoordinatorError):
    """There is no run of this name, or it ended too long ago to be remembered."""

    status, refusal = "NOT_FOUND", "UNKNOWN_RUN"
    run_id: str
    which: str = ""

    def __str__(self) -> str:
        return f"there is no run {show_value(self.run_id)} {self.which}".rstrip()


class CommandFailed(CoordinatorError):
    """The process cannot do what it was told to; no caller of a server sees it."""

    exit_code: int = 2
    hint: str = ""
    """What to do about it, as a line for the operator; empty if the error says it all."""


@dataclass(eq=False, repr=False)
class CallFailed(CommandFailed):
    """A coordinator was asked, and could not be reached or refused."""

    text = "{problem}"
    problem: str
    exit_code: int
    hint: str = ""


@dataclass(eq=False, repr=False)
class InvalidConfiguration(CommandFailed):
    """The configuration breaks rules; all of them are listed."""

    hint = "try 'coordinator serve --help'"
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        return "\n".join(str(violation) for violation in self.violations)


@dataclass(eq=False, repr=False)
class PortInUse(CommandFailed):
    """The address cannot be bound."""

    text = "cannot listen on port {port} of {host}: {why}"
    host: str
    port: int
    why: str
    hint: str = "another coordinator may run here already; choose another --port, or end that one"


@dataclass(eq=False, repr=False)
class StateDirectoryInUse(CommandFailed):
    """Another coordinator holds the state directory."""

    text = "the state directory {path} is in use by another coordinator"
    hint = "one state directory belongs to one coordinator; choose another with --state-dir"
    path: str


class LostLeadership(StateDirectoryInUse):
    """Another coordinator has taken the journal over; this one must not decide any more."""


@dataclass(eq=False, repr=False)
class StateDirectoryUnusable(CommandFailed):
    """The state directory cannot be created, read or written."""

    text = "the state directory {path} cannot be used: {why}"
    hint = (
        "make it a directory that this user may write and lock; "
        "another one, with --state-dir, starts with an empty journal"
    )
    path: str
    why: str


@dataclass(eq=False, repr=False)
class JournalError(CommandFailed):
    """Something is wrong with the journal at ``path``."""

    path: str
    why: str


class JournalCorrupt(JournalError):
    """The journal holds what this coordinator did not write or cannot read."""

    text = "the journal {path} cannot be read: {why}"
    hint = "keep a copy of the file, then move it away to start with an empty journal"


class JournalOutage(JournalError):
    """The journal cannot be written now. What is in it is sound, so it has to stay where it is.

    Keeps a coordinator from starting; one that runs waits until it can write again.
    """

    text = "the journal {path} cannot be written: {why}"
    hint = (
        "make the directory, its files and its file system writable for this user; "
        "every run is still in the journal, so leave it where it is"
    )


class JournalFull(JournalOutage):
    """There is no room for the journal: the disk, a quota or a limit of the process is full."""

    text = "the journal {path} has no room to grow: {why}"
    hint = "free some space there; every run is still in the journal, so leave it where it is"
