"""Shell. How the iterations of this process reach its agent, and the agent's orders it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from worker_sdk import runtime
from worker_sdk.board import layout
from worker_sdk.board.board import REFUSED
from worker_sdk.inprocess.errors import RestartError
from worker_sdk.inprocess.progress import HARD_SCOPE, HEARTBEAT_SCOPE

if TYPE_CHECKING:
    from drumbeat.worker.v1 import worker_pb2
    from worker_sdk.inprocess.progress import TimeLimits

FLUSH_TIMEOUT_S = 2.0
"""How long a worker that ends may try to tell why. The agent learns of its end anyway."""

GREETING_TIMEOUT_S = 60.0
"""How long the agent may take to answer a process that wants to take part."""

_KINDS = {HARD_SCOPE: layout.KIND_HARD_TIMEOUT, HEARTBEAT_SCOPE: layout.KIND_HEARTBEAT}

Receiver = Callable[["worker_pb2.WorkerOrder | None"], None]
"""Takes orders; ``None`` says that no more will come."""


class Transport(Protocol):
    """A stream to the agent that heals itself.

    Of the steps, the latest counts; it is repeated on a new stream. Orders come as they
    were sent, repeated ones included, on a thread of the transport's own.
    """

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Send a step, in place of an earlier one that was not sent yet. Does not wait."""

    def on_order(self, receiver: Receiver | None) -> None:
        """Hand orders to ``receiver`` from here on, the latest one first if there was any."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until the latest step has arrived; return whether it has."""

    def greeting(self, timeout_s: float) -> worker_pb2.Greeted | None:
        """Return how the agent greeted this process, ``None`` if it does not in time."""


class Link:
    """What this process has with its agent, over all its calls of wrappers."""

    def __init__(self, transport: Transport, limits: TimeLimits) -> None:
        self.transport = transport
        self.limits = limits
        self.iteration = 0
        """The next one; it goes on from call to call."""
        self.is_ended = False
        """This process takes no part any more."""
        self._is_greeted = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Learn where this process begins: it may not be the first one of its worker.

        Raises:
            RestartError: The agent does not answer, or lets the worker take no part any more.
        """
        if self._is_greeted:
            return
        greeted = self.transport.greeting(GREETING_TIMEOUT_S)
        if greeted is None:
            raise RestartError(f"the agent did not answer within {GREETING_TIMEOUT_S:g} s")
        if greeted.left:
            raise RestartError(f"this worker can't restart in process any more: {greeted.left}")
        self.iteration, self._is_greeted = greeted.next_iteration, True

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Send a step, unless the last one was sent."""
        with self._lock:
            if not self.is_ended:
                self.transport.send_step(step)

    def on_order(self, receiver: Receiver | None) -> None:
        """Hand orders to ``receiver``, see ``Transport``."""
        self.transport.on_order(receiver)

    def end(self, step: worker_pb2.WorkerStep) -> None:
        """Tell that this process takes no part any more; it may end right after."""
        with self._lock:
            self.is_ended = True
            self.transport.send_step(step)
        self.transport.flush(FLUSH_TIMEOUT_S)


class BoardLimits:
    """Timers on the board; made by the main thread."""

    def __init__(self) -> None:
        self._main = runtime.start().threads.mine

    def arm(self, scope: str, after_s: float, grace_s: float = 0.0) -> None:
        """Start one, or start it again."""
        board = runtime.start()
        if not board.free:
            self.disarm(scope)  # else there would be no slot for its renewal
        after_ns, grace_ns = round(after_s * 1e9), round(grace_s * 1e9)
        slot = board.open_slot(
            scope, after_ns, after_ns, layout.SIGNAL_DEFAULT, _KINDS[scope], grace_ns
        )
        earlier, board.own[scope] = board.own.get(scope, REFUSED), slot
        if earlier != REFUSED:
            board.close_slot(earlier)

    def disarm(self, scope: str) -> None:
        """Forget one."""
        board = runtime.start()
        slot = board.own.pop(scope, REFUSED)
        if slot != REFUSED:
            board.close_slot(slot)

    def clear(self) -> None:
        """Forget all timers and sections of the process; for the main thread."""
        runtime.clear_scopes()
        self._main = runtime.start().threads.mine

    def is_suspended(self) -> bool:
        """Return whether the main thread is in a section, which has a limit of its own."""
        return self._main.sections > 0


class AttachedTransport:
    """The stream that this process holds with its agent anyway."""

    def __init__(self) -> None:
        self._attachment = runtime.attachment()

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Send a step."""
        self._attachment.send_step(step)

    def on_order(self, receiver: Receiver | None) -> None:
        """Hand orders to ``receiver``."""
        self._attachment.on_order(receiver)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the agent has the latest step."""
        return self._attachment.confirm(timeout_s)

    def greeting(self, timeout_s: float) -> worker_pb2.Greeted | None:
        """Return how the agent greeted this process."""
        return self._attachment.greeting(timeout_s)


class Process:
    """The link of this process, once it was asked for; a forked child has none."""

    lock = threading.Lock()
    link: Link | None = None
    pid = 0


def why_none() -> str:
    """Say why this process has no link."""
    if not runtime.has_agent():
        return "no agent, as there is under `agent join`"
    return "the agent watches another process of this worker, not this one"


def of_process() -> Link | None:
    """Return the link of this process, ``None`` if no agent listens to it."""
    with Process.lock:
        if Process.link is not None and Process.pid == os.getpid():
            return Process.link
        if not runtime.is_attached():
            return None
        Process.link, Process.pid = Link(AttachedTransport(), BoardLimits()), os.getpid()
        return Process.link
