"""Shell. Hooks for torch. They import nothing: it is used if the program has imported it."""

from __future__ import annotations

import logging
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from worker_sdk.inprocess import environment
from worker_sdk.inprocess.hooks import Abort, HealthCheck, run_threaded
from worker_sdk.inprocess.pytorch import gloo
from worker_sdk.inprocess.settings import Duration, seconds

if TYPE_CHECKING:
    from worker_sdk.inprocess.state import State

log = logging.getLogger("worker_sdk")


class Kept:
    """Process groups that were aborted.

    A module of DistributedDataParallel must not be the last to let go of one: it would
    wait for the group's threads with the interpreter's lock held, which they may need.
    """

    groups: ClassVar[list[Any]] = []


class AbortTorchDistributed(Abort):
    """Aborts all of torch's process groups, and destroys them.

    A main thread in a collective, of NCCL or of gloo, comes out with an error, whether
    or not its peers are alive; so does one that waits for others in
    ``init_process_group``.
    """

    def __call__(self, state: State) -> State:
        """Abort; nothing to do where torch is not used."""
        distributed = _distributed()
        if distributed is None:
            return state
        if distributed.is_initialized():
            groups = list(distributed.distributed_c10d._world.pg_names)  # noqa: SLF001
            Kept.groups += groups
            _abort_groups(groups)
            gloo.shut_down_gloo()
            _destroy(distributed)
        host, port = environment.master()
        if port:
            gloo.shut_down_to(host, port)
        return state


def settle() -> None:
    """Leave torch as it was before its first group; once the main thread has come out.

    It may have made a group while the others were aborted. And one that it failed
    to make has been counted: the next would have another name than on the other workers.
    """
    distributed = _distributed()
    if distributed is not None and distributed.is_initialized():
        _destroy(distributed)
    elif distributed is not None:
        distributed.distributed_c10d._world.group_count = 0  # noqa: SLF001


def let_go() -> None:
    """Forget the last groups; once no worker is in their iteration any more."""
    gloo.Kept.close()
    Kept.groups.clear()


class CudaHealthCheck(HealthCheck):
    """Fails if the GPU of this worker is not done within ``timeout``, or reports an error."""

    def __init__(self, timeout: Duration = timedelta(seconds=30)) -> None:
        self.timeout_s = seconds("timeout", timeout)

    def __call__(self, state: State) -> State:
        """Wait for the GPU; nothing to do where none is used."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return state
        device = environment.local_rank()
        if device is None or device >= torch.cuda.device_count():
            device = torch.cuda.current_device()
        wait = partial(torch.cuda.synchronize, device)
        run_threaded(wait, self.timeout_s, name="cuda health check")
        wait()  # what went wrong may be told only by the call after the one that waited
        return state


def _distributed() -> Any:
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_available() else None


def _abort_groups(groups: list[Any]) -> None:
    """Abort each group's backends, all at once: one may wait for another's peers."""
    threads = [
        threading.Thread(target=_abort, args=(group,), name="worker_sdk abort", daemon=True)
        for group in groups
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # without a limit: the hard timeout ends what can't be aborted


def _abort(group: Any) -> None:
    for device in getattr(group, "_device_types", ()):
        try:
            backend = group._get_backend(device)  # noqa: SLF001
            abort = getattr(backend, "abort", None) or getattr(backend, "_shutdown", None)
            if abort is not None:
                abort()
        except RuntimeError as error:
            log.warning("a process group could not be aborted: %s", error)


def _destroy(distributed: Any) -> None:
    try:
        distributed.destroy_process_group()
    except (AssertionError, RuntimeError, ValueError) as error:
        # The main thread may have come out, and have destroyed it itself.
        log.warning("the process groups could not be destroyed: %s", error)
