"""Shell. What can be seen of a process that seems to hang: its stacks and its state.

A thread of the worker's runtime is asked for them first: it has them written while no other Python
code runs. If it does not answer, because native code holds the interpreter's lock, Python's fault
handler writes them upon a signal, whichever thread holds the lock; of threads that run, it has
crashed the process. The signal is sent only to a process that is the worker or one of its
descendants, and only if it catches it: any other would die of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import structlog

from agent.watchdog.hang import Evidence
from drumbeat.format import count, printable
from worker_sdk.board.layout import STACKS_END

log = structlog.get_logger()

# More stacks are cut: those of the latest threads, for the first is written last.
STACKS_BYTES_MAX = 64 * 1024
STACKS_READ_MAX = 16 * STACKS_BYTES_MAX  # who writes more is not listened to any longer
# Of the time there is, what a thread of the runtime has for its answer.
ASKED_SHARE = 0.4
QUIET_S = 0.003  # after so long without more the process is asked whether that was all
ANCESTORS_MAX = 64  # how far below its worker a process may be
_KERNEL_STACK_LINES_MAX = 12
_PROC = Path("/proc")
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, not to be interrupted"}
_STATES |= {"T": "stopped", "t": "stopped by a debugger", "Z": "ended"}


class _Status(NamedTuple):
    """What the kernel says of a process; ``blocked`` is of its first thread."""

    state: str
    threads: int
    tracer_pid: int
    caught: int
    blocked: int
    pending: int


class StackSource(NamedTuple):
    """Where the stacks of a worker come from.

    Its board names ``owner_pid`` and ``stack_signal``, 0 if it does not; they are not believed.
    A byte in ``ask_fd`` asks its runtime, None if that does not answer; they arrive at
    ``stacks_fd``.
    """

    stacks_fd: int
    ask_fd: int | None = None
    owner_pid: int = 0
    stack_signal: int = 0


async def take_evidence(worker_pid: int, source: StackSource, timeout_s: float) -> Evidence:
    """Return what can be had within the time; never raises because of the process."""
    owner_pid = source.owner_pid
    why, stacks = _why_not_ours(owner_pid, worker_pid) if owner_pid else "", ""
    pid = worker_pid if why or not owner_pid else owner_pid
    if (worker := _status(worker_pid)) is None:
        return Evidence(notes="the worker's process is gone", is_alive=False)
    # One whose first thread has ended may have others.
    is_alive = worker.state not in "ZX" or worker.threads > 1
    if (status := _status(pid)) is None:
        return Evidence(notes=f"process {pid} is gone", is_alive=is_alive)
    notes = _describe(pid, status)
    is_traced = status.tracer_pid != 0 or worker.tracer_pid != 0
    if not owner_pid or not source.stack_signal:
        why = "the worker does not use the SDK, or offers none"
    elif not why and not is_traced:
        try:
            with FileIO(os.pidfd_open(pid)) as process:  # its number may come to mean another
                if not (why := _why_not_ours(pid, worker_pid)):
                    stacks, why = await _take_stacks(
                        process.fileno(), pid, status, source, timeout_s
                    )
        except OSError as error:
            why = f"process {pid} can't be signalled: {error.strerror}"
    if why and not is_traced:
        notes += f"; no stacks: {why}"
    return Evidence(
        stacks=stacks,
        notes=notes,
        is_traced=is_traced,
        is_stopped="T" in (status.state, worker.state),
        is_alive=is_alive,
    )


async def _take_stacks(
    process: int, pid: int, status: _Status, source: StackSource, timeout_s: float
) -> tuple[str, str]:
    """Return the stacks, and if there are none, why."""
    number, text = source.stack_signal, ""
    if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not status.caught >> (number - 1) & 1:
        return "", f"signal {number} is not caught by process {pid}"
    is_stopped = status.state == "T"
    fd = os.dup(source.stacks_fd)  # the board may be closed meanwhile
    try:
        with suppress(BlockingIOError):  # drop what is there; if it never stops to write, some
            os.read(fd, STACKS_READ_MAX)
        if is_stopped:  # or it would not hear what it is asked
            signal.pidfd_send_signal(process, signal.SIGCONT)
        if source.ask_fd is not None:
            with suppress(BlockingIOError):  # it was asked often, and has answered nothing
                os.write(source.ask_fd, b"\n")
            text = await _collect(fd, timeout_s * ASKED_SHARE, lambda: True)
        if not text:
            signal.pidfd_send_signal(process, number)
            left_s = timeout_s if source.ask_fd is None else timeout_s * (1 - ASKED_SHARE)
            text = await _collect(fd, left_s, lambda: _is_writing(pid, number, status))
        if is_stopped:  # as it was found
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGSTOP)
    finally:
        os.close(fd)
    return text, "" if text else f"none came within {timeout_s:g} s"


async def _collect(fd: int, timeout_s: float, is_writing: Callable[[], bool]) -> str:
    """Return what comes within the time, until their end or nothing more."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    deadline, patience_s = loop.time() + timeout_s, timeout_s
    data, heard, is_over = bytearray(), 0, False
    loop.add_reader(fd, arrived.set)
    try:
        while heard < STACKS_READ_MAX and loop.time() < deadline and not is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline, loop.time() + patience_s)):
                    await arrived.wait()
            is_over = not arrived.is_set() and not is_writing()
            arrived.clear()
            with suppress(BlockingIOError):  # else also what came between the two
                piece = os.read(fd, STACKS_BYTES_MAX)
                heard += len(piece)
                data += piece
                del data[:-STACKS_BYTES_MAX]
                patience_s = QUIET_S
                is_over = is_over or piece.endswith(STACKS_END)
    finally:
        loop.remove_reader(fd)
    text = data.removesuffix(STACKS_END).decode("utf-8", "replace")
    if heard > len(data):
        text = "(cut)\n" + text.partition("\n")[2]
    # Users look for the main thread, which is written last.
    threads = [block.strip("\n") for block in printable(text).split("\n\n") if block.strip()]
    return "\n\n".join(reversed(threads)) + "\n" if threads else ""


def _is_writing(pid: int, number: int, before: _Status) -> bool:
    """Whether a process has yet to handle a signal, or is about it.

    A handler's own signal is blocked meanwhile. It runs in the first thread, unless
    that one blocks it anyway.
    """
    now, bit = _status(pid), 1 << (number - 1)
    return now is not None and not before.blocked & bit and bool((now.blocked | now.pending) & bit)


def lineage(pid: int) -> Iterator[int]:
    """Yield a process and those above it. Raises ``OSError`` for one that is gone or hidden."""
    for _ in range(ANCESTORS_MAX):
        yield pid
        # The name before it may hold anything but is in brackets.
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
        pid = int(text.rpartition(")")[2].split()[1])
        if pid <= 1:
            return


def is_below(pid: int, worker_pid: int) -> bool:
    """Return whether a process is the worker or one of its descendants."""
    with suppress(OSError):
        return worker_pid in lineage(pid)
    return False


def signal_below(pid: int, worker_pid: int, signum: int) -> None:
    """Send a signal to a process below a worker; one that has gone does not get it."""
    try:
        with FileIO(os.pidfd_open(pid)) as process:
            if is_below(pid, worker_pid):
                signal.pidfd_send_signal(process.fileno(), signum)
    except ProcessLookupError:
        pass
    except OSError as error:
        log.warning("signal failed", reason=error.strerror, pid=pid, signal=signum)


def _why_not_ours(pid: int, worker_pid: int) -> str:
    """Return why a process is not one to signal; empty if it is the worker or below it."""
    if not is_below(pid, worker_pid):
        return f"process {pid}, which the worker's board names, is not below it"
    try:
        is_same = (_PROC / str(pid) / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError as error:
        return f"process {pid} can't be looked at: {error.strerror}"
    return "" if is_same else f"process {pid} is in another pid namespace"


def _status(pid: int) -> _Status | None:
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return _Status(
        state=found.get("State", "?").strip()[:1],
        threads=int(found.get("Threads", "1")),
        tracer_pid=int(found.get("TracerPid", "0")),
        caught=int(found.get("SigCgt", "0"), 16),
        blocked=int(found.get("SigBlk", "0"), 16),
        pending=int(found.get("ShdPnd", "0"), 16),
    )


def _describe(pid: int, status: _Status) -> str:
    state = _STATES.get(status.state, status.state)
    text = f"process {pid}: {state}, {count(status.threads, 'thread')}"
    if status.tracer_pid:
        text += f", traced by process {status.tracer_pid}"
    with suppress(OSError):  # what follows may not be for us to read
        waits_in = (_PROC / str(pid) / "wchan").read_text("utf-8", "replace").strip()
        if waits_in not in ("", "0"):
            text += f", its first thread waits in {waits_in}"
        if kernel := (_PROC / str(pid) / "stack").read_text("utf-8", "replace").splitlines():
            calls = (line.rpartition(" ")[2] for line in kernel[:_KERNEL_STACK_LINES_MAX])
            text += f", kernel stack: {' < '.join(calls)}"
    return text
