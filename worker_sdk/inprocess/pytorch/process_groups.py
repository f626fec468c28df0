"""Shell. Torch's process groups in a restart, where the program has imported torch."""

import contextlib
import functools
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from worker_sdk.inprocess import environment
from worker_sdk.inprocess.hooks import Abort
from worker_sdk.inprocess.pytorch import gloo
from worker_sdk.inprocess.state import State

log = logging.getLogger("worker_sdk")

CONNECT_TIMEOUT_S = 1.0
RETRY_FIRST_S, RETRY_MAX_S = 0.002, 0.05
STORE_TIMEOUT = timedelta(minutes=30)
"""As torch's; that of the group counts, if it has one."""


# A module of DistributedDataParallel that is the last to let go of an aborted group waits for its
# threads with the interpreter's lock held, which they may need.
_aborted: list[Any] = []


class AbortTorchDistributed(Abort):
    """Aborts all of torch's process groups, and destroys them.

    A main thread in a collective comes out with an error, as in ``init_process_group``.
    """

    def __call__(self, state: State) -> State:
        """Abort; nothing to do where torch is not used."""
        module = distributed()
        if module is None:
            return state
        if module.is_initialized():
            groups = list(module.distributed_c10d._world.pg_names)  # noqa: SLF001
            _aborted.extend(groups)
            # All at once: one may wait for another's peers.
            threads = [
                threading.Thread(target=_abort, args=(group,), name="worker_sdk abort", daemon=True)
                for group in groups
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()  # without a limit: the hard timeout ends what can't be aborted
            gloo.shut_down_gloo()
            _destroy(module)
        host, port = environment.master()
        if port:
            gloo.shut_down_to(host, port)
        return state


def settle() -> None:
    """Leave torch as it was before its first group; once the main thread has come out.

    It may have made one meanwhile. And one that it failed to make has been counted: the next would
    have another name than on the other workers.
    """
    module = distributed()
    if module is not None and module.is_initialized():
        _destroy(module)
    elif module is not None:
        module.distributed_c10d._world.group_count = 0  # noqa: SLF001


def let_go() -> None:
    """Forget the last groups; once no worker is in their iteration any more."""
    gloo.close_kept()
    _aborted.clear()


@contextlib.contextmanager
def store_awaited_in_python() -> Iterator[None]:
    """Have ranks other than 0 wait here for their store.

    torch 2.13 looks for it in C++, again and again, and takes what a signal makes of it for one
    more failed attempt: a rank whose rank 0 never comes could only be killed. And it waits 0.1 to
    1 s between two attempts.
    """
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        yield
        return

    @functools.wraps(create)
    def wait_and_create(hostname: str, port: int, rank: int, *more: Any, **named: Any) -> Any:
        if rank != 0:
            timeout = named.get("timeout", more[1] if len(more) > 1 else None)
            limit = timeout if isinstance(timeout, timedelta) else STORE_TIMEOUT
            _wait_for_store(hostname, port, limit.total_seconds())
        return create(hostname, port, rank, *more, **named)

    rendezvous._create_c10d_store = wait_and_create  # noqa: SLF001
    try:
        yield
    finally:
        rendezvous._create_c10d_store = create  # noqa: SLF001


def _wait_for_store(host: str, port: int, timeout_s: float) -> None:
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


def distributed() -> Any:
    """Return the module, ``None`` where the program has not imported it, or it is of no use."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def _abort(group: Any) -> None:
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)  # noqa: SLF001
            abort = getattr(backend, "abort", None) or getattr(backend, "_shutdown", None)
            if abort is not None:
                abort()
        except RuntimeError as error:
            log.warning("a process group could not be aborted: %s", error)


def _destroy(module: Any) -> None:
    try:
        module.destroy_process_group()
    except (AssertionError, RuntimeError, ValueError) as error:
        # The main thread may have come out, and have destroyed it itself.
        log.warning("the process groups could not be destroyed: %s", error)
