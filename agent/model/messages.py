"""Pure. What an agent commands its supervisor, and what the supervisor reports.

The core's effects and events, the messages on the socket and the worker group's input and
output are these same values. Exit codes are negative for a signal. A command that is impossible
raises ``ValueError`` when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct, field

from drumbeat.agent.model.hang import Hang
from drumbeat.model import PreflightFinding
from worker_sdk.interpreter.signal_numbers import is_signal

CPUS_MAX = 65_536
"""CPU numbers below this are taken seriously; Linux itself ends at 8,192."""


class WorkerStart(Struct, frozen=True, kw_only=True):
    """What is particular to one worker; ``env`` is set on top of the common environment."""

    local_rank: int
    env: Mapping[str, str]
    cpus: tuple[int, ...] = ()  # those it may run on; empty: those of the supervisor
    args: tuple[str, ...] = ()  # after the common command line
    stdout: str = ""  # file that takes its standard output, emptied first; "" leaves it as it is
    stderr: str = ""
    fds: tuple[int, ...] = ()  # of the supervisor, which closes them: the worker inherits them

    def __post_init__(self) -> None:
        if any(not 0 <= cpu < CPUS_MAX for cpu in self.cpus):
            raise ValueError(f"cpus: {self.cpus} are not all from 0 to {CPUS_MAX - 1}")


class StartWorkers(Struct, frozen=True, kw_only=True):
    """Start the workers of a round, newer than every one before.

    Answered by `WorkersStarted` or `WorkerStartFailed`. Repeating it is harmless; a newer round
    may only be asked for when nothing of the older one is alive. A round whose processes are all
    gone is not started again: the answer is `WorkersStopped`.
    """

    round_id: int
    argv: tuple[str, ...]  # the first item is looked up in the PATH of ``env``
    env: Mapping[str, str]  # the complete common environment
    workers: tuple[WorkerStart, ...]
    ignored: tuple[int, ...] = ()  # signals that workers ignore unless they handle them

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("argv: is empty, must name a program")
        if not self.workers:
            raise ValueError("workers: is empty, must hold at least one")
        ranks = [worker.local_rank for worker in self.workers]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"workers: local ranks {ranks} are not distinct")


class StopWorkers(Struct, frozen=True, kw_only=True):
    """Signal the process groups of a round's workers, and after the timeout SIGKILL everything.

    Answered by `WorkersStopped`, at once if nothing runs. Repeating it may shorten the timeout.
    """

    round_id: int
    signum: int
    timeout_s: float

    def __post_init__(self) -> None:
        if not is_signal(self.signum):
            raise ValueError(f"signum: {self.signum} is not a signal of this system")
        if not (math.isfinite(self.timeout_s) and self.timeout_s >= 0):
            raise ValueError(f"timeout_s: {self.timeout_s} is not a finite duration")


class KillWorkers(Struct, frozen=True, kw_only=True):
    """SIGKILL everything at once; answered by `WorkersStopped` of the last round or `NO_ROUND`."""


class SignalWorkers(Struct, frozen=True, kw_only=True):
    """Signal the workers of the running round, without stopping them; never answered."""

    round_id: int
    signum: int
    local_rank: int | None = None  # the only worker to get it, unless it has ended
    is_for_group: bool = False  # whether it goes to the worker's process group, not to it alone

    def __post_init__(self) -> None:
        if not is_signal(self.signum):
            raise ValueError(f"signum: {self.signum} is not a signal of this system")


class WorkersStarted(Struct, frozen=True, kw_only=True):
    """All workers of the round run their program; ``pids`` are by local rank."""

    round_id: int
    pids: Mapping[int, int] = field(default_factory=dict)


class WorkerStartFailed(Struct, frozen=True, kw_only=True):
    """A worker could not be started, for which ``message`` has a sentence.

    Those after it were not tried. Those before it run until they are stopped.
    """

    round_id: int
    local_rank: int
    message: str
    errno: int = 0  # the system's error number; 0 if the command itself is impossible


class WorkerError(Struct, frozen=True, kw_only=True):
    """What a worker left in its error file. Texts are bounded by who read them."""

    message: str
    traceback: str = ""
    error_code: int | None = None  # of the process that failed, if that is one within the worker
    suspect_rank: int | None = None  # whose host its exception accuses


class WorkerExited(Struct, frozen=True, kw_only=True):
    """A worker ended; with what it left behind, which the agent adds."""

    round_id: int
    local_rank: int
    pid: int
    exit_code: int
    is_stopped: bool  # a stop or kill had been requested before
    ended_at: float  # monotonic seconds, comparable among the processes of this host
    hang: Hang | None = None  # set if the agent ended it because it hung
    fatal_at: float | None = None  # when it wrote a line for which the agent ended it
    error: WorkerError | None = None
    explanation: str = ""
    stderr_tail: str = ""
    output_files: tuple[str, ...] = ()  # that have all it wrote, if they are kept
    error_file: str = ""  # where it recorded its error, if that file is kept
    matched_rules: tuple[int, ...] = ()  # restart rules whose pattern its error matches, from 1
    is_out_of_memory: bool = False  # the kernel ended it for want of memory
    preflight: tuple[PreflightFinding, ...] = ()  # whom it named, if it was one of the preflight
    is_final: bool = False  # another launcher has the workers, and does not restart them

    @property
    def is_faulty(self) -> bool:
        """Whether the agent ended it for its own fault, whatever its exit code is."""
        return self.hang is not None or self.fatal_at is not None

    @property
    def failed_at(self) -> float:
        """When that was noticed, or it ended.

        What others did after a hang was noticed, because they waited for it, came after that.
        """
        noticed = (None if self.hang is None else self.hang.noticed_at, self.fatal_at)
        return min([self.ended_at, *(at for at in noticed if at is not None)])


class WorkersStopped(Struct, frozen=True, kw_only=True):
    """Nothing of the round is alive, descendants included; answers a stop or kill."""

    round_id: int
    stuck_pids: tuple[int, ...] = ()  # not dead of SIGKILL within `worker_group.KILL_WAIT_S`


class WorkersUnkilled(Struct, frozen=True, kw_only=True):
    """Processes of a round are still there, so long after SIGKILL; every `UNKILLED_EVERY_S`."""

    round_id: int
    pids: tuple[int, ...]
    after_s: float


class Preload(Struct, frozen=True, kw_only=True):
    """Keep a template from which all later workers are forked; repeating it is harmless.

    Answered by a `TemplateReported` whenever there is something to say.
    """

    argv: tuple[str, ...]  # exactly that of the starts to come
    env: Mapping[str, str]  # their common environment
    modules: tuple[str, ...]
    script: str = ""  # run after them, unless ""
    path: tuple[str, ...] = ()  # what the program puts first on its path for modules
    own: tuple[str, ...] = ()  # variables that each worker has for itself
    is_refreshed: bool = False  # anew after each round, not only when a file has changed
    timeout_s: float = 300.0
    ignored: tuple[int, ...] = ()  # as of the starts to come


class TemplateNews(StrEnum):
    """What is reported of a template."""

    READY = "ready"
    COLD = "cold"  # workers start as without one from now on
    RENEWED = "renewed"
    ENDED = "ended"
    LATE_IMPORTS = "late imports"
    LATE_SETTINGS = "late settings"
    LEFT_OUT = "left out"
    SHARED = "shared"


class TemplateReported(Struct, frozen=True, kw_only=True):
    """Something that the user may want to know about preloading."""

    news: TemplateNews
    text: str


GroupCommand: TypeAlias = StartWorkers | StopWorkers | KillWorkers | SignalWorkers
Command: TypeAlias = GroupCommand | Preload
GroupEvent: TypeAlias = (
    WorkersStarted | WorkerStartFailed | WorkerExited | WorkersStopped | WorkersUnkilled
)
SupervisorEvent: TypeAlias = GroupEvent | TemplateReported
