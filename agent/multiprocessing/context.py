"""Shell. A set of workers that succeed or fail together."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agent.errors import ProcessFailure
from agent.multiprocessing import signals
from agent.multiprocessing.keeper import ROUND_ID, Keeper
from agent.workers.output.tail import STALL_S, Tail
from agent.workers.supervisor import messages
from agent.workers.supervisor.worker_group import KILL_WAIT_S
from worker_sdk.interpreter.signal_wakeup import wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.workers.output.logs import LogsSpecs

_LOGGER = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30
"""From SIGTERM to SIGKILL, where the caller does not say otherwise."""

GIVE_UP_S = KILL_WAIT_S + 5.0
"""How long after its SIGKILL is due a supervisor may be silent; then it is killed itself."""


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
    """Check that there is an entry for every local rank and nothing else.

    Raises:
        RuntimeError: There is not.
    """
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
        name: What the workers are, for people.
        entrypoint: What each of them runs.
        args: Arguments by local rank.
        envs: Environment variables by local rank, on top of this process's.
        stdouts: Files of the standard outputs; "" is the console.
        stderrs: Files of the standard errors; "" is the console.
        error_files: Files for the errors that the workers die of.
        filtered_stdout: Takes the selected lines of all standard outputs; None without filters.
        filtered_stderr: The same for the standard errors.
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
        _check_envs(envs)
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
        self._lock = threading.RLock()
        self._keepers: list[Keeper] = []
        self._pids: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._failures: dict[int, ProcessFailure] = {}
        self._stopped_ranks: set[int] = set()
        self._start_failure: messages.WorkerStartFailed | None = None
        self._give_up_at: float | None = None
        self._is_started = False
        self._result: RunProcsResult | None = None
        self._waiters = 0
        self._selector: selectors.EpollSelector | None = None
        self._tail: Tail | None = None
        self._is_handling_signals = False

    @abstractmethod
    def _start(self) -> None:
        """Start the workers: add a keeper for each with `_add_keeper`.

        Raises:
            OSError: A worker cannot be started.
        """

    @abstractmethod
    def _take_return_values(self) -> dict[int, Any]:
        """Return what the workers have returned; a bad value becomes a failure."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what `_start` took, apart from the keepers."""

    def start(self) -> None:
        """Start the workers.

        In the main thread, SIGTERM, SIGINT, SIGHUP and SIGQUIT (or what
        ``TORCHELASTIC_SIGNALS_TO_HANDLE`` names) raise `SignalException` from now until the
        workers have ended or been closed.

        Raises:
            ValueError: They were started already.
            OSError: A command cannot be started; call `close` for the others.
        """
        if self._is_started:
            raise ValueError("the workers were started already, allowed is once")
        self._is_started = True
        with signals.held(), self._lock:
            self._selector = selectors.EpollSelector()
            self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector.register(self._wakeup_fd, selectors.EVENT_READ)
            self._is_handling_signals = signals.install()
            for path in (*self.stdouts.values(), *self.stderrs.values()):
                if path:
                    # Also a worker that is stopped before it has begun has these files.
                    Path(path).touch()
            self._start()
            self._start_tail()

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
        deadline = None if timeout < 0 else time.monotonic() + timeout
        self._pump(deadline, lambda: self._result is not None)
        return self._result

    def pids(self) -> dict[int, int]:
        """Return the process of each worker; one that could not be started has none.

        Raises:
            RuntimeError: They were not started.
        """
        self._pump(None, self._is_start_over)
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
        with signals.held(), self._lock:
            self._stop(death_sig or signal.SIGTERM, timeout)
        self._pump(None, lambda: self._result is not None)

    def _add_keeper(self, keeper: Keeper) -> None:
        assert self._selector is not None, "a keeper before the start"
        self._keepers.append(keeper)
        self._selector.register(keeper, selectors.EVENT_READ)

    def _is_start_over(self) -> bool:
        return all(keeper.is_started or keeper.is_done for keeper in self._keepers)

    def _start_tail(self) -> None:
        streams = (
            (self._logs.tee_stdouts, sys.stdout, self._filters[0], self.filtered_stdout),
            (self._logs.tee_stderrs, sys.stderr, self._filters[1], self.filtered_stderr),
        )
        for paths, stream, filters, filtered in streams:
            shown = {rank: path for rank, path in paths.items() if path != os.devnull}
            if not shown or stream is None:
                continue
            self._tail = self._tail or Tail()
            for rank, path in shown.items():
                prefix = self._prefixes.get(rank, f"[{self.name}{rank}]:")
                self._tail.add(
                    path,
                    _destination(stream),
                    prefix=prefix.encode(),
                    filters=filters,
                    filtered=None if filtered is None else _destination(filtered),
                )

    def _pump(self, deadline: float | None, is_over: Callable[[], bool]) -> None:
        """Take what the supervisors say until something is over, or until the deadline.

        It looks at least once. Several threads may be here at the same time.
        """
        if not self._is_started:
            raise RuntimeError("the workers were not started")
        is_waiter = False
        try:
            with signals.held(), self._lock:
                if self._selector is None:
                    return  # All is over.
                selector = self._selector
                self._waiters += 1
                is_waiter = True
                self._advance()
            while not is_over():
                wait_readable(selector.fileno(), self._left_s(deadline))
                ready = [key.fileobj for key, _ in selector.select(0)]
                with signals.held(), self._lock:
                    for keeper in [keeper for keeper in self._keepers if keeper in ready]:
                        if not keeper.is_done:
                            self._listen(keeper)
                    self._advance()
                if deadline is not None and time.monotonic() >= deadline:
                    return
        finally:
            with signals.held(), self._lock:
                self._waiters -= is_waiter
                if self._result is not None and not self._waiters and self._selector is not None:
                    self._selector.close()
                    self._selector = None
                    os.close(self._wakeup_fd)
            signals.restore_unused()

    def _left_s(self, deadline: float | None) -> float | None:
        moments = [moment for moment in (deadline, self._give_up_at) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _listen(self, keeper: Keeper) -> None:
        events = keeper.receive()
        if events is None:
            self._on_lost(keeper)
            return
        for event in events:
            match event:
                case messages.WorkersStarted(pids=pids):
                    keeper.is_started = True
                    self._pids.update(pids)
                case messages.WorkerStartFailed():
                    keeper.is_started = True
                    self._start_failure = event
                case messages.WorkerExit():
                    self._pids[event.local_rank] = event.pid
                    self._on_exit(event.local_rank, event.exit_code, is_stopped=event.is_stopped)
                case messages.WorkersStopped(stuck_pids=stuck_pids):
                    self._retire(keeper)
                    if stuck_pids:
                        _LOGGER.error(
                            "processes %s do not even end of SIGKILL, probably because of a "
                            "device; this host may have to be restarted",
                            list(stuck_pids),
                        )

    def _retire(self, keeper: Keeper) -> None:
        """Listen to it no more."""
        assert self._selector is not None, "an event after the end"
        self._selector.unregister(keeper)
        keeper.is_done = True

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

    def _fail(self, local_rank: int, exit_code: int) -> None:
        self._failures[local_rank] = ProcessFailure(
            local_rank=local_rank,
            pid=self._pids.get(local_rank, 0),
            exitcode=exit_code,
            error_file=self.error_files[local_rank],
        )

    def _on_lost(self, keeper: Keeper) -> None:
        """Take the end of a supervisor that was not asked to end."""
        self._retire(keeper)
        exit_code = keeper.close()
        self._keepers.remove(keeper)
        # One that had begun takes its workers with it. One that had not speaks for its worker.
        code = -signal.SIGKILL if keeper.is_started else exit_code or 1
        for local_rank in keeper.local_ranks:
            if local_rank not in self._exit_codes:
                self._on_exit(local_rank, code, is_stopped=self._give_up_at is not None)

    def _advance(self) -> None:
        """Do what follows from what has happened."""
        if self._result is not None:
            return
        is_failed = self._failures.keys() - self._stopped_ranks
        if self._give_up_at is None and (is_failed or len(self._exit_codes) == self.nprocs):
            # In the second case for what the workers have left behind.
            self._stop(signal.SIGTERM, STOP_TIMEOUT_S)
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            _LOGGER.error("a supervisor does not answer and is killed")
            for keeper in [keeper for keeper in self._keepers if not keeper.is_done]:
                keeper.kill()
                self._on_lost(keeper)
        if all(keeper.is_done for keeper in self._keepers):
            self._finish()

    def _stop(self, number: int, timeout_s: float) -> None:
        command = messages.StopWorkers(
            round_id=ROUND_ID, signum=int(number), timeout_s=max(0.0, float(timeout_s))
        )
        for keeper in self._keepers:
            if not keeper.is_done:
                keeper.send(command)
                if not keeper.is_started:
                    keeper.interrupt_start()
        give_up_at = time.monotonic() + command.timeout_s + GIVE_UP_S
        self._give_up_at = min(self._give_up_at or give_up_at, give_up_at)
        if not self._keepers:
            self._finish()

    def _finish(self) -> None:
        """Give everything back and make the result."""
        if self._result is not None:
            return
        for keeper in self._keepers:
            keeper.close()
        self._keepers.clear()
        if self._tail is not None:
            # A launcher that is told to end does not wait for a console that takes nothing.
            with signals.hurrying(self._tail.hurry):
                self._tail.close(self.tee_stall_s)
        self._close_filtered()
        self._result = self._make_result()
        self._release()
        if self._is_handling_signals:
            signals.uninstall()
        # Other threads may be waiting for what will not be said any more.
        os.eventfd_write(self._wakeup_fd, 1)

    def _make_result(self) -> RunProcsResult:
        is_complete = len(self._exit_codes) == self.nprocs and not self._failures
        values = self._take_return_values() if is_complete else {}
        return RunProcsResult(
            return_values={} if self._failures else values,
            failures=self._reported(self._failures),
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def _reported(self, failures: dict[int, ProcessFailure]) -> dict[int, ProcessFailure]:
        """Return the failures without those of workers stopped because of another: its victims."""
        own = {rank: fail for rank, fail in failures.items() if rank not in self._stopped_ranks}
        return own or failures

    def _close_filtered(self) -> None:
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file is not None:
                file.close()


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


def _check_envs(envs: Mapping[int, Mapping[str, str]]) -> None:
    for rank, env in envs.items():
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"envs[{rank}][{name!r}]: is {value!r}, must be a string")
