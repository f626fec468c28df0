"""Shell. The cgroup of an agent's workers, where it may make one: kills all in it at once.

Only version 2 has ``cgroup.kill``, and a container or a user seldom may write there. Without a
cgroup the next agent finds what a killed one left by the environment of its processes alone.
"""

import os
from contextlib import suppress
from pathlib import Path

NAME = "cgroup"  # of the file in an agent's directory that has the path of its cgroup
PATH_BYTES_MAX = 4096
_PROCESSES, _KILL = "cgroup.procs", "cgroup.kill"


class WorkersCgroup:
    """A cgroup below this process's own, named as the agent's private directory.

    ``path`` is None where none can be made, and then nothing is done. ``proc`` is where the kernel
    tells of this process.
    """

    def __init__(self, directory: Path, proc: Path = Path("/proc/self")) -> None:
        self.path: Path | None = None
        with suppress(OSError, ValueError):
            if (own := _own_cgroup(proc)) is None:
                return
            path = own / directory.name
            # Written first: who finds the cgroup later does so by this file.
            note = directory / NAME
            note.touch(mode=0o600)
            note.write_text(str(path))
            path.mkdir()
            self.path = path
            if not (path / _KILL).exists():  # a kernel before 5.14
                self.close()

    def add(self, pid: int) -> None:
        """Move a process into it, which has no children yet."""
        if self.path is not None:
            with suppress(OSError):
                (self.path / _PROCESSES).write_text(str(pid))

    def close(self) -> None:
        """Remove it once all in it has ended."""
        if self.path is not None:
            remove(self.path)
            self.path = None


def cgroup_of(directory: Path) -> Path | None:
    """Return the cgroup that the owner of a private directory had for its workers."""
    with suppress(OSError, ValueError), (directory / NAME).open("rb") as file:
        path = Path(file.read(PATH_BYTES_MAX).decode())
        if path.name == directory.name and (path / _KILL).exists():
            return path
    return None


def processes_in(path: Path) -> set[int]:
    """Return the processes in a cgroup and in those below it."""
    pids: set[int] = set()
    for folder, _, _ in os.walk(path):
        with suppress(OSError):
            pids.update(map(int, (Path(folder) / _PROCESSES).read_text().split()))
    return pids


def kill(path: Path) -> None:
    """Send SIGKILL to all in a cgroup at once, also to what they fork meanwhile."""
    with suppress(OSError):
        (path / _KILL).write_text("1")


def remove(path: Path) -> None:
    """Remove a cgroup with those below it, as far as no process is left in them."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()


def _own_cgroup(proc: Path) -> Path | None:
    """Return the directory of this process's cgroup of version 2, if it is seen here."""
    memberships = (proc / "cgroup").read_text().splitlines()
    name = next((line[3:] for line in memberships if line.startswith("0::/")), None)
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if name is None or kind.partition(" ")[0] != "cgroup2":
            continue
        path = Path(mount.split()[4]) / name.lstrip("/")
        # Namespaces may show another part of the tree under this name.
        if str(os.getpid()) in (path / _PROCESSES).read_text().split():
            return path
    return None
