"""Shell. Lets ``init_process_group`` be interrupted while the store it wants is not there.

torch 2.13 looks for the store in C++, again and again, and takes what a signal makes of
it for one more failed attempt: a rank whose rank 0 never comes could only be killed. So
ranks wait in Python until the store listens. That is quicker as well: torch waits 0.1 to 1 s
between two attempts.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_TIMEOUT_S = 1.0
RETRY_FIRST_S, RETRY_MAX_S = 0.002, 0.05
DEFAULT_TIMEOUT = timedelta(minutes=30)
"""As torch's; that of the group counts, if it has one."""


@contextlib.contextmanager
def awaited_in_python() -> Iterator[None]:
    """Have ranks other than 0 wait here for their store; where torch has been imported."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        yield
        return

    @functools.wraps(create)
    def wait_and_create(hostname: str, port: int, rank: int, *more: Any, **named: Any) -> Any:
        if rank != 0:
            timeout = named.get("timeout", more[1] if len(more) > 1 else None)
            if not isinstance(timeout, timedelta):
                timeout = DEFAULT_TIMEOUT
            _wait(hostname, port, timeout.total_seconds())
        return create(hostname, port, rank, *more, **named)

    rendezvous._create_c10d_store = wait_and_create  # noqa: SLF001
    try:
        yield
    finally:
        rendezvous._create_c10d_store = create  # noqa: SLF001


def _wait(host: str, port: int, timeout_s: float) -> None:
    """Return when the store listens, or when it takes too long: torch says so then."""
    deadline = time.monotonic() + timeout_s
    wait_s = RETRY_FIRST_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host.strip("[]"), port), CONNECT_TIMEOUT_S).close()
        except OSError:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        else:
            return
