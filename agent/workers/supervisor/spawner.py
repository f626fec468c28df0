"""Shell. Starts workers and templates as processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from drumbeat.agent.model import messages
from drumbeat.agent.workers.supervisor.process_tree import die_with
from worker_sdk.context import OBSERVER

# Python runs `sitecustomize` of this folder before a worker's program.
STARTUP = str(Path(__file__).resolve().parents[1] / "startup")
PATH_VARIABLE = "PYTHONPATH"
_SCRIPT_LINE_BYTES_MAX = 256  # what the kernel reads of a script's first line

WorkerSpawner: TypeAlias = "Callable[[messages.StartWorkers, messages.WorkerStart], int]"
"""Returns the pid of a worker that has begun, and that the caller reaps.

Raises ``OSError`` with the sentence of `WorkerStartFailed`; then nothing is left of the attempt.
"""


class Spawner:
    """Starts processes that die with this one, which must have a single thread.

    Each leads its own session and process group, inherits nothing but the standard streams and its
    ``fds``, and has the default disposition of every signal but those that the command says it
    ignores. ``handlers`` are the dispositions from before this process ignored them.
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

    def __call__(self, command: messages.StartWorkers, worker: messages.WorkerStart) -> int:
        """Return the pid of a process that has begun to execute the command; may raise."""
        argv, env = (*command.argv, *worker.args), {**command.env, **worker.env}
        if OBSERVER in worker.env:
            env[PATH_VARIABLE] = with_first(STARTUP, env.get(PATH_VARIABLE))
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
                    preexec_fn=partial(self._prepare_child, worker.cpus, command.ignored),  # noqa: PLW1509
                )
            except OSError as error:
                raise OSError(error.errno, _describe_start_failure(argv[0], env, error)) from error
            except (ValueError, subprocess.SubprocessError) as error:
                raise OSError(0, f"cannot start {argv[0]}: {error}") from error
        # The caller reaps; the object must not try, nor warn that it was not done.
        process.returncode = 0
        return process.pid

    def _prepare_child(self, cpus: Collection[int], ignored: Collection[int]) -> None:
        if cpus:
            # It fails if all of them were taken from us since they were chosen. Where a worker
            # runs decides how fast it is; that is no reason for it not to run.
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with(self._pid)


def with_first(folder: str, path: str | None) -> str:
    """Return a path for modules that has a folder in front."""
    return f"{folder}{os.pathsep}{path}" if path else folder


@contextmanager
def opened_outputs(worker: messages.WorkerStart) -> Iterator[dict[int, int]]:
    """Open the emptied files that are to take a worker's output, by 1 and 2.

    Never waits, so a pipe needs a reader by now. Everything is appended, so that a file which
    another process cuts meanwhile gets no hole. A terminal does not become that of this process's
    session. Raises ``OSError`` with a sentence.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    outputs = {}
    with ExitStack() as stack:
        for number, path in ((1, worker.stdout), (2, worker.stderr)):
            if not path:
                continue
            try:
                fd = os.open(path, flags | os.O_NOCTTY | os.O_NONBLOCK, 0o666)
            except OSError as error:
                is_unread = error.errno == errno.ENXIO
                why = "it is a pipe without a reader" if is_unread else error.strerror
                sentence = f"cannot write the worker's output to {path}: {why}"
                raise OSError(error.errno, sentence) from error
            stack.callback(os.close, fd)
            os.set_blocking(fd, True)  # The worker itself is to wait where a pipe is full.
            outputs[number] = fd
        yield outputs


def find_program(program: str, search_path: str | None) -> tuple[str, str]:
    """Return the file that is meant by a path, or a name on ``PATH``, and what is wrong with it."""
    import shutil  # noqa: PLC0415 - a supervisor whose workers start needs no more modules

    folders = search_path or os.defpath
    if usable := shutil.which(program, path=folders):
        return usable, ""
    if file := shutil.which(program, os.F_OK, folders):
        return file, "it is not executable"
    if "/" in program:
        return program, "it is a directory" if Path(program).is_dir() else "there is no such file"
    return program, f"there is no such program on PATH, which is {search_path!r}"


def _describe_start_failure(program: str, env: Mapping[str, str], error: OSError) -> str:
    """Return a sentence that names the file and what is wrong with it."""
    path, problem = find_program(program, env.get("PATH"))
    match error.errno:
        case errno.ENOENT if not problem:
            line = b""
            with suppress(OSError), Path(path).open("rb") as file:
                line = file.readline(_SCRIPT_LINE_BYTES_MAX)
            words = line[2:].split(maxsplit=1) if line.startswith(b"#!") else []
            missing = f"interpreter {os.fsdecode(words[0])!r}" if words else "dynamic loader"
            problem = f"its {missing} does not exist"
        case errno.ENOEXEC:
            problem = "it is neither a program nor a script with a #! line"
        case errno.E2BIG:
            problem = (
                "its arguments and environment exceed what the system takes "
                "(128 KiB for one string, usually 2 MiB in all)"
            )
        case errno.EACCES if not os.access(path, os.F_OK):
            problem = f"{error.strerror} to a directory above it"
        case _:
            problem = problem or error.strerror or str(error)
    return f"cannot start {path}: {problem}"
