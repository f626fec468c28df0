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
 ├─ CallFailed                a command asked a coordinator, and got no answer or a refusal
 └─ StartupError              the process cannot do its work; it ends with `exit_code`
     ├─ InvalidConfiguration  the configuration breaks rules
     ├─ PortInUse             the address cannot be bound
     ├─ StateDirectoryInUse   another coordinator holds the state directory
     │   └─ LostLeadership    and has taken the journal over
     ├─ StateDirectoryUnusable  it cannot be created, locked or written
     └─ JournalError          something is wrong with the journal
         ├─ JournalCorrupt    it holds what cannot be read
         └─ JournalOutage     it cannot be written now; nothing in it is lost
             ├─ JournalFull        for want of room
             └─ JournalUnwritable  for any other reason

A class says how a caller learns of it (``status``, ``refusal``) and whether
trying again makes sense; one interceptor turns that into a gRPC status, so this
module needs neither grpc nor the generated enums. The table of what an agent
does then: ``Refusal`` in ``drumbeat/v1/common.proto``.
"""

from dataclasses import dataclass
from typing import ClassVar

from drumbeat.violation import InvalidField, Violation, show_value

BIND_ALLOWED = (
    "a loopback address (127.0.0.0/8, ::1 or localhost), or --insecure beside it: "
    "authentication does not exist yet, so --insecure lets everyone who reaches the port "
    "join, read and end every run"
)
"""Why an open address is refused and what would be accepted, for messages."""


# As the user has given them: fields of ``drumbeat.v1.RunSpec`` are options of ``agent join``.
_OPTIONS = {
    "agents_min": "--nnodes (minimum)",
    "agents_max": "--nnodes (maximum)",
    "restarts_max": "--max-restarts",
    "join_timeout": "--join-timeout",
    "last_call": "--last-call",
    "exit_barrier_timeout": "--exit-barrier-timeout",
    "shutdown_timeout": "--shutdown-timeout",
    "coordinator_grace": "--coordinator-grace",
    "master_addr": "--master-addr",
    "master_port": "--master-port",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of a run's spec in which an agent and the run disagree."""

    field: str
    """Name of the field in ``drumbeat.v1.RunSpec``."""

    theirs: object
    """What the agent brought."""

    ours: object
    """What the run was started with."""

    def __str__(self) -> str:
        name = _OPTIONS.get(self.field, self.field)
        return f"{name}: the run has {show_value(self.ours)}, not {show_value(self.theirs)}"


class CoordinatorError(Exception):
    """Base of everything the coordinator raises on purpose."""

    status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status of a call that fails with this."""

    refusal: ClassVar[str] = "UNSPECIFIED"
    """Name of the value of ``drumbeat.v1.Refusal``, without its prefix."""

    is_retryable: ClassVar[bool] = False
    """Whether the same agent may succeed later, in a new session."""


class InvalidRequest(CoordinatorError, InvalidField):
    """A field of a message is missing or out of range: a bug of the sender."""

    status = "INVALID_ARGUMENT"
    refusal = "INVALID"


class SpecMismatch(CoordinatorError):
    """The agent would run this run differently than its first agent said."""

    status = "FAILED_PRECONDITION"
    refusal = "SPEC_MISMATCH"

    def __init__(self, run_id: str, differences: tuple[Difference, ...]) -> None:
        super().__init__(run_id, differences)
        self.run_id = run_id
        self.differences = differences

    def __str__(self) -> str:
        listed = "; ".join(str(difference) for difference in self.differences)
        return f"run {show_value(self.run_id)} was started with other settings: {listed}"


class RunClosed(CoordinatorError):
    """The run ended after this agent began; ``verdict`` is the sentence that says how."""

    status = "FAILED_PRECONDITION"
    refusal = "RUN_CLOSED"

    def __init__(self, run_id: str, verdict: str) -> None:
        super().__init__(run_id, verdict)
        self.run_id = run_id
        self.verdict = verdict

    def __str__(self) -> str:
        again = "started again, the agent begins a new run of that name"
        return f"run {show_value(self.run_id)} has ended: {self.verdict}; {again}"


class RunMissesAgents(SpecMismatch):
    """The agent brought other settings, and none of the run's agents is connected.

    They may come back within their grace. If none does, the agent begins a new run.
    """

    status = "ABORTED"
    refusal = "AGENTS_MISSING"
    is_retryable = True

    def __str__(self) -> str:
        return f"{super().__str__()}; its agents are missing, and it ends if none of them returns"


class StaleSession(CoordinatorError):
    """The agent was given up: others may hold its ranks. It stops its workers and returns."""

    status = "FAILED_PRECONDITION"
    refusal = "STALE_SESSION"
    is_retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the session is over: {self.reason}"


class SessionReplaced(CoordinatorError):
    """The agent has a newer session, or a hello of an older one came late.

    No fence: what the agent holds stays its own, so it keeps its workers and returns.
    """

    status = "ABORTED"
    refusal = "SESSION_REPLACED"
    is_retryable = True

    def __str__(self) -> str:
        return "the session is over: the agent opened another one"


class Deposed(CoordinatorError):
    """A coordinator of a later term has welcomed the agent: this one does not lead any more."""

    status = "ABORTED"
    refusal = "DEPOSED"
    is_retryable = True

    def __init__(self, term: int) -> None:
        super().__init__(term)
        self.term = term

    def __str__(self) -> str:
        return f"this coordinator was deposed: the agent has seen one of term {self.term}"


class LimitReached(CoordinatorError):
    """A named limit of the coordinator is reached (``coordinator.config.Limits``)."""

    status = "RESOURCE_EXHAUSTED"
    refusal = "LIMIT_REACHED"
    is_retryable = True

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return f"the coordinator's limit {self.limit_name} is reached: {self.limit}"


class Unavailable(CoordinatorError):
    """The coordinator can't answer now; it does so later, or its successor does."""

    status = "UNAVAILABLE"
    refusal = "UNAVAILABLE"
    is_retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the coordinator does not answer requests now: {self.reason}"


class UnknownRun(CoordinatorError):
    """There is no run of this name, or it ended too long ago to be remembered."""

    status = "NOT_FOUND"
    refusal = "UNKNOWN_RUN"

    def __init__(self, run_id: str, which: str = "") -> None:
        super().__init__(run_id, which)
        self.run_id = run_id
        self.which = which

    def __str__(self) -> str:
        return f"there is no run {show_value(self.run_id)} {self.which}".rstrip()


class CallFailed(CoordinatorError):
    """A command asked a coordinator, and it could not be reached or refused; no caller sees it."""

    def __init__(self, problem: str, exit_code: int, hint: str = "") -> None:
        super().__init__(problem, exit_code, hint)
        self.problem = problem
        self.exit_code = exit_code
        self.hint = hint

    def __str__(self) -> str:
        return self.problem


class StartupError(CoordinatorError):
    """The coordinator cannot start as it was told to; no caller ever sees it."""

    exit_code: ClassVar[int] = 2
    """Exit code of ``coordinator serve``."""

    hint: str = ""
    """What to do about it, as a line for the operator; empty if the error says it all."""


class InvalidConfiguration(StartupError):
    """The configuration breaks rules; all of them are listed."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__(violations)
        self.violations = violations

    def __str__(self) -> str:
        return "\n".join(str(violation) for violation in self.violations)


class PortInUse(StartupError):
    """The address cannot be bound."""

    hint = "another coordinator may run here already; choose another --port, or end that one"

    def __init__(self, host: str, port: int, why: str, *, hint: str = "") -> None:
        super().__init__(host, port, why)
        self.host = host
        self.port = port
        self.why = why
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        return f"cannot listen on port {self.port} of {self.host}: {self.why}"


class StateDirectoryInUse(StartupError):
    """Another coordinator holds the state directory."""

    hint = "one state directory belongs to one coordinator; choose another with --state-dir"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"the state directory {self.path} is in use by another coordinator"


class LostLeadership(StateDirectoryInUse):
    """Another coordinator has taken the journal over; this one must not decide any more."""


class StateDirectoryUnusable(StartupError):
    """The state directory cannot be created, read or written."""

    hint = (
        "make it a directory that this user may write and lock; "
        "another one, with --state-dir, starts with an empty journal"
    )

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"the state directory {self.path} cannot be used: {self.why}"


class JournalError(StartupError):
    """Something is wrong with the journal at ``path``."""

    problem: ClassVar[str] = "fails"
    """What is wrong, as a predicate of the journal."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"the journal {self.path} {self.problem}: {self.why}"


class JournalCorrupt(JournalError):
    """The journal holds what this coordinator did not write or cannot read."""

    problem = "cannot be read"
    hint = "keep a copy of the file, then move it away to start with an empty journal"


class JournalOutage(JournalError):
    """The journal cannot be written now. What is in it is sound, so it has to stay where it is.

    Keeps a coordinator from starting; one that runs waits until it can write again.
    """


class JournalFull(JournalOutage):
    """There is no room for the journal: the disk, a quota or a limit of the process is full."""

    problem = "has no room to grow"
    hint = "free some space there; every run is still in the journal, so leave it where it is"


class JournalUnwritable(JournalOutage):
    """The journal can be neither read nor written now, or only read."""

    problem = "cannot be written"
    hint = (
        "make the directory, its files and its file system writable for this user; "
        "every run is still in the journal, so leave it where it is"
    )
