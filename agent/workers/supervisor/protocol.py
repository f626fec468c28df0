"""Shell. The messages between an agent and its supervisor, and their form on the socket.

One message is one line of JSON, checked on reading. Both ends belong to the same program and
the same release, so an unreadable line is a broken peer (`ProtocolError`), not a newer one.
"""

from __future__ import annotations

import json
import math
from typing import TypeAlias

import msgspec

from worker_sdk.interpreter.signal_numbers import is_signal

LINE_BYTES_MAX = 16 * 1024 * 1024
"""Longest line, newline included; a longer one raises `ProtocolError` on either side.

The largest message starts the workers of one host: the kernel takes about 2 MiB of arguments and
environment per process, and all but the small overrides are sent once for all of them.
"""

OUTBOX_BYTES_MAX = 2 * LINE_BYTES_MAX
"""Unsent bytes either side keeps; beyond that its peer does not read and counts as dead."""


CPU_INDEX_MAX = 65_535
"""Highest CPU number taken seriously; Linux itself ends at 8,191."""


class ProtocolError(Exception):
    """A line that is too long or holds no message; the connection is of no further use."""


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    """What is particular to one worker.

    Attributes:
        local_rank: Index of the worker on its host.
        env: Variables set on top of the common environment.
        cpus: CPUs it may run on; empty: those of the supervisor.
        args: Arguments after the common command line.
        stdout: File that takes its standard output, emptied first; "" leaves it as it is.
        stderr: The same for its standard error.
    """

    local_rank: int
    env: dict[str, str]
    cpus: tuple[int, ...] = ()
    args: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError if a CPU has no possible number."""
        if any(not 0 <= cpu <= CPU_INDEX_MAX for cpu in self.cpus):
            raise ValueError(f"cpus: {self.cpus} are not all from 0 to {CPU_INDEX_MAX}")


class StartWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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
    env: dict[str, str]
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


class StopWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop the workers of a round; answered by `WorkersStopped`, at once if nothing runs.

    Attributes:
        round_id: The round.
        signal: Sent to the process group of each worker.
        timeout_s: After it everything gets SIGKILL. A repeated stop may only shorten it.
    """

    round_id: int
    signal: int
    timeout_s: float

    def __post_init__(self) -> None:
        """Raise ValueError if the timeout is not a finite duration or the signal unknown."""
        _check_signal(self.signal)
        if not (math.isfinite(self.timeout_s) and self.timeout_s >= 0):
            raise ValueError(f"timeout_s: {self.timeout_s} is not a finite duration")


class KillWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """SIGKILL everything at once; answered by `WorkersStopped` of the newest round.

    Before any round was started, that is round `worker_group.NO_ROUND`.
    """


class SignalWorkers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forward a signal to the workers themselves, without stopping; never answered.

    Attributes:
        round_id: The round; another than the running one is ignored.
        signal: The signal.
    """

    round_id: int
    signal: int

    def __post_init__(self) -> None:
        """Raise ValueError if there is no such signal."""
        _check_signal(self.signal)


class SignalWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send a signal to one worker, without stopping; answered by `SignalFailed` at most.

    Attributes:
        round_id: The round; another than the running one is ignored.
        local_rank: The worker; one that has ended is ignored.
        signal: The signal.
        is_for_group: Whether it goes to the worker's process group, not to the worker alone.
    """

    round_id: int
    local_rank: int
    signal: int
    is_for_group: bool

    def __post_init__(self) -> None:
        """Raise ValueError if there is no such signal."""
        _check_signal(self.signal)


class SignalFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A signal to one worker could not be sent, although the worker has not ended.

    Attributes:
        round_id: The round.
        local_rank: The worker.
        reason: What the system said.
    """

    round_id: int
    local_rank: int
    reason: str


class WorkersStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All workers of the round are running their program.

    Attributes:
        round_id: The round.
        pids: Process of each local rank.
    """

    round_id: int
    pids: dict[int, int]


class WorkerStartFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker could not be started; the ones after it were not tried.

    The ones before it run until they are stopped; each of them still ends with `WorkerExited`.

    Attributes:
        round_id: The round.
        local_rank: The worker.
        errno: The system's error number; 0 if the command itself is impossible.
        message: A sentence that names the file or what else is wrong.
    """

    round_id: int
    local_rank: int
    errno: int
    message: str


class WorkerExited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
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


class WorkersStopped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to a stop or kill: nothing of the round is alive, descendants included.

    Attributes:
        round_id: The round.
        stuck_pids: Processes which did not even die of SIGKILL within
            `worker_group.KILL_WAIT_S`.
    """

    round_id: int
    stuck_pids: tuple[int, ...] = ()


Command: TypeAlias = StartWorkers | StopWorkers | KillWorkers | SignalWorkers | SignalWorker
SupervisorEvent: TypeAlias = (
    WorkersStarted | WorkerStartFailed | WorkerExited | WorkersStopped | SignalFailed
)


class LineSplitter:
    """Cuts a stream of bytes into lines; holds at most one unfinished line."""

    def __init__(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their newlines.

        Raises:
            ProtocolError: A line is longer than the limit.
        """
        # Only the new part can hold a newline; a long line must not be searched again.
        if b"\n" not in data:
            self._rest += data
            self._check(len(self._rest) + 1)
            return []
        head, *lines = data.split(b"\n")
        lines.insert(0, bytes(self._rest) + head)
        self._rest = bytearray(lines.pop())
        for line in (*lines, self._rest):
            self._check(len(line) + 1)
        return lines

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._line_bytes_max:
            raise ProtocolError(
                f"a line of at least {size_bytes} bytes exceeds the limit of {self._line_bytes_max}"
            )


def encode(message: Command | SupervisorEvent) -> bytes:
    """Return the message as one line.

    Raises:
        ProtocolError: It is longer than `LINE_BYTES_MAX`.
    """
    try:
        line = msgspec.json.encode(message)
    except UnicodeEncodeError:
        # Environment and arguments are bytes to the kernel. What is not UTF-8 in them reaches
        # Python as lone surrogates, which only the standard library's JSON can carry.
        line = json.dumps(msgspec.to_builtins(message, str_keys=True)).encode("ascii")
    if len(line) >= LINE_BYTES_MAX:
        raise ProtocolError(
            f"{type(message).__name__} takes {len(line) + 1} bytes, at most {LINE_BYTES_MAX} fit"
        )
    return line + b"\n"


def decode_command(line: bytes) -> Command:
    """Read a line from the agent.

    Raises:
        ProtocolError: The line holds no valid command.
    """
    try:
        try:
            return _COMMANDS.decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # Either not JSON at all, or JSON with lone surrogates; see `encode`.
            return _command_from_json(line)
    except (msgspec.ValidationError, ValueError) as error:
        raise ProtocolError(f"not a command of an agent: {error}") from error


def decode_event(line: bytes) -> SupervisorEvent:
    """Read a line from the supervisor.

    Raises:
        ProtocolError: The line holds no valid event.
    """
    try:
        try:
            return _EVENTS.decode(line)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _event_from_json(line)
    except (msgspec.ValidationError, ValueError) as error:
        raise ProtocolError(f"not an event of a supervisor: {error}") from error


def _command_from_json(line: bytes) -> Command:
    command: Command = msgspec.convert(json.loads(line), Command)
    return command


def _event_from_json(line: bytes) -> SupervisorEvent:
    event: SupervisorEvent = msgspec.convert(json.loads(line), SupervisorEvent, str_keys=True)
    return event


def _check_signal(number: int) -> None:
    if not is_signal(number):
        raise ValueError(f"signal: {number} is not a signal of this system")


_COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_EVENTS: msgspec.json.Decoder[SupervisorEvent] = msgspec.json.Decoder(SupervisorEvent)
