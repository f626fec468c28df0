"""Pure. What ends an agent, and with which exit code.

AgentError                    1  anything else
 ├─ UsageError                2  the command line is wrong
 │   ├─ InvalidConfiguration  2  values break rules; all of them are listed
 │   ├─ ScriptNotFound        2  there is nothing to run at that path
 │   ├─ PrivateDirectoryUnusable  2  the agent has no place for files of its own
 │   ├─ LogDirectoryUnusable  2  --log-dir cannot be written
 │   ├─ EventLogUnusable      2  --event-log-file cannot be written
 │   ├─ UnknownEventHandler   2  --event-log-handler names nobody
 │   ├─ UnknownLogsSpecs      2  --logs-specs names nobody
 │   ├─ LogsSpecsUnusable     2  what --logs-specs names can't be loaded or made
 │   └─ TimerFileUnusable     2  no FIFO can be made at TORCHELASTIC_TIMER_FILE
 ├─ SpecRefused               2  the run was started with other settings
 ├─ RunRefused                2  the run has ended, or does not take this agent
 ├─ CoordinatorUnreachable    3  it never answered
 ├─ CoordinatorLost           3  it was away for longer than --coordinator-grace
 ├─ SupervisorLost            1  the process that holds the workers dies again and again
 ├─ ProcessesStuck            1  processes of an old round can't be ended
 ├─ RunForgotten              1  the coordinator does not know the run any more
 ├─ FunctionNotPortable      1  ``agent.launch``: a function can't be handed to workers
 ├─ ValueNotReadable         1  ``agent.launch``: a worker's return value can't be read
 ├─ AgentProcessLost         1  ``agent.launch``: the agent's process was ended
 ├─ RunFailed                1  ``agent.launch``: and not because of a failed worker
 └─ ChildFailedError          1  workers failed; of the Python API, in ``process_failure``

A failed run is not an error of the command: its exit code comes with the verdict.
"""

from typing import TYPE_CHECKING, ClassVar

from drumbeat.durations import format_duration
from drumbeat.violation import Violation

if TYPE_CHECKING:
    from agent.workers.failures.process_failure import ChildFailedError as ChildFailedError  # noqa: PLC0414
    from agent.workers.failures.process_failure import ProcessFailure as ProcessFailure  # noqa: PLC0414


class AgentError(Exception):
    """Base of everything that ends an agent on purpose."""

    exit_code: ClassVar[int] = 1
    """Exit code of ``agent join``."""

    hint: str = ""
    """What to do about it, as a line for people; empty if the error says it all."""


class UsageError(AgentError):
    """The command line cannot be carried out as it is."""

    exit_code = 2

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        return self.problem


class InvalidConfiguration(UsageError, ValueError):
    """Values of the configuration break rules; all of them are listed.

    A ``ValueError`` too, as which programs know an impossible argument.
    """

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("\n".join(str(violation) for violation in violations))
        self.args = (violations,)
        self.violations = violations


class ScriptNotFound(UsageError):
    """What the workers shall run is not there, or cannot be run."""

    hint = (
        "agent options come before the script, the script's own options after it; "
        "see also --module and --no-python"
    )

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"cannot run {path}: {why}")
        self.args = (path, why)
        self.path = path
        self.why = why


class PrivateDirectoryUnusable(UsageError):
    """There is no place for the files that an agent has for itself."""

    hint = "set TMPDIR to a directory of this host that you may write"

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(f"no private directory can be made: {'; '.join(problems)}")
        self.args = (problems,)
        self.problems = problems


class LogDirectoryUnusable(UsageError):
    """The directory for the workers' files cannot be created or written."""

    hint = "choose a directory that you may write, with --log-dir"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the log directory {path} cannot be used: {why}")
        self.args = (path, why)
        self.path = path
        self.why = why


class EventLogUnusable(UsageError):
    """The file of structured events cannot be created or written."""

    hint = "choose a file that you may write, with --event-log-file"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the event log {path} cannot be used: {why}")
        self.args = (path, why)
        self.path = path
        self.why = why


class UnknownEventHandler(UsageError):
    """No event handler has that name; those there are are listed."""

    hint = "a handler of your own is an entry point of the group drumbeat.event_handlers"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        allowed = f"one of {', '.join(known)}"
        super().__init__(str(Violation("--event-log-handler", name, allowed)))
        self.args = (name, known)
        self.name = name
        self.known = known


class UnknownLogsSpecs(UsageError):
    """No installed package offers logs specs of that name; those there are are listed."""

    hint = "logs specs are an entry point of the group drumbeat.logs_specs or torchrun.logs_specs"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        allowed = f"one of {', '.join(known)}" if known else "nothing: no package offers any"
        super().__init__(str(Violation("--logs-specs", name, allowed)))
        self.args = (name, known)
        self.name = name
        self.known = known


class LogsSpecsUnusable(UsageError):
    """The logs specs of that name can't be loaded or made."""

    hint = "the package that offers them has to be repaired; without --logs-specs ours are used"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the logs specs {name} cannot be used: {why}")
        self.args = (name, why)
        self.name = name
        self.why = why


class TimerFileUnusable(UsageError):
    """There can't be a FIFO for torch's file timers at that path."""

    hint = "TORCHELASTIC_TIMER_FILE names a FIFO to be made; without it a private one is made"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the timer file {path} cannot be used: {why}")
        self.args = (path, why)
        self.path = path
        self.why = why


class SpecRefused(AgentError):
    """The coordinator knows the run with other settings; ``reason`` names the fields."""

    exit_code = 2
    hint = "start every agent of a run with the same options, or choose another --run-id"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason

    def __str__(self) -> str:
        return f"run {self.run_id!r} refused this agent: {self.reason}"


class RunRefused(AgentError):
    """The run does not take this agent, e.g. because it has ended."""

    exit_code = 2
    hint = "jobs that run at the same time each need their own --run-id"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason

    def __str__(self) -> str:
        return f"run {self.run_id!r} refused this agent: {self.reason}"


class _CoordinatorAway(AgentError):
    exit_code = 3

    def __init__(self, address: str, waited_s: float, last_error: str) -> None:
        """Say who was waited for, for how many seconds, and what the last attempt met."""
        super().__init__(address, waited_s, last_error)
        self.address = address
        self.waited_s = waited_s
        self.last_error = last_error


class CoordinatorUnreachable(_CoordinatorAway):
    """The coordinator did not answer once within the join timeout."""

    hint = "is `coordinator serve` running there, and may this machine reach its port?"

    def __str__(self) -> str:
        return (
            f"no coordinator answered at {self.address} within "
            f"{format_duration(self.waited_s)}: {self.last_error}"
        )


class CoordinatorLost(_CoordinatorAway):
    """The coordinator was away for longer than the grace; the workers were stopped."""

    hint = "how long an agent keeps its workers without a coordinator: --coordinator-grace"

    def __str__(self) -> str:
        return (
            f"the coordinator at {self.address} did not come back within "
            f"{format_duration(self.waited_s)}: {self.last_error}"
        )


class SupervisorLost(AgentError):
    """The process that holds the workers dies again and again on this host."""

    hint = "something ends processes here: look for the kernel's out-of-memory killer"

    def __init__(self, deaths: int, ending: str) -> None:
        super().__init__(deaths, ending)
        self.deaths = deaths
        self.ending = ending

    def __str__(self) -> str:
        return f"the agent's supervisor died {self.deaths} times; the last one {self.ending}"


class ProcessesStuck(AgentError):
    """Not even SIGKILL ended a round's processes, so no other round may start on this host."""

    hint = "the kernel holds them: often a device driver or a network file system"

    def __init__(self, round_id: int, pids: tuple[int, ...]) -> None:
        super().__init__(round_id, pids)
        self.round_id = round_id
        self.pids = pids

    def __str__(self) -> str:
        listed = ", ".join(str(pid) for pid in self.pids)
        return f"processes of round {self.round_id} outlived SIGKILL: pid {listed}"


class RunForgotten(AgentError):
    """The coordinator began the run anew: it assigned a round that this agent has left."""

    hint = "was the coordinator's state directory removed? start the agents again"

    def __init__(self, assigned: int, latest: int) -> None:
        super().__init__(assigned, latest)
        self.assigned = assigned
        self.latest = latest

    def __str__(self) -> str:
        return (
            f"round {self.assigned} was assigned after round {self.latest}: "
            "the coordinator does not know this run any more"
        )


class FunctionNotPortable(AgentError):
    """The function or its arguments cannot be pickled for the workers."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"{self.name} or its arguments cannot be handed to workers: {self.why}"


class ValueNotReadable(AgentError):
    """A worker has returned a value that this process cannot read."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)
        self.rank = rank
        self.why = why

    def __str__(self) -> str:
        return f"the return value of rank {self.rank} cannot be read here: {self.why}"


class AgentProcessLost(AgentError):
    """The process that a launch runs the agent in has ended before the run; so have its workers."""

    def __init__(self, ending: str) -> None:
        super().__init__(ending)
        self.ending = ending

    def __str__(self) -> str:
        return f"the agent's process {self.ending}; its workers are gone with it"


class RunFailed(AgentError):
    """The run failed, and no record of a failed worker says why; ``reason`` does."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason

    def __str__(self) -> str:
        return f"run {self.run_id!r} failed: {self.reason}"


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Hand on what reads files; whoever only computes never asks for it."""
        if name not in ("ChildFailedError", "ProcessFailure"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from agent.workers.failures.process_failure import ChildFailedError, ProcessFailure  # noqa: PLC0415

        return {"ChildFailedError": ChildFailedError, "ProcessFailure": ProcessFailure}[name]
