"""Pure. What ends an agent, and with which exit code; that of a failed run is the verdict's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from drumbeat.text.durations import format_duration
from drumbeat.text.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drumbeat.agent.failures.process_failure import ProcessFailure as ProcessFailure  # noqa: PLC0414

_WIDTH_MAX = 60


class AgentError(Exception):
    """Base of everything that ends an agent on purpose. Its ``args`` are what it is made of."""

    exit_code: ClassVar[int] = 1
    """Exit code of ``agent join``."""
    hint: str = ""
    """What to do about it, as a line of its own; empty if the error says it all."""
    text: ClassVar[str] = "{0}"
    """What happened, with places for ``args``; floats are seconds."""

    def __str__(self) -> str:
        return self.text.format(*map(_shown, self.args))


class UsageError(AgentError):
    """The command line cannot be carried out as it is."""

    exit_code = 2
    hint = "try 'agent join --help'"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.hint = hint or self.hint


class InvalidConfiguration(UsageError, ValueError):
    """All rules that values of the configuration break; to programs a ``ValueError``."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        AgentError.__init__(self, violations)
        self.violations = violations

    def __str__(self) -> str:
        return "\n".join(str(violation) for violation in self.violations)


class _Unusable(UsageError):
    def __init__(self, name: str, why: str | tuple[str, ...]) -> None:
        AgentError.__init__(self, name, why)


class ScriptNotFound(_Unusable):
    """What the workers shall run is not there, or cannot be run."""

    text = "cannot run {0}: {1}"
    hint = (
        "agent options come before the script, the script's own options after it; "
        "see also --module and --no-python"
    )


class PrivateDirectoryUnusable(UsageError):
    """There is no place for the files that an agent has for itself."""

    text = "no private directory can be made: {0}"
    hint = "set TMPDIR to a directory of this host that you may write"


class LogDirectoryUnusable(_Unusable):
    """The directory for the workers' files cannot be created or written."""

    text = "the log directory {0} cannot be used: {1}"
    hint = "choose a directory that you may write, with --log-dir"


class EventLogUnusable(_Unusable):
    """The file of structured events cannot be created or written."""

    text = "the event log {0} cannot be used: {1}"
    hint = "choose a file that you may write, with --event-log-file"


class LogsSpecsUnusable(_Unusable):
    """The logs specs of that name can't be loaded or made."""

    text = "the logs specs {0} cannot be used: {1}"
    hint = "the package that offers them has to be repaired; without --logs-specs ours are used"


class TimerFileUnusable(_Unusable):
    """There can't be a FIFO for torch's file timers at that path."""

    text = "the timer file {0} cannot be used: {1}"
    hint = "TORCHELASTIC_TIMER_FILE names a FIFO to be made; without it a private one is made"


class _Unknown(_Unusable):
    option: ClassVar[str]

    def __str__(self) -> str:
        name, known = self.args
        allowed = f"one of {_shown(known)}" if known else "nothing: no package offers any"
        return str(Violation(self.option, name, allowed))


class UnknownEventHandler(_Unknown):
    """No event handler has that name; those there are are listed."""

    option = "--event-log-handler"
    hint = "a handler of your own is an entry point of the group drumbeat.event_handlers"


class UnknownLogsSpecs(_Unknown):
    """No installed package offers logs specs of that name; those there are are listed."""

    option = "--logs-specs"
    hint = "logs specs are an entry point of the group drumbeat.logs_specs or torchrun.logs_specs"


class _OfRun(AgentError):
    text = "run {0!r} refused this agent: {1}"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id, self.reason = run_id, reason


class SpecRefused(_OfRun):
    """The coordinator knows the run with other settings; ``reason`` names the fields."""

    exit_code = 2
    hint = "start every agent of a run with the same options, or choose another --run-id"


class RunRefused(_OfRun):
    """The run does not take this agent, e.g. because it has ended."""

    exit_code = 2
    hint = "jobs that run at the same time each need their own --run-id"


class RunEnded(_OfRun):
    """The run gave this agent up, and ended before it came back; it ends as the run did."""

    text = "run {0!r} gave this agent up: {1}"

    def __init__(self, run_id: str, reason: str, exit_code: int) -> None:
        super().__init__(run_id, reason)
        self.args = (run_id, reason, exit_code)
        self.exit_code = exit_code  # type: ignore[misc]


class AccessRefused(UsageError):
    """The coordinator does not let this agent in, or cannot be trusted to be the right one."""

    hint = (
        "`coordinator token create --role join` on the coordinator's host makes a token; give it "
        "in a file with --token-file, or as DRUMBEAT_TOKEN"
    )


class RunFailed(_OfRun):
    """The run failed, and no record of a failed worker says why; ``reason`` does."""

    text = "run {0!r} failed: {1}"


class RunStopped(_OfRun):
    """The operator ended the run, e.g. with ``coordinator stop``; ``reason`` says who and why."""

    exit_code = 4
    text = "run {0!r} was {1}"


class AgentDrained(AgentError):
    """The operator made this agent leave, which goes on without it; nothing is wrong with it."""

    exit_code = 0
    text = "this agent left its run, {0}"
    hint = "started again it stands by until `coordinator undrain` lets it in"


class CoordinatorUnreachable(AgentError):
    """The coordinator did not answer once within the join timeout."""

    exit_code = 3
    text = "no coordinator answered at {0} within {1}: {2}"
    hint = "is `coordinator serve` running there, and may this machine reach its port?"


class CoordinatorLost(AgentError):
    """The coordinator was away for longer than the grace; the workers were stopped."""

    exit_code = 3
    text = "the coordinator at {0} did not come back within {1}: {2}"
    hint = "how long an agent keeps its workers without a coordinator: --coordinator-grace"


class SupervisorLost(AgentError):
    """The process that holds the workers dies again and again on this host."""

    text = "the agent's supervisor died {0} times; the last one {1}"
    hint = "its messages above may say why; if it was killed, look for the OOM killer with `dmesg`"


class SupervisorNotExecutable(AgentError):
    """The program of the supervisor, this agent's own interpreter, cannot be executed."""

    text = "the agent's supervisor {0}"
    hint = "the Python interpreter of this agent was removed or replaced: install it again"


class ProcessesStuck(AgentError):
    """Not even SIGKILL ended a round's processes, so no other round may start on this host."""

    text = "processes of round {0} outlived SIGKILL: pid {1}"
    hint = "the kernel holds them: often a device driver or a network file system"


class RunForgotten(AgentError):
    """The coordinator began the run anew: it assigned a round that this agent has left."""

    text = "round {0} was assigned after round {1}: the coordinator does not know this run any more"
    hint = "was the coordinator's state directory removed? start the agents again"


class FunctionNotPortable(AgentError):
    """The function or its arguments cannot be pickled for the workers."""

    text = "{0} or its arguments cannot be handed to workers: {1}"


class ValueNotReadable(AgentError):
    """A worker has returned a value that this process cannot read."""

    text = "the return value of rank {0} cannot be read here: {1}"


class AgentProcessLost(AgentError):
    """The process that a launch runs the agent in has ended before the run; so have its workers."""

    text = "the agent's process {0}; its workers are gone with it"


class ChildFailedError(AgentError):
    """Workers failed. ``failures`` has them by their rank in the world.

    Of a launcher of one's own it has those of this host; of ``drumbeat.launch`` the root causes of
    the run, several if they are too close in time. Within ``worker_sdk.record``, the root cause's
    own error file reaches the launcher further out. Name, fields and text are those of
    ``torch.distributed.elastic.multiprocessing.errors`` (2.13.0).
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        assert failures, "an error about failed workers needs one"
        super().__init__(name, failures)
        self.name = name
        self.failures = dict(failures)
        self._text = self.format_msg()

    def __str__(self) -> str:
        return self._text

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the earliest failure and its rank; of equals, the one listed first."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return all failures as text; the arguments are what the lines are drawn with."""
        title = f"{self.name} FAILED"
        texts = {
            rank: f"[{index}]:\n{failure.describe(rank)}"
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *"\n".join(texts.values()).splitlines()]
        width = min(max(map(len, lines)), _WIDTH_MAX)
        border, section = boarder_delim * width, section_delim * width
        root = texts.pop(self.get_first_failure()[0])
        other_failures = "\n".join(texts.values()) or "  <NO_OTHER_FAILURES>"
        return (
            f"\n{border}\n{title}\n{section}\nFailures:\n{other_failures}\n{section}\n"
            f"Root Cause (first observed failure):\n{root}\n{border}"
        )


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return format_duration(value) if isinstance(value, float) else value


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Load what reads files when it is asked for: most of the agent never does."""
        if name != "ProcessFailure":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from drumbeat.agent.failures.process_failure import ProcessFailure  # noqa: PLC0415

        return ProcessFailure
