"""Shell. The call that a wrapped function is in, as the function sees it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from worker_sdk.inprocess import environment
from worker_sdk.inprocess.arguments import call_with, with_instance
from worker_sdk.inprocess.errors import HealthCheckError
from worker_sdk.inprocess.restart.interrupt import Atomic, Gate
from worker_sdk.inprocess.restart.progress import Progress
from worker_sdk.inprocess.state import Mode, State

if TYPE_CHECKING:
    from functools import partial

    from worker_sdk.inprocess.hooks import (
        Abort,
        Finalize,
        HealthCheck,
        Initialize,
        RetryController,
    )
    from worker_sdk.inprocess.ranks import RankAssignment, RankFilter
    from worker_sdk.inprocess.restart.agent_link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a ``Wrapper`` was given, checked."""

    timing: dict[str, float]
    """In seconds, under the names that users know."""
    limits: RetryController
    rules: list[RankAssignment]
    """Those that the coordinator applies."""
    local_filter: RankFilter | None
    """The user's own."""
    initialize: Initialize | None
    abort: Abort | None
    finalize: Finalize | None
    health_check: HealthCheck | None

    def prepare(self, state: State) -> None:
        """Run the hooks that come before the function."""
        if self.initialize is not None:
            call_with(self.initialize, state, None)
        if self.health_check is not None:
            try:
                call_with(self.health_check, state, None)
            except Exception as error:
                raise HealthCheckError(f"not healthy before the function: {error}") from error


class CallWrapper:
    """One call of a wrapped function, for the function itself.

    Given to every parameter that is annotated with this class.
    """

    __slots__ = ("_atomic", "_progress", "_state")

    def __init__(self, state: State, progress: Progress, atomic: Atomic) -> None:
        self._state = state
        self._progress = progress
        self._atomic = atomic

    @property
    def iteration(self) -> int:
        """How often the function was restarted in this call."""
        return self._state.iteration

    @property
    def state(self) -> State:
        """This worker's place in the iteration."""
        return self._state

    def ping(self) -> None:
        """Tell that the function makes progress.

        From the first one of an iteration on they must come more often than the
        timeouts of the wrapper.
        """
        self._progress.ping_at = monotonic()

    def atomic(self) -> Atomic:
        """Return a context manager for code that no interruption may cut in two.

        An interruption waits until the block is left; a block that would begin during
        one does not. Reentrant, and not limited to the main thread.
        """
        return self._atomic

    def invoke(self, function: partial[Any]) -> Any:
        """Call ``function``, with this object where it takes it."""
        return with_instance(function, self)()


class Current:
    """What this process is in; a forked child is in nothing."""

    link: Link | None = None
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
    state = environment.initial_state()
    state = replace(
        state, active_rank=state.rank, active_world_size=state.world_size, mode=Mode.ACTIVE
    )
    plan.prepare(state)
    closed = Gate(lambda: None, lambda: None)
    return CallWrapper(state, Progress(), Atomic(closed)).invoke(function)
