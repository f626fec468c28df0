"""Shell. Starts one worker process, and says in a sentence why it could not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent.workers.supervisor import prctl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from agent.workers.supervisor.messages import StartWorkers, WorkerStart

_SCRIPT_LINE_BYTES_MAX = 256
"""What the kernel reads of a script's first line."""


class SpawnError(Exception):
    """A process could not be started; fields as in `WorkerStartFailed`."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)
        self.errno = number
        self.message = message


class WorkerSpawner(Protocol):
    """How a supervisor starts its workers."""

    def spawn(self, command: StartWorkers, worker: WorkerStart) -> int:
        """Return the pid of a worker that has begun, and that the caller reaps.

        Raises ``SpawnError``; then nothing is left of the attempt.
        """
        ...


class Spawner:
    """Starts processes that die with this one, which must have a single thread.

    Each leads its own session and process group, inherits nothing but the standard streams and its
    ``fds``, and has the default disposition of every signal. ``handlers`` are the dispositions
    from before this process ignored them.
    """

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        self._pid = os.getpid()
        # An ignored signal stays ignored across exec, so a worker would never notice its stop.
        # nohup: what ignores a hangup from the start hands that on.
        self._ignored = tuple(
            number
            for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
            and not (number == signal.SIGHUP and handlers.get(number) is signal.SIG_IGN)
        )

    def spawn(self, command: StartWorkers, worker: WorkerStart) -> int:
        """Return the pid of a process that has begun to execute the command; may raise."""
        argv, env = (*command.argv, *worker.args), {**command.env, **worker.env}
        with opened_outputs(worker) as outputs:
            try:
                # The child of a single-threaded process may run Python before exec.
                process = subprocess.Popen(  # noqa: S603 - running what the user asked for
                    argv,
                    env=env,
                    stdout=outputs.get(1),
                    stderr=outputs.get(2),
                    pass_fds=worker.fds,
                    start_new_session=True,
                    preexec_fn=partial(self._prepare_child, worker.cpus),  # noqa: PLW1509
                )
            except OSError as error:
                message = describe_start_failure(argv[0], env, error)
                raise SpawnError(error.errno or 0, message) from error
            except (ValueError, subprocess.SubprocessError) as error:
                raise SpawnError(0, f"cannot start {argv[0]}: {error}") from error
        # The caller reaps; the object must not try, nor warn that it was not done.
        process.returncode = 0
        return process.pid

    def _prepare_child(self, cpus: Collection[int]) -> None:
        if cpus:
            # It fails if all of them were taken from us since they were chosen. Where a worker
            # runs decides how fast it is; that is no reason for it not to run.
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)
        for number in self._ignored:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prctl.die_with(self._pid)


@contextmanager
def opened_outputs(worker: WorkerStart) -> Iterator[dict[int, int]]:
    """Open the files that a worker's streams lead to, by 1 and 2; may raise ``SpawnError``."""
    with ExitStack() as stack:
        outputs = {}
        for number, path in ((1, worker.stdout), (2, worker.stderr)):
            if path:
                outputs[number] = open_output(path)
                stack.callback(os.close, outputs[number])
        yield outputs


def open_output(path: str) -> int:
    """Return a descriptor of the emptied file that is to take a worker's output.

    Never waits, so a pipe needs a reader by now. Everything is appended, so that a file which
    another process cuts meanwhile gets no hole. A terminal does not become that of this process's
    session. Raises ``SpawnError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NOCTTY | os.O_NONBLOCK, 0o666)
    except OSError as error:
        why = "it is a pipe without a reader" if error.errno == errno.ENXIO else error.strerror
        message = f"cannot write the worker's output to {path}: {why}"
        raise SpawnError(error.errno or 0, message) from error
    os.set_blocking(fd, True)  # The worker itself is to wait where a pipe is full.
    return fd


def describe_start_failure(program: str, env: Mapping[str, str], error: OSError) -> str:
    """Return a sentence that names the file and what is wrong with it."""
    path = _find(program, env)
    match error.errno:
        case errno.ENOENT if path is None and "/" in program:
            problem = "it does not exist"
        case errno.ENOENT if path is None:
            problem = f"it was not found in the PATH {env.get('PATH', os.defpath)!r}"
        case errno.ENOENT:
            problem = f"its interpreter {_interpreter(path)} does not exist"
        case errno.EACCES if path is not None and path.is_dir():
            problem = "it is a directory, not a program"
        case errno.EACCES if path is not None and not os.access(path, os.X_OK):
            problem = "it is not executable"
        case errno.ENOEXEC:
            problem = "it is neither a program nor a script with a #! line"
        case errno.E2BIG:
            problem = (
                "its arguments and environment exceed what the system takes "
                "(128 KiB for one string, usually 2 MiB in all)"
            )
        case _:
            problem = error.strerror or str(error)
    return f"cannot start {path or program}: {problem}"


def _find(program: str, env: Mapping[str, str]) -> Path | None:
    """Return the file that `program` means in `env`, executable or not, or None."""
    if "/" in program:
        candidates = [Path(program)]
    else:
        candidates = [Path(folder, program) for folder in os.get_exec_path(env)]
    found = [path for path in candidates if os.path.lexists(path)]
    return next((path for path in found if os.access(path, os.X_OK)), next(iter(found), None))


def _interpreter(path: Path | None) -> str:
    """Return the interpreter that the file names in its #! line, as text."""
    if path is None:
        return "(unknown)"
    try:
        with path.open("rb") as file:
            line = file.readline(_SCRIPT_LINE_BYTES_MAX)
    except OSError:
        return "(unknown)"
    words = line[2:].split(maxsplit=1) if line.startswith(b"#!") else []
    # Without a #! line, it is a program whose dynamic loader is missing.
    return repr(os.fsdecode(words[0])) if words else "(dynamic loader)"
