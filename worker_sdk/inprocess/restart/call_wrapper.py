"""Shell. The call that a wrapped function is in: as the function sees it, and for the agent."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from worker_sdk import runtime
from worker_sdk.inprocess.arguments import call_with, with_instance
from worker_sdk.inprocess.errors import HealthCheckError, RestartError
from worker_sdk.inprocess.restart.interrupt import Atomic
from worker_sdk.inprocess.restart.progress import PROGRESS, BoardLimits
from worker_sdk.inprocess.state import Mode, State, initial_state

if TYPE_CHECKING:
    from functools import partial

    from drumbeat.worker.v1 import worker_pb2
    from worker_sdk.attach import Attachment
    from worker_sdk.inprocess import hooks
    from worker_sdk.inprocess.ranks import RankAssignment, RankFilter

GREETING_TIMEOUT_S = 60.0
FLUSH_TIMEOUT_S = 2.0
"""How long a worker that ends may try to tell why. The agent learns of its end anyway."""


class Plan(NamedTuple):
    """What a ``Wrapper`` was given, checked."""

    timing: dict[str, float]
    limits: hooks.RetryController
    rules: list[RankAssignment]  # for the coordinator to apply
    local_filter: RankFilter | None  # the user's own
    initialize: hooks.Initialize | None
    abort: hooks.Abort | None
    finalize: hooks.Finalize | None
    health_check: hooks.HealthCheck | None

    def prepare(self, state: State) -> None:
        """Run the hooks that come before the function."""
        call_with(self.initialize, state, None)
        try:
            call_with(self.health_check, state, None)
        except Exception as error:
            raise HealthCheckError(f"not healthy before the function: {error}") from error


class AgentLink:
    """What this process has with its agent, over all its calls of wrappers."""

    def __init__(self, attachment: Attachment, limits: BoardLimits) -> None:
        self.attachment, self.limits = attachment, limits
        self.iteration = -1
        """The next one, below 0 before the agent has said it; it goes on from call to call."""
        self.is_ended = False
        self._lock = threading.Lock()

    @staticmethod
    def of_process() -> AgentLink | None:
        """Return this process's, ``None`` if no agent watches it. Called in the main thread."""
        if Current.link is None and runtime.start().is_watched:
            Current.link = AgentLink(runtime.attachment(), BoardLimits())
        return Current.link

    def begin(self) -> None:
        """Learn where this process begins: it may not be the first one of its worker."""
        if self.is_ended:
            raise RestartError("this worker has ended its part in this round")
        if self.iteration >= 0:
            return
        greeted = self.attachment.greeting(GREETING_TIMEOUT_S)
        if greeted is None:
            raise RestartError(f"the agent did not answer within {GREETING_TIMEOUT_S:g} s")
        if greeted.left:
            raise RestartError(f"this worker can't restart in process any more: {greeted.left}")
        self.iteration = greeted.next_iteration

    def send_step(self, step: worker_pb2.WorkerStep, *, is_last: bool = False) -> None:
        """Send a step, unless the last one was sent; the process may end right after that."""
        with self._lock:
            if not self.is_ended:
                self.is_ended = is_last
                self.attachment.send_step(step)
        if is_last:
            self.attachment.confirm(FLUSH_TIMEOUT_S)


class CallWrapper:
    """One call of a wrapped function; given to its parameters annotated with this class."""

    __slots__ = ("_atomic", "_state")

    def __init__(self, state: State, atomic: Atomic) -> None:
        self._state, self._atomic = state, atomic

    @property
    def iteration(self) -> int:
        """How often the function was restarted in this call."""
        return self._state.iteration

    @property
    def state(self) -> State:
        """This worker's place in the iteration."""
        return self._state

    def ping(self) -> None:
        """Tell of progress; after an iteration's first, expected within the wrapper's timeouts."""
        PROGRESS.ping_at = monotonic()

    def atomic(self) -> Atomic:
        """Return a context manager for code that no interruption may cut in two.

        One waits until the block is left; no block begins during one. Reentrant, for any thread.
        """
        return self._atomic


class Current:
    """What this process has; a forked child has neither."""

    link: AgentLink | None = None
    """Made by the first call of a wrapper, if an agent listens to this process."""
    call: CallWrapper | None = None

    @classmethod
    def leave_to_parent(cls) -> None:
        """In a forked child: no monitor would ever release the lock."""
        if cls.call is not None:
            cls.call.atomic().lock = threading.RLock()
        cls.call = cls.link = None


os.register_at_fork(after_in_child=Current.leave_to_parent)


def run_once(plan: Plan, function: partial[Any]) -> Any:
    """Call the function as it would be in one iteration, without an agent that restarts it."""
    first = initial_state()
    size = first.world_size
    state = replace(first, active_rank=first.rank, active_world_size=size, mode=Mode.ACTIVE)
    plan.prepare(state)
    return with_instance(function, CallWrapper(state, Atomic(lambda _: None)))()
