"""Shell. A set of workers that succeed or fail together.

A supervisor holds them, as it holds an agent's; a thread of this module is its client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agent.errors import ProcessFailure
from agent.multiprocessing import signals
from agent.workers.output.tail import STALL_S, Tail
from agent.workers.supervisor.client import SupervisorClient
from agent.workers.supervisor.messages import (
    StartWorkers,
    StopWorkers,
    SupervisorEvent,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
)
from agent.workers.supervisor.worker_group import KILL_WAIT_S
from worker_sdk.interpreter.signal_wakeup import wait_readable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from agent.workers.output.logs import LogsSpecs

_LOGGER = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30
"""From SIGTERM to SIGKILL, where the caller does not say otherwise."""

GIVE_UP_S = KILL_WAIT_S + 5.0
"""How long after its SIGKILL is due a supervisor may be silent; then it is killed itself."""

ROUND_ID = 0
"""A context starts its workers once."""


@dataclass
class RunProcsResult:
    """How a set of workers has ended; all fields are by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    """What the functions have returned, None for a command; empty if one has failed."""
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    """What has failed by itself, in the order of failing; if all were stopped, those."""
    stdouts: dict[int, str] = field(default_factory=dict)
    """File with the standard output; "" if it went to the console."""
    stderrs: dict[int, str] = field(default_factory=dict)
    """File with the standard error; "" if it went to the console."""

    def is_failed(self) -> bool:
        """Return whether any worker has failed."""
        return bool(self.failures)


def validate_full_rank(mapping: Mapping[int, object], nprocs: int, what: str) -> None:
    """Raise RuntimeError unless there is an entry for every local rank and nothing else."""
    expected = set(range(nprocs))
    if set(mapping) != expected:
        raise RuntimeError(
            f"{what}: local ranks are {sorted(mapping)}, must be {sorted(expected)}, "
            f"one for each of {nprocs} workers"
        )


class PContext(ABC):
    """Runs a set of workers, of which either all succeed, or the first failure stops all.

    Not started until `start`. All methods may be called from any thread.

    Attributes:
        name, entrypoint, args, envs: As given to `start_processes`.
        stdouts, stderrs: Files of the standard streams by local rank; "" is the console.
        error_files: Files for the errors that the workers die of.
        filtered_stdout, filtered_stderr: Take the selected lines; None without filters.
        nprocs: How many workers there are.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - arguments that others use already
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        self.name = name
        self.nprocs = len(args)
        for rank, env in envs.items():
            for variable, value in env.items():
                if not isinstance(variable, str) or not isinstance(value, str):
                    raise TypeError(f"envs[{rank}][{variable!r}]: is {value!r}, must be a string")
        self._logs = logs_specs.reify(envs)
        validate_full_rank(self._logs.stdouts, self.nprocs, "stdouts")
        validate_full_rank(self._logs.stderrs, self.nprocs, "stderrs")
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.stdouts = self._logs.stdouts
        self.stderrs = self._logs.stderrs
        self.error_files = self._logs.error_files
        self.tee_stall_s = STALL_S
        self._prefixes = log_line_prefixes or {}
        self._filters = (duplicate_stdout_filters or [], duplicate_stderr_filters or [])
        self.filtered_stdout = _opened(self._logs.filtered_stdout, self._filters[0])
        self.filtered_stderr = _opened(self._logs.filtered_stderr, self._filters[1])
        self._is_started = False
        self._tail: Tail | None = None
        self._result: RunProcsResult | None = None
        self._mistake: BaseException | None = None
        # Of the callers that wait: each has a descriptor that is readable after a change.
        self._lock = threading.Lock()
        self._wakeups: set[int] = set()
        # All below belongs to the thread, which the others only look at.
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._client: SupervisorClient | None = None
        self._is_begun = False
        self._is_stopping = False
        self._start_failure: WorkerStartFailed | None = None
        self._pids: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._stopped_ranks: set[int] = set()

    @abstractmethod
    def _prepare(self) -> StartWorkers:
        """Return what the supervisor is to start; called once, if there are any workers."""

    @abstractmethod
    def _launch(self) -> tuple[int, socket.socket]:
        """Start the supervisor; return its pid and the connection to it."""

    @abstractmethod
    def _take_return_values(self) -> dict[int, Any]:
        """Return what the workers have returned; a bad value becomes a failure."""

    def _release(self) -> None:  # noqa: B027 - commands hold nothing
        """Give back what `_prepare` took."""

    def start(self) -> None:
        """Start the workers.

        In the main thread, SIGTERM, SIGINT, SIGHUP and SIGQUIT (or what
        ``TORCHELASTIC_SIGNALS_TO_HANDLE`` names) raise `SignalException` from now until the
        workers have ended or been closed.

        Raises:
            ValueError: They were started already, or the command is impossible.
            OSError: A worker cannot be started; call `close` for the others.
            SignalException: As above; call `close`.
        """
        if self._is_started:
            raise ValueError("the workers were started already, allowed is once")
        with signals.held():
            self._is_started = True
            if not self.nprocs:
                self._close_filtered()
                self._result = RunProcsResult()
                return
            signals.install(self)
            try:
                self._begin()
            except BaseException:
                self._release()
                self._close_filtered()
                self._result = RunProcsResult()
                signals.uninstall(self)
                raise
        self._wait_for(lambda: self._is_begun or self._result is not None)
        failure = self._start_failure
        if failure is not None and failure.errno:
            raise OSError(failure.errno, failure.message)
        if failure is not None:
            raise ValueError(failure.message)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:  # noqa: ARG002
        """Return how the workers have ended, as soon as all have succeeded or one has failed.

        Then nothing that they have started is alive any more: the first failure stops all.

        Args:
            timeout: In seconds. None is returned if they have not ended by then; a negative
                one never comes, and with 0 they are only looked at.
            period: Has no meaning: nothing is looked at periodically.

        Raises:
            SignalException: See `start`.
            RuntimeError: They were not started.
        """
        self._wait_for(lambda: self._result is not None, None if timeout < 0 else timeout)
        return self._result

    def pids(self) -> dict[int, int]:
        """Return the process of each worker; one that could not be started has none."""
        self._wait_for(lambda: self._is_begun or self._result is not None)
        return dict(self._pids)

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stop the workers, with all that they have started; return when they are gone.

        What has ended is not affected, and what was closed may be closed again.

        Args:
            death_sig: Sent first; None is SIGTERM.
            timeout: Seconds after which the rest gets SIGKILL.

        Raises:
            SignalException: See `start`. Close again.
        """
        if not self._is_started:
            self._close_filtered()
            return
        command = _stop_command(death_sig or signal.SIGTERM, timeout)
        if self._loop is not None:
            with suppress(RuntimeError):  # It has just ended.
                self._loop.call_soon_threadsafe(self._stop, command)
        self._wait_for(lambda: self._result is not None)

    def _workers(self, **particular: tuple[Any, ...]) -> tuple[WorkerStart, ...]:
        """Return what is to be started, with fields by local rank beside the common ones."""
        return tuple(
            WorkerStart(
                local_rank=rank,
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
                **{name: values[rank] for name, values in particular.items()},
            )
            for rank in range(self.nprocs)
        )

    def _wait_for(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until something is over, or the time; what a signal raises comes out."""
        if not self._is_started:
            raise RuntimeError("the workers were not started")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        wakeup = -1
        try:
            with signals.held(), self._lock:
                wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._wakeups.add(wakeup)
            while not is_over():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                wait_readable(wakeup, left_s)
                with suppress(BlockingIOError):
                    os.eventfd_read(wakeup)
        except signals.SignalException:
            # A launcher that is told to end does not wait for a console that takes nothing.
            self.tee_stall_s = 0.0
            if self._tail is not None:
                self._tail.hurry()
            raise
        finally:
            with signals.held():
                with self._lock:
                    self._wakeups.discard(wakeup)
                if wakeup >= 0:
                    os.close(wakeup)
                if self._result is not None and self._thread is not None:
                    self._thread.join()
                signals.restore_unused()
        if self._mistake is not None:
            raise RuntimeError("a mistake of ours; the workers have ended") from self._mistake

    def _notify(self) -> None:
        with self._lock:
            for wakeup in self._wakeups:
                os.eventfd_write(wakeup, 1)

    def _begin(self) -> None:
        for path in (*self.stdouts.values(), *self.stderrs.values()):
            if path:
                # Also a worker that is stopped before it has begun has these files.
                Path(path).touch()
        command = self._prepare()
        pid, connection = self._launch()
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
            thread = threading.Thread(target=self._run, name=f"{self.name} workers", daemon=True)
            thread.start()
        except BaseException:
            connection.close()
            os.waitpid(pid, 0)
            raise
        self._thread = thread

    def _start_tail(self) -> None:
        streams = (
            (self._logs.tee_stdouts, sys.stdout, self._filters[0], self.filtered_stdout),
            (self._logs.tee_stderrs, sys.stderr, self._filters[1], self.filtered_stderr),
        )
        default = {rank: f"[{self.name}{rank}]:" for rank in range(self.nprocs)}
        for paths, stream, filters, filtered in streams:
            if stream is None or not set(paths.values()) - {os.devnull}:
                continue
            self._tail = self._tail or Tail()
            self._tail.tee(
                *(paths, _destination(stream), default | dict(self._prefixes)),
                filters=filters,
                filtered=None if filtered is None else _destination(filtered),
            )

    # What follows runs in the thread.

    def _run(self) -> None:
        assert self._loop is not None, "made before the thread"
        # Signals are for the threads of the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        result = RunProcsResult(stdouts=self.stdouts, stderrs=self.stderrs)
        try:
            self._loop.run_until_complete(self._serve())
            if self._tail is not None:
                self._tail.close(self.tee_stall_s)
            result = self._make_result()
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            self._mistake = error
        finally:
            self._close_filtered()
            self._release()
            self._loop.close()
            signals.uninstall(self)
            self._result = result
            self._notify()

    async def _serve(self) -> None:
        assert self._client is not None, "made before the thread"
        await self._client.start()
        try:
            await self._over.wait()
        finally:
            await self._client.close()

    def _on_mistake(self, error: BaseException) -> None:
        self._mistake = error
        self._over.set()

    def _on_event(self, event: SupervisorEvent) -> None:
        match event:
            case WorkersStarted(pids=pids):
                self._pids.update(pids)
                self._is_begun = True
            case WorkerStartFailed():
                self._start_failure = event
                self._is_begun = True
            case WorkerExited():
                self._pids[event.local_rank] = event.pid
                self._on_exit(event.local_rank, event.exit_code, is_stopped=event.is_stopped)
            case WorkersStopped(stuck_pids=stuck_pids):
                if stuck_pids:
                    _LOGGER.error(
                        "processes %s do not even end of SIGKILL, probably because of a "
                        "device; this host may have to be restarted",
                        list(stuck_pids),
                    )
                self._over.set()
        self._notify()

    def _on_death(self, returncode: int) -> None:
        """Take the end of a supervisor that was not asked to end; its workers went with it."""
        self._lose(-signal.SIGKILL if self._is_begun else returncode or 1)

    def _lose(self, exit_code: int) -> None:
        is_stopped = self._is_stopping
        for local_rank in range(self.nprocs):
            if local_rank not in self._exit_codes:
                self._on_exit(local_rank, exit_code, is_stopped=is_stopped)
        self._over.set()
        self._notify()

    def _on_exit(self, local_rank: int, exit_code: int, *, is_stopped: bool) -> None:
        self._exit_codes[local_rank] = exit_code
        if is_stopped:
            self._stopped_ranks.add(local_rank)
        if exit_code != 0:
            self._fail(local_rank, exit_code)
            if not is_stopped:
                _LOGGER.error(
                    "%s%d failed: exit code %d, pid %d",
                    *(self.name, local_rank, exit_code, self._pids.get(local_rank, 0)),
                )
        is_failed = self._failures.keys() - self._stopped_ranks
        if not self._is_stopping and (is_failed or len(self._exit_codes) == self.nprocs):
            # In the second case for what the workers have left behind.
            self._stop(_stop_command(signal.SIGTERM, STOP_TIMEOUT_S))

    def _fail(self, local_rank: int, exit_code: int) -> None:
        self._failures[local_rank] = ProcessFailure(
            local_rank=local_rank,
            pid=self._pids.get(local_rank, 0),
            exitcode=exit_code,
            error_file=self.error_files[local_rank],
        )

    def _stop(self, command: StopWorkers) -> None:
        assert self._loop is not None, "started before it is stopped"
        assert self._client is not None, "started before it is stopped"
        self._is_stopping = True
        self._client.send(command)
        self._loop.call_later(command.timeout_s + GIVE_UP_S, self._give_up)

    def _give_up(self) -> None:
        if not self._over.is_set():
            _LOGGER.error("the supervisor does not answer and is killed")
            self._lose(-signal.SIGKILL)

    def _make_result(self) -> RunProcsResult:
        is_complete = len(self._exit_codes) == self.nprocs and not self._failures
        values = self._take_return_values() if is_complete else {}
        # The others were stopped because of another: its victims.
        own = {rank: e for rank, e in self._failures.items() if rank not in self._stopped_ranks}
        return RunProcsResult(
            return_values={} if self._failures else values,
            failures=own or self._failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def _close_filtered(self) -> None:
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file is not None:
                file.close()


def _stop_command(signum: int, timeout_s: float) -> StopWorkers:
    return StopWorkers(round_id=ROUND_ID, signum=int(signum), timeout_s=max(0.0, float(timeout_s)))


def refuse_numa_options(numa_options: object) -> None:
    """Raise ValueError if such options are given."""
    if numa_options is not None:
        raise ValueError(
            f"numa_options: {numa_options!r} is not supported, allowed is None; "
            f"start the workers through numactl instead"
        )


def _opened(path: str, filters: list[str]) -> TextIO | None:
    """Return the emptied file for selected lines, if any are to be selected."""
    return open(path, "w", errors="replace", buffering=1) if filters else None  # noqa: PTH123


def _destination(stream: TextIO) -> int | TextIO:
    """Return the descriptor of a stream, or itself if it has none."""
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream
