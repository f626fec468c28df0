"""Shell. Starts supervisors; the first one early, while the agent still loads modules."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from drumbeat.access.exposure import TOKEN_VARIABLE
from drumbeat.command.own_process import own_process

_early: list[tuple[int, socket.socket]] = []


def launch_early() -> None:
    """Start the first supervisor of this process's agent: it loads its modules beside the agent.

    If this process ends first, so does the supervisor. If it can't be started,
    ``take_supervisor`` raises.
    """
    with suppress(OSError):
        _early.append(launch_supervisor())


def take_supervisor() -> tuple[int, socket.socket]:
    """Return what ``launch_supervisor`` does: the one that was started early comes first."""
    return _early.pop() if _early else launch_supervisor()


def launch_supervisor(pass_fds: Iterable[int] = ()) -> tuple[int, socket.socket]:
    """Start a supervisor; return its pid, to be reaped by the caller, and the connection to it.

    It inherits ``pass_fds`` under the same numbers. Raises ``OSError``.
    """
    env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module
                own_process("drumbeat.agent.workers.supervisor.process", str(fd), str(os.getpid())),
                env=env,
                pass_fds=(fd, *pass_fds),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    process.returncode = 0  # The caller reaps; the object must not try.
    return process.pid, ours
