"""Shell. A set of workers that succeed or fail together, and those that are commands.

A supervisor holds them, as it holds an agent's; a thread of this module is its client.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from drumbeat.access.exposure import TOKEN_VARIABLE
from drumbeat.agent.compat.multiprocessing.signals import HANDLERS, SignalException
from drumbeat.agent.errors import ProcessFailure
from drumbeat.agent.model import messages
from drumbeat.agent.workers.output.logs import LogsSpecs
from drumbeat.agent.workers.output.tail import Tail
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from drumbeat.agent.workers.supervisor.launch import launch_supervisor
from drumbeat.agent.workers.supervisor.worker_group import KILL_WAIT_S
from worker_sdk.interpreter.signal_wakeup import wait_readable

_LOGGER = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0  # from SIGTERM to SIGKILL, where the caller does not say otherwise
ROUND_ID = 0  # a context starts its workers once
_STOP = partial(messages.StopWorkers, round_id=ROUND_ID)
# How long after its SIGKILL is due a supervisor may be silent; then it is killed itself.
GIVE_UP_S = KILL_WAIT_S + 5.0


@dataclass
class RunProcsResult:
    """How a set of workers has ended; all fields are by local rank."""

    # What the functions have returned, None for a command; empty if one has failed.
    return_values: dict[int, Any] = field(default_factory=dict)
    # What has failed by itself, in the order of failing; if all were stopped, those.
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    # Files with their output; "" is the console.
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether any worker has failed."""
        return bool(self.failures)


class PContext(ABC):
    """Runs a set of workers, of which either all succeed, or the first failure stops all.

    Not started until `start`. All methods may be called from any thread. ``stdouts``, ``stderrs``
    and ``error_files`` are paths by local rank; "" is the console. ``filtered_stdout`` and
    ``filtered_stderr`` are the open files of the selected lines, None without filters.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - arguments that others use already
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        if numa_options is not None:
            hint = "allowed is None; start the workers through numactl instead"
            raise ValueError(f"numa_options: {numa_options!r} is not supported, {hint}")
        self.name, self.entrypoint, self.args, self.envs = name, entrypoint, args, envs
        self.nprocs = len(args)
        self._check_ranks(args=args, envs=envs)
        for rank, env in envs.items():
            for variable, value in env.items():
                if not isinstance(variable, str) or not isinstance(value, str):
                    raise TypeError(f"envs[{rank}][{variable!r}]: is {value!r}, must be a string")
        self._logs = logs_specs.reify(envs)
        self.stdouts, self.stderrs = self._logs.stdouts, self._logs.stderrs
        self._check_ranks(stdouts=self.stdouts, stderrs=self.stderrs)
        self.error_files = self._logs.error_files
        self._prefixes = log_line_prefixes or {}
        self._filters = (duplicate_stdout_filters or [], duplicate_stderr_filters or [])
        self._files = ExitStack()  # open until the workers have ended
        out, err = self._filters
        self.filtered_stdout = self._opened(self._logs.filtered_stdout) if out else None
        self.filtered_stderr = self._opened(self._logs.filtered_stderr) if err else None
        self._is_started = False
        self._tail = Tail()
        self._result: RunProcsResult | None = None
        self._mistake: BaseException | None = None
        # Of the callers that wait: each has a descriptor that is readable after a change.
        self._lock = threading.Lock()
        self._wakeups: set[int] = set()
        # All below belongs to the thread, which the others only look at.
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._client: SupervisorClient
        self._begun: messages.WorkersStarted | messages.WorkerStartFailed | None = None
        self._is_stopping = False
        self._pids: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._victims: dict[int, ProcessFailure] = {}

    @abstractmethod
    def _launch(self) -> tuple[messages.StartWorkers, int, socket.socket]:
        """Start the supervisor; return what it is to start, its pid and the connection to it."""

    def _take_return_values(self) -> dict[int, Any]:
        """Return what the workers have returned; a bad value becomes a failure."""
        return dict.fromkeys(range(self.nprocs))

    def start(self) -> None:
        """Start the workers.

        In the main thread, SIGTERM, SIGINT, SIGHUP and SIGQUIT (or what
        ``TORCHELASTIC_SIGNALS_TO_HANDLE`` names) raise `SignalException` from now until the
        workers have ended or been closed, out of all methods too.

        Raises ``ValueError`` if they were started already or the command is impossible, and
        ``OSError`` if a worker cannot be started; call `close` for the others.
        """
        if self._is_started:
            raise ValueError("the workers were started already, allowed is once")
        with HANDLERS.held():
            self._is_started = True
            if not self.nprocs:
                self._end(RunProcsResult())
                return
            HANDLERS.install(self)
            try:
                self._begin()
            except BaseException:
                self._end(RunProcsResult())
                raise
        self._wait_for(lambda: self._begun or self._result)
        match self._begun:
            case messages.WorkerStartFailed(errno=errno, message=message):
                raise OSError(errno, message) if errno else ValueError(message)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:  # noqa: ARG002
        """Return how the workers have ended, as soon as all have succeeded or one has failed.

        Then nothing that they have started is alive any more: the first failure stops all. None
        is returned if they have not ended within ``timeout`` seconds; a negative one never comes.
        ``period`` has no meaning. Raises ``RuntimeError`` if they were not started.
        """
        self._wait_for(lambda: self._result, None if timeout < 0 else timeout)
        return self._result

    def pids(self) -> dict[int, int]:
        """Return the process of each worker; one that could not be started has none."""
        self._wait_for(lambda: self._begun or self._result)
        return dict(self._pids)

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stop the workers, with all that they have started; return when they are gone.

        The signal is SIGTERM if not given; after ``timeout`` seconds the rest gets SIGKILL. What
        was closed may be closed again, and has to be after a `SignalException`.
        """
        if not self._is_started:
            self._files.close()
            return
        command = _STOP(signum=int(death_sig or signal.SIGTERM), timeout_s=max(0.0, float(timeout)))
        with suppress(RuntimeError):  # It has just ended.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop, command)
        self._wait_for(lambda: self._result)

    def _check_ranks(self, **mappings: Mapping[int, object]) -> None:
        expected = set(range(self.nprocs))
        for what, mapping in mappings.items():
            if set(mapping) != expected:
                raise RuntimeError(
                    f"{what}: local ranks are {sorted(mapping)}, must be {sorted(expected)}, "
                    f"one for each of {self.nprocs} workers"
                )

    def _command(
        self, argv: tuple[str, ...], env: dict[str, str], **by_rank: Mapping[int, tuple[Any, ...]]
    ) -> messages.StartWorkers:
        """Return what is to be started, with fields by local rank beside the common ones."""
        env.pop(TOKEN_VARIABLE, None)
        workers = tuple(
            messages.WorkerStart(
                local_rank=rank,
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
                **{name: values[rank] for name, values in by_rank.items()},
            )
            for rank in range(self.nprocs)
        )
        return messages.StartWorkers(round_id=ROUND_ID, argv=argv, env=env, workers=workers)

    def _wait_for(self, is_over: Callable[[], object], timeout_s: float | None = None) -> None:
        """Wait until something is over, or the time; what a signal raises comes out."""
        if not self._is_started:
            raise RuntimeError("the workers were not started")
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        wakeup = -1
        try:
            with HANDLERS.held(), self._lock:
                wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._wakeups.add(wakeup)
            while not is_over() and (left_s := deadline - time.monotonic()) > 0:
                wait_readable(wakeup, left_s)
                with suppress(BlockingIOError):
                    os.eventfd_read(wakeup)
        except SignalException:
            # A launcher that is told to end does not wait for a console that takes nothing.
            self._tail.hurry()
            raise
        finally:
            with HANDLERS.held():
                with self._lock:
                    self._wakeups.discard(wakeup)
                if wakeup >= 0:
                    os.close(wakeup)
                if self._result is not None and self._thread is not None:
                    self._thread.join()
                HANDLERS.restore_unused()
        if self._mistake is not None:
            raise RuntimeError("a mistake of ours; the workers have ended") from self._mistake

    def _notify(self) -> None:
        with self._lock:
            for wakeup in self._wakeups:
                os.eventfd_write(wakeup, 1)

    def _begin(self) -> None:
        for path in filter(None, (*self.stdouts.values(), *self.stderrs.values())):
            Path(path).touch()  # Also a worker that is stopped before it has begun has these files.
        command, pid, connection = self._launch()
        self._client = SupervisorClient(
            on_event=self._on_event,
            on_death=self._on_death,
            on_mistake=self._on_mistake,
            launch=lambda: (pid, connection),
            is_subreaper=False,
        )
        self._client.send(command)
        try:
            self._start_tail()
            self._loop = asyncio.new_event_loop()
            # A daemon: a launcher that just exits ends its workers too, by its end.
            what, name = partial(self._run, self._loop), f"{self.name} workers"
            thread = threading.Thread(target=what, name=name, daemon=True)
            thread.start()
        except BaseException:
            connection.close()
            os.waitpid(pid, 0)
            raise
        self._thread = thread

    def _start_tail(self) -> None:
        for paths, stream, filters, filtered in (
            (self._logs.tee_stdouts, sys.stdout, self._filters[0], self.filtered_stdout),
            (self._logs.tee_stderrs, sys.stderr, self._filters[1], self.filtered_stderr),
        ):
            for rank, path in paths.items():
                if path == os.devnull or stream is None:
                    continue
                self._tail.add(
                    path,
                    _destination(stream),
                    prefix=self._prefixes.get(rank, f"[{self.name}{rank}]:").encode(),
                    filters=filters,
                    filtered=None if filtered is None else _destination(filtered),
                )

    def _opened(self, path: str) -> TextIO:
        return self._files.enter_context(open(path, "w", errors="replace", buffering=1))  # noqa: PTH123

    def _end(self, result: RunProcsResult) -> None:
        self._files.close()
        HANDLERS.uninstall(self)
        self._result = result
        self._notify()

    # What follows runs in the thread.

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # Signals are for the threads of the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        result = RunProcsResult(stdouts=self.stdouts, stderrs=self.stderrs)
        try:
            loop.run_until_complete(self._serve())
            self._tail.close()
            if len(self._exit_codes) == self.nprocs and not self._failures and not self._victims:
                values = self._take_return_values()
                result.return_values = {} if self._failures else values
            result.failures = self._failures or self._victims
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            self._mistake = error
        finally:
            loop.close()
            self._end(result)

    async def _serve(self) -> None:
        await self._client.start()
        try:
            await self._over.wait()
        finally:
            await self._client.close()

    def _on_mistake(self, error: BaseException) -> None:
        self._mistake = error
        self._over.set()

    def _on_event(self, event: messages.SupervisorEvent) -> None:
        match event:
            case messages.WorkersStarted():
                self._pids.update(event.pids)
                self._begun = event
            case messages.WorkerStartFailed():
                self._begun = event
            case messages.WorkerExited():
                self._pids[event.local_rank] = event.pid
                self._on_exit(event.local_rank, event.exit_code, is_stopped=event.is_stopped)
            case messages.WorkersStopped():
                if event.stuck_pids:
                    why = "probably because of a device; this host may have to be restarted"
                    stuck = list(event.stuck_pids)
                    _LOGGER.error("processes %s do not even end of SIGKILL, %s", stuck, why)
                self._over.set()
        self._notify()

    def _on_death(self, returncode: int) -> None:
        """Take the end of a supervisor that was not asked to end; its workers went with it."""
        self._lose(-signal.SIGKILL if self._begun else returncode or 1)

    def _lose(self, exit_code: int) -> None:
        is_stopped = self._is_stopping  # before the first of them, which stops the others
        for local_rank in set(range(self.nprocs)) - self._exit_codes.keys():
            self._on_exit(local_rank, exit_code, is_stopped=is_stopped)
        self._over.set()
        self._notify()

    def _on_exit(self, local_rank: int, exit_code: int, *, is_stopped: bool) -> None:
        self._exit_codes[local_rank] = exit_code
        if exit_code and is_stopped:
            self._victims[local_rank] = self._failure(local_rank, exit_code)
        elif exit_code:
            failure = self._failures[local_rank] = self._failure(local_rank, exit_code)
            what = (self.name, local_rank, exit_code, failure.pid)
            _LOGGER.error("%s%d failed: exit code %d, pid %d", *what)
        if not self._is_stopping and (self._failures or len(self._exit_codes) == self.nprocs):
            # In the second case for what the workers have left behind.
            self._stop(_STOP(signum=int(signal.SIGTERM), timeout_s=STOP_TIMEOUT_S))

    def _failure(self, local_rank: int, exit_code: int) -> ProcessFailure:
        pid = self._pids.get(local_rank, 0)
        return ProcessFailure(local_rank, pid, exit_code, self.error_files[local_rank])

    def _stop(self, command: messages.StopWorkers) -> None:
        self._is_stopping = True
        self._client.send(command)
        asyncio.get_running_loop().call_later(command.timeout_s + GIVE_UP_S, self._give_up)

    def _give_up(self) -> None:
        if not self._over.is_set():
            _LOGGER.error("the supervisor does not answer and is killed")
            self._lose(-signal.SIGKILL)


class WorkerProcess(subprocess.Popen[bytes]):
    """The process of a worker. Not a child of this one: its supervisor reaps it."""

    stdin = stdout = stderr = None

    def __init__(self, context: PContext, local_rank: int, pid: int) -> None:
        self.pid = pid
        self.args = (str(context.entrypoint), *map(str, context.args[local_rank]))
        self._context, self._local_rank = context, local_rank
        self.poll()

    def poll(self) -> int | None:
        """Return its exit code, None while it runs; a signal's number, negated."""
        self.returncode = self._context._exit_codes.get(self._local_rank)  # noqa: SLF001 - its own
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. May raise ``subprocess.TimeoutExpired``."""
        self._context._wait_for(lambda: self.poll() is not None, timeout)  # noqa: SLF001
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


@dataclass
class SubprocessHandler:
    """One worker of a context."""

    local_rank_id: int
    proc: WorkerProcess

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM if not given, to the process group that the worker leads."""
        if self.proc.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


class SubprocessContext(PContext):
    """Runs a command for each worker; arguments of any type are passed as ``str(argument)``."""

    @property
    def subprocess_handlers(self) -> dict[int, SubprocessHandler]:
        """Each of them by local rank, once they have been started."""
        pids = sorted(self._pids.copy().items())
        return {rank: SubprocessHandler(rank, WorkerProcess(self, rank, pid)) for rank, pid in pids}

    def _launch(self) -> tuple[messages.StartWorkers, int, socket.socket]:
        args = {rank: tuple(map(str, self.args[rank])) for rank in range(self.nprocs)}
        command = self._command((str(self.entrypoint),), dict(os.environ), args=args)
        return (command, *launch_supervisor())


def _destination(stream: TextIO) -> int | TextIO:
    """Return the descriptor of a stream, or itself if it has none."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream
