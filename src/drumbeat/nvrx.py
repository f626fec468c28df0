"""Shell. The agent's store for ``inprocess.Wrapper`` of nvidia-resiliency-ext. See docs/nvrx.md."""

import multiprocessing
import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

try:
    from nvidia_resiliency_ext.inprocess.store import StoreMixin
    from torch.distributed import PrefixStore, TCPStore
except ImportError as error:
    why = "drumbeat.nvrx needs torch and the package nvidia-resiliency-ext in this environment"
    raise ImportError(f"{why}: {error}") from error

from worker_sdk import context, runtime
from worker_sdk.inprocess.restart.call_wrapper import AgentLink
from worker_sdk.inprocess.restart.participant import Participant


class _Process:
    """What this process has."""

    participant: Participant | None = None
    calls_ended = 0
    prefix: str | None = None  # of the keys of the call that it is in

    @classmethod
    def leave_to_parent(cls) -> None:
        """In a forked child, such as the wrapper's monitor: say nothing to the agent."""
        cls.participant = None


os.register_at_fork(after_in_child=_Process.leave_to_parent)


class Store(StoreMixin, PrefixStore):  # type: ignore[misc] # neither is there for mypy
    """For ``Wrapper(store_factory=drumbeat.nvrx.Store)``: the store of the round.

    The agent of rank 0 serves it, so it outlives each rank. ``timeout`` is that of its operations.
    While the wrapper runs, the agent leaves the loss of a worker to it. Each call of the wrapper
    has keys of its own. Raises ``RuntimeError`` where no agent serves a store.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        if os.environ.get(context.USE_AGENT_STORE) != str(True):
            raise RuntimeError(
                f"{context.USE_AGENT_STORE} is not True: drumbeat.nvrx.Store is a store that an"
                " agent serves; start this script with `agent join`, without --agent-store off"
                " and --master-port"
            )
        store = TCPStore(
            os.environ[context.MASTER_ADDR], int(os.environ[context.MASTER_PORT]), timeout=timeout
        )
        super().__init__(_prefix(store), store)
        self._error_before: BaseException | None = None

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Ranks whose processes the store needs: none."""
        return ()

    def initial_barrier(self, **arguments: Any) -> None:
        """Wait for all ranks; from then on the agent leaves the loss of one to the wrapper."""
        super().initial_barrier(**arguments)
        self._error_before = sys.exc_info()[1]
        if (link := AgentLink.of_process()) is not None:
            _Process.participant = _Process.participant or Participant(link)
            _Process.participant.enter()

    def termination_barrier(self, ranks: Iterable[Any], **arguments: Any) -> None:
        """Note the end of ranks; in the main process, that of the call of its own rank."""
        # The monitor of other ranks gives them as bytes (0.4.1), and breaks on reading them again.
        super().termination_barrier(ranks=[int(rank) for rank in ranks], **arguments)
        _Process.calls_ended, _Process.prefix = _Process.calls_ended + 1, None
        if _Process.participant is not None and sys.exc_info()[1] is self._error_before:
            _Process.participant.leave()


def _prefix(store: TCPStore) -> str:
    """Return what keys of this call begin with: the same for all ranks, and for no other call.

    Not even for a call of a program that was this worker before. The wrapper forks its monitor
    process before it makes a store, so the monitor reads the prefix.
    """
    key = f"nvrx prefix of rank {os.environ[context.RANK]}"
    if _Process.prefix is None:
        if runtime.has_agent() and multiprocessing.parent_process() is not None:
            return str(store.get(key).decode())
        if (link := AgentLink.of_process()) is not None:
            link.begin()
        _Process.prefix = f"nvrx {link.iteration if link else 0} {_Process.calls_ended}"
        store.set(key, _Process.prefix)
    return _Process.prefix
