"""Shell. What can be seen of a process that seems to hang: its stacks and its state.

Python's fault handler writes the stacks itself, upon a signal and whichever thread holds the
interpreter's lock. The signal is sent only to a process that is the worker or one of
its descendants, and only if it catches it: any other would die of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.watchdog.core.model import Evidence

log = structlog.get_logger()

STACKS_BYTES_MAX = 64 * 1024
"""More stacks than this are cut: those of the latest threads, for the first is written last."""

STACKS_READ_MAX = 16 * STACKS_BYTES_MAX
"""A process that writes more than this is not listened to any longer."""

QUIET_S = 0.003
"""After so long without more the process is asked whether it has written all of them."""

ANCESTORS_MAX = 64
"""How far below its worker a process may be."""

_KERNEL_STACK_LINES_MAX = 12
_READ_BYTES = 65536
_PROC = Path("/proc")
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, not to be interrupted"} | {
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """What the kernel says of a process."""

    state: str
    threads: int
    tracer_pid: int
    caught: int
    blocked: int
    """Of its first thread."""
    pending: int

    @property
    def is_alive(self) -> bool:
        """Whether it runs; one whose first thread has ended may have others."""
        return self.state not in "ZX" or self.threads > 1


async def take_evidence(
    worker_pid: int,
    stacks_fd: int,
    *,
    owner_pid: int = 0,
    stack_signal: int = 0,
    timeout_s: float,
) -> Evidence:
    """Return what can be had within the time; never raises because of the process.

    Args:
        worker_pid: The worker's process.
        stacks_fd: Where the stacks arrive.
        owner_pid: The process that its board names, 0 if none; not believed.
        stack_signal: The signal that its board names, 0 if none; not believed.
        timeout_s: Longest wait for the stacks.
    """
    pid, why, stacks = owner_pid or worker_pid, "", ""
    if owner_pid and (why := _why_not_ours(owner_pid, worker_pid)):
        pid = worker_pid
    worker, status = _status(worker_pid), _status(pid)
    if status is None or worker is None:
        gone = "the worker's process is gone" if worker is None else f"process {pid} is gone"
        return Evidence(notes=gone, is_alive=worker is not None and worker.is_alive)
    notes = _describe(pid, status)
    is_traced = status.tracer_pid != 0 or worker.tracer_pid != 0
    if not owner_pid or not stack_signal:
        why = "the worker does not use the SDK, or offers none"
    elif not why and not is_traced:
        stacks, why = await _take_stacks(pid, worker_pid, stacks_fd, stack_signal, timeout_s)
    if why and not is_traced:
        notes += f"; no stacks: {why}"
    return Evidence(
        stacks=stacks,
        notes=notes,
        is_traced=is_traced,
        is_stopped="T" in (status.state, worker.state),
        is_alive=worker.is_alive,
    )


async def _take_stacks(
    pid: int, worker_pid: int, stacks_fd: int, number: int, timeout_s: float
) -> tuple[str, str]:
    """Return the stacks, and if there are none, why."""
    status = _status(pid)
    if status is None:
        return "", f"process {pid} is gone"
    if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not status.caught >> (number - 1) & 1:
        return "", f"signal {number} is not caught by process {pid}"
    is_stopped = status.state == "T"
    with ExitStack() as stack:
        try:
            # From here on the number can't come to mean another process.
            process = os.pidfd_open(pid)
            stack.callback(os.close, process)
            if why := _why_not_ours(pid, worker_pid):
                return "", why
            fd = os.dup(stacks_fd)  # the board may be closed meanwhile
            stack.callback(os.close, fd)
            _drain(fd)
            signal.pidfd_send_signal(process, number)
            if is_stopped:  # or it would not see the signal
                signal.pidfd_send_signal(process, signal.SIGCONT)
        except OSError as error:
            return "", f"process {pid} can't be signalled: {error.strerror}"
        text = await _collect(fd, timeout_s, lambda: _is_writing(pid, number, status))
        if is_stopped:  # as it was found
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGSTOP)
    return text, "" if text else f"none came within {timeout_s:g} s"


def _drain(fd: int) -> None:
    """Drop what is in a pipe; bounded, in case a process never stops to write."""
    with suppress(BlockingIOError):
        for _ in range(64):
            os.read(fd, _READ_BYTES)


async def _collect(fd: int, timeout_s: float, is_writing: Callable[[], bool]) -> str:
    """Return what comes within the time, until nothing more does."""
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
                piece = os.read(fd, _READ_BYTES)
                heard += len(piece)
                data += piece
                del data[:-STACKS_BYTES_MAX]
                patience_s = QUIET_S
    finally:
        loop.remove_reader(fd)
    text = data.decode("utf-8", "replace")
    if heard > len(data):
        text = "(cut)\n" + text.partition("\n")[2]
    return _first_thread_first("".join(c if _is_plain(c) else "?" for c in text))


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _first_thread_first(stacks: str) -> str:
    """Turn the order of the threads round: users look for the main thread."""
    blocks = [block for block in stacks.split("\n\n") if block.strip()]
    return "\n\n".join(block.strip("\n") for block in reversed(blocks)) + "\n" if blocks else ""


def _is_writing(pid: int, number: int, before: _Status) -> bool:
    """Whether a process has yet to handle a signal, or is about it.

    A handler's own signal is blocked meanwhile. It runs in the first thread, unless
    that one blocks it anyway.
    """
    now = _status(pid)
    if now is None or before.blocked >> (number - 1) & 1:
        return False
    return bool((now.blocked | now.pending) >> (number - 1) & 1)


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
    try:
        return worker_pid in lineage(pid)
    except OSError:
        return False


def signal_below(pid: int, worker_pid: int, signum: int) -> None:
    """Send a signal to a process below a worker; one that has gone does not get it."""
    with ExitStack() as stack:
        try:
            # From here on the number can't come to mean another process.
            process = os.pidfd_open(pid)
            stack.callback(os.close, process)
            if is_below(pid, worker_pid):
                signal.pidfd_send_signal(process, signum)
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
        lines = (_PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in lines if ":" in line)
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
    count = "1 thread" if status.threads == 1 else f"{status.threads} threads"
    text = f"process {pid}: {state}, {count}"
    if status.tracer_pid:
        text += f", traced by process {status.tracer_pid}"
    waits_in = _read(pid, "wchan").strip()
    if waits_in not in ("", "0"):
        text += f", its first thread waits in {waits_in}"
    kernel = _read(pid, "stack").splitlines()[:_KERNEL_STACK_LINES_MAX]
    if kernel:
        text += ", kernel stack: " + " < ".join(line.rpartition(" ")[2] for line in kernel)
    return text


def _read(pid: int, name: str) -> str:
    """Return a file of a process; empty if it is not for us to read."""
    try:
        return (_PROC / str(pid) / name).read_text("utf-8", "replace")
    except OSError:
        return ""
