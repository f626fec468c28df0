"""Shell. Collects evidence of a process that seems to hang: its stacks and its state.

Looking changes nothing: a thread of the worker's runtime is asked by a pipe, and has the stacks
written while no other Python code runs. It can't answer while native code holds the interpreter's
lock. Python's fault handler can, upon a signal; but a signal may end a system call early (EINTR),
so it is sent only with `may_signal`, and only to a process that is the worker or one of its
descendants, and that catches it: any other would die of it. A process that is stopped or traced is
neither asked nor signalled: only `/proc` is read.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import structlog

from drumbeat.agent.model.hang import ASKED_SHARE, HangEvidence
from drumbeat.text.format import count, printable
from worker_sdk.board.layout import STACKS_END

log = structlog.get_logger()

# More stacks are cut: those of the latest threads, for the first is written last.
STACKS_BYTES_MAX = 64 * 1024
STACKS_READ_MAX = 16 * STACKS_BYTES_MAX  # a process that writes more is not read any further
QUIET_S = 0.003  # after so long without more the process is asked whether that was all
# How much longer the answer to a signal is waited for while the process waits for a processor. It
# answers within milliseconds once it has one: this delays nothing on a host with idle cores.
STARVED_S = 2.0
ANCESTORS_MAX = 64  # how far below its worker a process may be
_KERNEL_STACK_LINES_MAX = 12
_PROC = Path("/proc")
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, not to be interrupted"}
_STATES |= {"T": "stopped by SIGSTOP or a similar signal (SIGCONT continues it)"}
_STATES |= {"t": "stopped by a debugger", "Z": "ended"}
_ASKED_BYTES_MAX = 4096  # of questions, each a byte
_NO_ANSWER = (
    "no answer within {:g} s; native code may hold the interpreter's lock, or its threads do not "
    "get to run"
)


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
    ``stacks_fd``. ``ask_observer`` asks the observer of a worker without a board of its own.
    """

    stacks_fd: int
    ask_fd: int | None = None
    owner_pid: int = 0
    stack_signal: int = 0
    ask_observer: Callable[[float], Awaitable[bytes]] | None = None


async def take_evidence(
    worker_pid: int,
    source: StackSource,
    timeout_s: float,
    *,
    may_signal: bool = False,
    starved_s: float = 0.0,
) -> HangEvidence:
    """Return what can be had within the time; never raises because of the process.

    A process that waits for a processor gets up to ``starved_s`` more to answer a signal.
    """
    owner_pid = source.owner_pid
    why, stacks = _why_not_ours(owner_pid, worker_pid) if owner_pid else "", ""
    pid = worker_pid if why or not owner_pid else owner_pid
    if (worker := _status(worker_pid)) is None:
        return HangEvidence(notes="the worker's process is gone", is_alive=False)
    # One whose first thread has ended may have others.
    is_alive = worker.state not in "ZX" or worker.threads > 1
    if (status := _status(pid)) is None:
        return HangEvidence(notes=f"process {pid} is gone", is_alive=is_alive)
    notes = _describe(pid, status)
    is_traced = status.tracer_pid != 0 or worker.tracer_pid != 0
    if is_traced or status.state == "T":
        why = why or "a process that is stopped or traced is not asked"
    elif not owner_pid and source.ask_observer is not None:
        stacks = _main_thread_first((await source.ask_observer(timeout_s)).decode(errors="replace"))
        why = "" if stacks else _NO_ANSWER.format(timeout_s)
    elif not owner_pid or (source.ask_fd is None and not source.stack_signal):
        why = "the worker has no observer, and does not use the SDK or its SDK gives no stacks"
    elif not why:
        try:
            with FileIO(os.pidfd_open(pid)) as process:  # its number may come to mean another
                if not (why := _why_not_ours(pid, worker_pid)):
                    stacks, why = await _take_stacks(
                        *(process.fileno(), pid, source, timeout_s),
                        may_signal=may_signal,
                        starved_s=starved_s,
                    )
        except OSError as error:
            why = f"process {pid} can't be asked: {error.strerror}"
    if why:
        notes += f"; no stacks: {why}"
    return HangEvidence(
        stacks=stacks,
        notes=notes,
        is_traced=is_traced,
        is_stopped="T" in (status.state, worker.state),
        is_alive=is_alive,
    )


async def _take_stacks(
    process: int,
    pid: int,
    source: StackSource,
    timeout_s: float,
    *,
    may_signal: bool,
    starved_s: float,
) -> tuple[str, str]:
    """Return the stacks, and if there are none, why."""
    asked_s = timeout_s * ASKED_SHARE if may_signal else timeout_s
    why = "it gives its stacks only on a signal"
    fd = os.dup(source.stacks_fd)  # the board may be closed meanwhile
    try:
        with suppress(BlockingIOError):  # drop what is there; if it never stops to write, some
            os.read(fd, STACKS_READ_MAX)
        if source.ask_fd is not None:
            if text := await _ask(fd, source.ask_fd, asked_s):
                return text, ""
            timeout_s -= asked_s
            why = _NO_ANSWER.format(asked_s)
        if not may_signal:
            return "", why
        status, number = _status(pid), source.stack_signal
        if status is None or status.state == "T" or status.tracer_pid:
            return "", "a process that is stopped or traced is not asked"
        if not signal.SIGRTMIN <= number <= signal.SIGRTMAX or not status.caught >> number - 1 & 1:
            return "", f"signal {number} is not caught by process {pid}"
        signal.pidfd_send_signal(process, number)
        until = asyncio.get_running_loop().time() + timeout_s + starved_s
        text = await _collect(
            fd,
            timeout_s,
            lambda: _is_writing(pid, number, status),
            lambda: asyncio.get_running_loop().time() < until and _is_starved(pid, number, status),
        )
    finally:
        os.close(fd)
    return text, "" if text else f"none came within {timeout_s:g} s of a signal"


async def _ask(stacks_fd: int, ask_fd: int, timeout_s: float) -> str:
    """Return what a thread of the runtime answers; a question without an answer is taken back."""
    ask_fd = os.dup(ask_fd)  # as above
    try:
        with suppress(BlockingIOError):  # another reader has filled the pipe
            os.write(ask_fd, b"\n")
        text = await _collect(stacks_fd, timeout_s)
        if not text:
            with suppress(BlockingIOError):
                os.read(ask_fd, _ASKED_BYTES_MAX)
        return text
    finally:
        os.close(ask_fd)


async def _collect(
    fd: int,
    timeout_s: float,
    is_writing: Callable[[], bool] = lambda: True,
    is_late: Callable[[], bool] = lambda: False,
) -> str:
    """Return what comes within the time, and then while ``is_late``: all, until their end."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    deadline, patience_s = loop.time() + timeout_s, timeout_s
    data, heard, is_over = bytearray(), 0, False
    loop.add_reader(fd, arrived.set)
    try:
        while heard < STACKS_READ_MAX and not is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline, loop.time() + patience_s)):
                    await arrived.wait()
            is_over = not arrived.is_set() and not is_writing()
            if loop.time() >= deadline:
                deadline = loop.time() + QUIET_S
                is_over = is_over or not is_late()
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
    return _main_thread_first(text)


def _main_thread_first(text: str) -> str:
    """Return stacks with that of the main thread first: it is written last."""
    threads = [block.strip("\n") for block in printable(text).split("\n\n") if block.strip()]
    return "\n\n".join(reversed(threads)) + "\n" if threads else ""


def _is_writing(pid: int, number: int, before: _Status) -> bool:
    """Whether a process has yet to handle a signal, or is about it.

    A handler's own signal is blocked meanwhile. It runs in the first thread, unless
    that one blocks it anyway.
    """
    now, bit = _status(pid), 1 << (number - 1)
    return now is not None and not before.blocked & bit and bool((now.blocked | now.pending) & bit)


def _is_starved(pid: int, number: int, before: _Status) -> bool:
    """Whether a process has yet to handle a signal because it does not get a processor."""
    now = _status(pid)
    return now is not None and now.state == "R" and _is_writing(pid, number, before)


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


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or by a debugger."""
    status = _status(pid)
    return status is not None and status.state in "Tt"


def describe_process(pid: int) -> str:
    """Return what the kernel says of a process: its state, and in what it waits."""
    status = _status(pid)
    return f"process {pid} is gone" if status is None else _describe(pid, status)


def _status(pid: int) -> _Status | None:
    folder = _PROC / str(pid)
    try:
        status = _parsed(folder)
        if status.state == "Z" and status.threads > 1:  # the first thread has ended, others run
            threads = (thread for thread in (folder / "task").iterdir() if thread.name != str(pid))
            status = _parsed(next(threads, folder))
    except OSError:
        return None
    return status


def _parsed(folder: Path) -> _Status:
    text = (folder / "status").read_text("utf-8", "replace")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return _Status(
        state=fields.get("State", "?").strip()[:1],
        threads=int(fields.get("Threads", "1")),
        tracer_pid=int(fields.get("TracerPid", "0")),
        caught=int(fields.get("SigCgt", "0"), 16),
        blocked=int(fields.get("SigBlk", "0"), 16),
        pending=int(fields.get("ShdPnd", "0"), 16),
    )


def _name(pid: int) -> str:
    with suppress(OSError):
        return printable((_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip())
    return "a process"


def _describe(pid: int, status: _Status) -> str:
    state = _STATES.get(status.state, status.state)
    text = f"process {pid}: {state}, {count(status.threads, 'thread')}"
    if status.tracer_pid:
        text += f", traced by {_name(status.tracer_pid)} (pid {status.tracer_pid})"
    with suppress(OSError):  # what follows may not be for us to read
        waits_in = (_PROC / str(pid) / "wchan").read_text("utf-8", "replace").strip()
        if waits_in not in ("", "0"):
            text += f", its first thread waits in {waits_in}"
        if kernel := (_PROC / str(pid) / "stack").read_text("utf-8", "replace").splitlines():
            calls = (line.rpartition(" ")[2] for line in kernel[:_KERNEL_STACK_LINES_MAX])
            text += f", kernel stack: {' < '.join(calls)}"
    return text
