"""Pure. What an agent commands its supervisor, and what the supervisor reports.

The core's effects and events, the messages on the socket and the worker group's input and
output are these same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from worker_sdk.interpreter.signal_numbers import is_signal

CPU_INDEX_MAX = 65_535
"""Highest CPU number taken seriously; Linux itself ends at 8,191."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """What is particular to one worker.

    Attributes:
        local_rank: Index of the worker on its host.
        env: Variables set on top of the common environment.
        cpus: CPUs it may run on; empty: those of the supervisor.
        args: Arguments after the common command line.
        stdout: File that takes its standard output, emptied first; "" leaves it as it is.
        stderr: The same for its standard error.
        fds: Descriptors of the supervisor that it inherits; nobody else keeps them.
    """

    local_rank: int
    env: Mapping[str, str]
    cpus: tuple[int, ...] = ()
    args: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    fds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a CPU has no possible number."""
        if any(not 0 <= cpu <= CPU_INDEX_MAX for cpu in self.cpus):
            raise ValueError(f"cpus: {self.cpus} are not all from 0 to {CPU_INDEX_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Start the workers of a round.

    Answered by `WorkersStarted` or `WorkerStartFailed`. Repeating it is harmless; a newer round
    may only be asked for when nothing of the older one is alive. A round whose processes are all
    gone is not started again: the answer is `WorkersStopped`.

    Attributes:
        round_id: The round; newer than every one before.
        argv: Command line; the first item is looked up in the PATH of `env`.
        env: The complete common environment.
        workers: One entry for each worker.
    """

    round_id: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workers: tuple[WorkerStart, ...]

    def __post_init__(self) -> None:
        """Raise ValueError if there is nothing to start or two workers share a local rank."""
        if not self.argv:
            raise ValueError("argv: is empty, must name a program")
        if not self.workers:
            raise ValueError("workers: is empty, must hold at least one")
        ranks = [worker.local_rank for worker in self.workers]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"workers: local ranks {ranks} are not distinct")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkers:
    """Stop the workers of a round; answered by `WorkersStopped`, at once if nothing runs.

    Attributes:
        round_id: The round.
        signum: Sent to the process group of each worker.
        timeout_s: After it everything gets SIGKILL. A repeated stop may only shorten it.
    """

    round_id: int
    signum: int
    timeout_s: float

    def __post_init__(self) -> None:
        """Raise ValueError if the timeout is not a finite duration or the signal unknown."""
        _check_signal(self.signum)
        if not (math.isfinite(self.timeout_s) and self.timeout_s >= 0):
            raise ValueError(f"timeout_s: {self.timeout_s} is not a finite duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorkers:
    """SIGKILL everything at once; answered by `WorkersStopped` of the newest round.

    Before any round was started, that is round `worker_group.NO_ROUND`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWorkers:
    """Send a signal to the workers themselves, without stopping; never answered.

    Attributes:
        round_id: The round; another than the running one is ignored.
        signum: The signal.
        local_rank: The only worker to get it; one that has ended is ignored. None: all.
        is_for_group: Whether it goes to the worker's process group, not to the worker alone.
    """

    round_id: int
    signum: int
    local_rank: int | None = None
    is_for_group: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if there is no such signal."""
        _check_signal(self.signum)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStarted:
    """All workers of the round run their program; ``pids`` are by local rank."""

    round_id: int
    pids: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStartFailed:
    """A worker could not be started; the ones after it were not tried.

    The ones before it run until they are stopped; each of them still ends with `WorkerExit`.

    Attributes:
        round_id: The round.
        local_rank: The worker.
        message: A sentence that names the file or what else is wrong.
        errno: The system's error number; 0 if the command itself is impossible.
    """

    round_id: int
    local_rank: int
    message: str
    errno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """A worker ended.

    Attributes:
        round_id: The round.
        local_rank: The worker.
        pid: Its process.
        exit_code: Its exit status; the negative signal number if a signal ended it.
        is_stopped: A stop or kill had been requested before it ended.
        ended_at: Monotonic seconds, comparable among the processes of this host.
    """

    round_id: int
    local_rank: int
    pid: int
    exit_code: int
    is_stopped: bool
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStopped:
    """Nothing of the round is alive, descendants included; answers a stop or kill.

    ``stuck_pids`` did not even die of SIGKILL within `worker_group.KILL_WAIT_S`.
    """

    round_id: int
    stuck_pids: tuple[int, ...] = ()


Command: TypeAlias = StartWorkers | StopWorkers | KillWorkers | SignalWorkers
SupervisorEvent: TypeAlias = WorkersStarted | WorkerStartFailed | WorkerExit | WorkersStopped


def _check_signal(number: int) -> None:
    if not is_signal(number):
        raise ValueError(f"signum: {number} is not a signal of this system")
