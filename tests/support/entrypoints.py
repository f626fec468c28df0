"""Functions that tests run in other processes, which import them from here."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumbeat.agent.multiprocessing import DefaultLogsSpecs, SignalException, start_processes

FOREVER_S = 600.0
IGNORES_SIGTERM = "trap '' TERM; echo $$ > {path}; while :; do sleep 600; done"
SLEEP_ELSEWHERE = "setsid sh -c 'echo $$ > {path}.new && mv {path}.new {path}; sleep 600' &"


def describe(word: str) -> dict[str, Any]:
    print(f"out of {word}")
    print(f"err of {word}", file=sys.stderr)
    os.system(f"echo child of {word}")
    return {
        "word": word,
        "pid": os.getpid(),
        "session": os.getsid(0),
        "variable": os.environ["DRUMBEAT_TEST"],
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    }


def make_bytes(count: int) -> bytes:
    return b"x" * count


def nothing() -> None:
    pass


def fail_or_sleep(has_to_fail: bool) -> None:
    if has_to_fail:
        raise ValueError("as asked")
    time.sleep(FOREVER_S)


def leave(code: int) -> None:
    sys.exit(code)


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def make_function() -> Callable[[], int]:
    return lambda: 1


class Awkward:
    """Can be pickled, but not be unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return _refuse, ("not here",)


def _refuse(reason: str) -> object:
    raise LookupError(reason)


def make_awkward() -> Awkward:
    return Awkward()


def take_awkward(_awkward: Awkward) -> None:
    raise AssertionError("was called")


def put(queue: Any, value: int) -> None:
    queue.put(value)


def _grandchild(path: str) -> None:
    Path(path).write_text("done")


def start_process(path: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=_grandchild, args=(path,))
    process.start()
    process.join()


def ignore_sigterm(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    time.sleep(FOREVER_S)


def leave_something(path: str) -> None:
    """Start a process in a session of its own, and return when it runs."""
    subprocess.run(["sh", "-c", SLEEP_ELSEWHERE.format(path=path)], check=True)
    while not Path(path).exists():
        time.sleep(0.005)


def run_nested() -> str:
    """Run workers of one's own, and be told of a signal while waiting for them."""
    from drumbeat.agent.multiprocessing import (
        DefaultLogsSpecs,
        SignalException,
        start_processes,
    )

    context = start_processes("inner", "sleep", {0: (600,)}, {0: {}}, DefaultLogsSpecs(os.devnull))
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        context.wait()
    except SignalException as error:
        context.close(error.sigval)
        return error.sigval.name
    return "nothing"


def launch_and_wait(queue: multiprocessing.Queue[dict[int, int]]) -> None:
    """Be a launcher whose queue has a thread, and which waits as soon as it has told its pids."""
    specs = DefaultLogsSpecs(os.devnull)
    context = start_processes("worker", "sleep", {0: (FOREVER_S,)}, {0: {}}, specs)
    try:
        queue.put(context.pids())
        context.wait()
    except SignalException as error:
        context.close(error.sigval)
        sys.exit(128 + error.sigval)
