"""Shell. Finds and kills processes that outlived their agent, by its private directory.

An agent and its supervisor that are killed together can't end what workers have started. Such a
process has the agent's directory in its environment, or is in the agent's cgroup. Only processes of
this user are looked at.
"""

import os
import select
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from drumbeat.agent.host import cgroup
from drumbeat.text.format import listed

log = structlog.get_logger()

PREFIX = "drumbeat-"  # of the names of private directories
PASSES_MAX = 10  # looks at all processes, for those that were forked during the look before
DEATH_WAIT_S = 2.0  # that killed processes have to end, in all; the kernel may hold some
SHOWN_MAX = 8  # pids named; more are counted
_ENVIRONMENT_BYTES_MAX = 8 * 1024 * 1024  # more than the kernel lets a program have


class Process(Struct, frozen=True):
    """What counts of a process of this user."""

    parent: int
    is_marked: bool  # a dead agent's directory is in its environment, or it is in its cgroup
    is_agent: bool = False  # it holds the private directory of an agent


def leftovers(processes: Mapping[int, Process]) -> set[int]:
    """Return what dead agents have left: what is marked, and all below it.

    A living agent is spared, with what is below it and what it is below.
    """
    orphans, spared = set[int](), set[int]()
    for pid, process in processes.items():
        line = _line_of(pid, processes)
        if any(processes[ancestor].is_marked for ancestor in line):
            orphans.add(pid)
        if any(processes[ancestor].is_agent for ancestor in line):
            spared.add(pid)
        if process.is_agent:
            spared.update(line)
    return orphans - spared


def kill_leftovers(directories: Sequence[Path]) -> None:
    """Kill what the dead owners of private directories left; the caller holds their locks.

    Blocks for the looks at all processes, and for `DEATH_WAIT_S` at most.
    """
    groups = [
        group for directory in directories if (group := cgroup.cgroup_of(directory)) is not None
    ]
    killed: set[int] = set()
    deadline = time.monotonic() + DEATH_WAIT_S
    for _ in range(PASSES_MAX):
        with ExitStack() as held:
            pids = _hold_leftovers(directories, groups, held)
            killed |= pids.keys()
            for group in groups:
                if cgroup.processes_in(group) <= pids.keys():
                    cgroup.kill(group)
            for fd in pids.values():
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            if not pids or not _have_ended(pids.values(), deadline):
                break
    for group in groups:
        cgroup.remove(group)
    if killed:
        shown = listed(map(str, sorted(killed)), SHOWN_MAX)
        why = "an agent and its supervisor were killed together and left them running"
        log.warning("processes of a dead agent killed", reason=f"{why}: pid {shown}")


def find_leftovers(directories: Sequence[Path]) -> set[int]:
    """Return the processes that dead owners of private directories left. Blocks."""
    groups = (cgroup.cgroup_of(directory) for directory in directories)
    return leftovers(_processes(directories, [group for group in groups if group is not None]))


def _hold_leftovers(
    directories: Sequence[Path], groups: Sequence[Path], held: ExitStack
) -> dict[int, int]:
    """Return a descriptor of each leftover, by pid."""
    pidfds: dict[int, int] = {}
    for pid in leftovers(_processes(directories, groups)):
        with suppress(ProcessLookupError):
            pidfds[pid] = os.pidfd_open(pid)
            held.callback(os.close, pidfds[pid])
    if not pidfds:
        return {}
    # Before it was held, the number may have been given to another process.
    still = leftovers(_processes(directories, groups))
    return {pid: fd for pid, fd in pidfds.items() if pid in still}


def _processes(directories: Sequence[Path], groups: Sequence[Path]) -> dict[int, Process]:
    grouped = set[int]().union(*map(cgroup.processes_in, groups))
    marks = [b"=" + os.fsencode(directory) for directory in directories]
    processes: dict[int, Process] = {}
    for proc in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # gone meanwhile, not ours to look at, no process
            pid = int(proc.name)
            if proc.stat().st_uid == os.getuid():
                parent = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
                is_marked = pid in grouped or _has_in_environment(proc, marks)
                processes[pid] = Process(parent, is_marked)
    if any(process.is_marked for process in processes.values()):
        for pid, process in processes.items():
            processes[pid] = replace(process, is_agent=_holds_directory(pid, directories))
    return processes


def _line_of(pid: int, processes: Mapping[int, Process]) -> list[int]:
    """Return a process and those above it."""
    line: list[int] = []
    while pid in processes and pid not in line:
        line.append(pid)
        pid = processes[pid].parent
    return line


def _has_in_environment(proc: Path, marks: Sequence[bytes]) -> bool:
    with (proc / "environ").open("rb") as file:
        variables = file.read(_ENVIRONMENT_BYTES_MAX).split(b"\0")
    return any(
        variable.endswith(mark) or mark + b"/" in variable
        for variable in variables
        for mark in marks
    )


def _holds_directory(pid: int, dead: Collection[Path]) -> bool:
    """Return whether a process has a private directory open, as only its owner does."""
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                path = fd.readlink()
                if path.name.startswith(PREFIX) and path not in dead:
                    return True
    return False


def _have_ended(fds: Collection[int], deadline: float) -> bool:
    """Return whether all these processes have ended by then."""
    poll, left = select.poll(), set(fds)
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (wait_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(wait_s * 1000):
            poll.unregister(fd)
            left.discard(fd)
    return not left
