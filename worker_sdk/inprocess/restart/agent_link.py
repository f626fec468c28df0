"""Shell. How the iterations of this process reach its agent, and the agent's orders it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from worker_sdk import runtime
from worker_sdk.board import layout
from worker_sdk.board.board import REFUSED
from worker_sdk.inprocess.errors import RestartError

if TYPE_CHECKING:
    from drumbeat.worker.v1 import worker_pb2
    from worker_sdk.attach import Attachment

FLUSH_TIMEOUT_S = 2.0
"""How long a worker that ends may try to tell why. The agent learns of its end anyway."""

GREETING_TIMEOUT_S = 60.0
"""How long the agent may take to answer a process that wants to take part."""

HARD_SCOPE = "inprocess hard timeout"
HEARTBEAT_SCOPE = "inprocess heartbeat"
_KINDS = {HARD_SCOPE: layout.KIND_HARD_TIMEOUT, HEARTBEAT_SCOPE: layout.KIND_HEARTBEAT}


class Link:
    """What this process has with its agent, over all its calls of wrappers."""

    def __init__(self, attachment: Attachment, limits: BoardLimits) -> None:
        self.attachment = attachment
        self.limits = limits
        self.iteration = 0
        """The next one; it goes on from call to call."""
        self.is_ended = False
        """This process takes no part any more."""
        self._is_greeted = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Learn where this process begins: it may not be the first one of its worker.

        Raises ``RestartError`` if the agent does not answer, or the worker's part is over.
        """
        if self.is_ended:
            raise RestartError("this worker has ended its part in this round")
        if self._is_greeted:
            return
        greeted = self.attachment.greeting(GREETING_TIMEOUT_S)
        if greeted is None:
            raise RestartError(f"the agent did not answer within {GREETING_TIMEOUT_S:g} s")
        if greeted.left:
            raise RestartError(f"this worker can't restart in process any more: {greeted.left}")
        self.iteration, self._is_greeted = greeted.next_iteration, True

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Send a step, unless the last one was sent."""
        with self._lock:
            if not self.is_ended:
                self.attachment.send_step(step)

    def end(self, step: worker_pb2.WorkerStep) -> None:
        """Tell that this process takes no part any more; it may end right after."""
        with self._lock:
            self.is_ended = True
            self.attachment.send_step(step)
        self.attachment.confirm(FLUSH_TIMEOUT_S)


class BoardLimits:
    """Limits that the agent keeps, by ending the process; made by the main thread."""

    def __init__(self) -> None:
        self._main = runtime.start().threads.mine

    def arm(self, scope: str, after_s: float, grace_s: float = 0.0) -> None:
        """Start one anew; ``grace_s`` counts from SIGTERM to SIGKILL if the agent's is longer."""
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
        slot = runtime.start().own.pop(scope, REFUSED)
        if slot != REFUSED:
            runtime.start().close_slot(slot)

    def clear(self) -> None:
        """Forget all timers and sections of the process; for the main thread."""
        runtime.clear_scopes()
        self._main = runtime.start().threads.mine

    def is_suspended(self) -> bool:
        """Return whether the main thread is in a section, which has a limit of its own."""
        return self._main.sections > 0
