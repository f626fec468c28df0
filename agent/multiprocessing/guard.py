"""Shell. The process that the standard library starts for a function, and the worker in it.

The process itself becomes a supervisor with one worker, which it forks before any of the user's
arguments are unpacked. That way a function has what a command has: an own session, somebody who
ends it with all that it has started, and an end when the launcher dies.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import traceback
import warnings
from contextlib import ExitStack, suppress
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

from agent.multiprocessing.signals import is_ours
from agent.workers.supervisor.prctl import ProcessControl
from agent.workers.supervisor.process import Supervisor, end_everything, ignorable_signals
from agent.workers.supervisor.spawn import SpawnError, opened_outputs
from worker_sdk import record

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from agent.workers.supervisor.messages import StartWorkers, WorkerStart


class Call:
    """A function with its arguments, packed until the worker is there to unpack them.

    Args:
        function: What to call.
        args: Its positional arguments.
    """

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args

    def unpack(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """Return function and arguments."""
        return self._function, self._args

    def __reduce__(self) -> tuple[type[PackedCall], tuple[bytes]]:
        # Within the pickling of a process, where queues and locks may be handed over.
        return PackedCall, (bytes(ForkingPickler.dumps((self._function, self._args))),)


class PackedCall:
    """What becomes of a `Call` on its way to another interpreter."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def unpack(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """Return function and arguments; imports where the function is from."""
        function, args = pickle.loads(self._data)  # noqa: S301 - from our own launcher
        return function, args


class ResultFile:
    """Takes the value that a function returns: a file without a name, so of any size.

    Unlike in a pipe, a large value waits for nobody to read it.

    Args:
        fd: Descriptor of the file, owned by this object's maker.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], ResultFile], tuple[Any]]:
        return _rebuild_result_file, (DupFd(self._fd),)

    def write(self, value: object) -> None:
        """Keep `value`.

        Raises:
            TypeError: It cannot be pickled.
            OSError: It does not fit on the disk.
        """
        with open(os.dup(self._fd), "wb") as file:  # noqa: PTH123 - a descriptor
            try:
                pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
                raise TypeError(
                    f"the return value, a {type(value).__qualname__}, cannot be pickled: {error}"
                ) from error

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def _rebuild_result_file(fd: Any) -> ResultFile:
    return ResultFile(fd.detach())


class _WorkerBegun(BaseException):
    """Leads the forked worker out of its supervisor's stack."""


class ForkSpawner:
    """Forks the worker; see `agent.workers.supervisor.spawn.WorkerSpawner`.

    Args:
        control: Made before the fork.
        handlers: Dispositions of signals that the worker is to have.
        end: This process's end of the connection to the launcher.
    """

    def __init__(
        self, control: ProcessControl, handlers: Mapping[int, Any], end: socket.socket
    ) -> None:
        self._control = control
        self._handlers = handlers
        self._end = end

    def spawn(self, _command: StartWorkers, worker: WorkerStart) -> int:
        """Return the pid of the worker, when it leads its own session.

        Raises:
            SpawnError: It could not be started.
        """
        guard_pid = os.getpid()
        with ExitStack() as stack:
            outputs = stack.enter_context(opened_outputs(worker))
            ready_fd, begun_fd = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, ready_fd)
            _flush()
            try:
                with warnings.catch_warnings():
                    # Threads that an import has started are told of forks by their libraries.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    pid = os.fork()
            except OSError as error:
                os.close(begun_fd)
                raise SpawnError(error.errno or 0, f"cannot fork: {error.strerror}") from error
            if pid == 0:
                self._become_worker(guard_pid, worker.env, outputs)
            os.close(begun_fd)
            if pid == 0:
                raise _WorkerBegun
            # Signals for its process group must find the group. What libraries do in a forked child
            # may never end, but a launcher may.
            begun = select.poll()
            begun.register(ready_fd, select.POLLIN)
            begun.register(self._end, 0)
            begun.poll()
            return pid

    def _become_worker(
        self, guard_pid: int, env: Mapping[str, str], outputs: Mapping[int, int]
    ) -> None:
        os.setsid()
        self._control.die_with(guard_pid)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.environ.update(env)
        for number, fd in outputs.items():
            _redirect(number, fd)


def serve(end: socket.socket, call: Call | PackedCall, result: ResultFile) -> None:
    """Hold one worker that makes the call; returns in the worker only, when it is made.

    Args:
        end: This process's end of the connection to the launcher.
        call: What the worker is to do.
        result: Takes what it returns.

    Raises:
        BaseException: What the function has raised, in the worker, recorded in its error file.
    """
    handlers = _ignore_signals()
    control = ProcessControl()
    control.become_subreaper()
    supervisor = Supervisor(end, ForkSpawner(control, handlers, end))
    try:
        supervisor.run()
    except _WorkerBegun:
        supervisor.close()
        end.close()
    except BaseException:  # noqa: BLE001 - nothing but the worker may return from here
        traceback.print_exc()
        _end(1)
    else:
        _end(0)
    record(_make_call)(call, result)


def _make_call(call: Call | PackedCall, result: ResultFile) -> None:
    function, args = call.unpack()
    value = function(*args)
    if value is not None:
        result.write(value)


def _ignore_signals() -> dict[int, Any]:
    """Ignore what the supervisor ignores; return the dispositions for the worker."""
    handlers: dict[int, Any] = {}
    for number in ignorable_signals():
        handler = signal.signal(number, signal.SIG_IGN)
        if is_ours(handler):
            # Of the forked launcher. A worker is to end of the signal.
            is_interrupt = number == signal.SIGINT
            handler = signal.default_int_handler if is_interrupt else signal.SIG_DFL
        handlers[number] = signal.SIG_DFL if handler is None else handler
    return handlers


def _redirect(number: int, fd: int) -> None:
    os.dup2(fd, number)
    name = "stdout" if number == 1 else "stderr"
    stream = getattr(sys, name)
    with suppress(AttributeError, OSError, ValueError):
        # In a forked launcher the stream may lead somewhere else.
        if stream.fileno() != number:
            os.dup2(fd, stream.fileno())
    with suppress(AttributeError, OSError, ValueError):
        stream.reconfigure(line_buffering=True)  # Whoever follows the file sees whole lines.


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _end(code: int) -> NoReturn:
    is_all_gone = end_everything()
    _flush()
    os._exit(code if is_all_gone else 1)
