"""Shell. The processes below this one, which must be a subreaper to see all of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection


def kill_descendants(*, exclude: Collection[int] = ()) -> None:
    """Send SIGKILL to every process that is below this one now.

    A process forked meanwhile may be missed. Its new parent is then this process, which gets a
    SIGCHLD for the one that died: kill again after each reaping until no child is left.

    Args:
        exclude: Processes to spare, with all that is below them.
    """
    spared = set(exclude)
    for pid in exclude:
        with contextlib.suppress(psutil.NoSuchProcess):
            spared.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    for process in psutil.Process().children(recursive=True):
        if process.pid in spared:
            continue
        # Gone already, or of another user: then it shows up among the stuck ones.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def list_children() -> set[int]:
    """Return the processes whose parent is this one, unreaped ones included."""
    return {process.pid for process in psutil.Process().children()}


def list_remaining() -> tuple[int, ...]:
    """Return what is left below this process, to be called when all that ended is reaped.

    A zombie counts if it is a direct child, because then it still has a thread that lives on.
    """
    children = list_children()
    remaining = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid in children or process.status() != psutil.STATUS_ZOMBIE:
                remaining.append(process.pid)
    return tuple(sorted(remaining))
