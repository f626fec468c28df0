"""Shell. One call of a wrapped function: its iterations, until all workers complete one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from worker_sdk.inprocess import environment, garbage, interrupt, torch_store
from worker_sdk.inprocess.errors import (
    HealthCheckError,
    RankShouldRestart,
    RestartAbort,
    RestartError,
)
from worker_sdk.inprocess.hooks import flattened
from worker_sdk.inprocess.interrupt import Atomic, Gate, Interrupter
from worker_sdk.inprocess.progress import Progress, Ticker
from worker_sdk.inprocess.signatures import call_with, parameters_of, with_values
from worker_sdk.inprocess.state import Mode, State
from worker_sdk.inprocess.torch_hooks import AbortTorchDistributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_sdk.inprocess.hooks import Abort, Finalize, HealthCheck, Initialize
    from worker_sdk.inprocess.interrupt import Outcome
    from worker_sdk.inprocess.link import Link
    from worker_sdk.inprocess.messages import Begun
    from worker_sdk.inprocess.ranks import RankPolicy
    from worker_sdk.inprocess.settings import Limits, Timing

log = logging.getLogger("worker_sdk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a ``Wrapper`` was given, checked."""

    timing: Timing
    limits: Limits
    policy: RankPolicy
    initialize: Initialize | None
    abort: Abort | None
    finalize: Finalize | None
    health_check: HealthCheck | None


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


class Active:
    """The call that this process is in."""

    call: CallWrapper | None = None
    pid = 0

    @classmethod
    def of_process(cls) -> CallWrapper | None:
        """Return it, unless it is that of the process this one was forked from."""
        return cls.call if cls.pid == os.getpid() else None


def _renew_in_child() -> None:
    """In a forked child, where no monitor would ever release the lock."""
    if Active.call is not None:
        Active.call._atomic.renew()  # noqa: SLF001 - of the same module


os.register_at_fork(after_in_child=_renew_in_child)


def run_once(plan: Plan, function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call the function as it would be in one iteration, without anybody to restart it."""
    given = environment.initial_state()
    state = replace(
        given,
        active_rank=given.rank,
        active_world_size=given.world_size,
        mode=Mode.ACTIVE,
    )
    nobody = Gate(lambda: None, lambda: None)
    call = CallWrapper(state, Progress(), Atomic(nobody))
    prepare(plan, state)
    return call_user(function, arguments, call)


def run_nested(outer: CallWrapper, function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call the function as a part of the call that is in progress."""
    return call_user(function, arguments, outer)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def prepare(plan: Plan, state: State) -> None:
    """Run the hooks that come before the function."""
    if plan.initialize is not None:
        call_with(plan.initialize, state, None)
    if plan.health_check is not None:
        try:
            call_with(plan.health_check, state, None)
        except Exception as error:
            raise HealthCheckError(f"not healthy before the function: {error}") from error


def call_user(function: Callable[..., Any], arguments: Arguments, call: CallWrapper) -> Any:
    """Call the function with its own arguments and the call it is in."""
    args, kwargs = with_values(function, arguments, parameters_of(function, CallWrapper), call)
    return function(*args, **kwargs)


class Call:
    """The iterations of one call under an agent; made and run by the main thread."""

    def __init__(
        self, plan: Plan, link: Link, function: Callable[..., Any], arguments: Arguments
    ) -> None:
        # Not before there is an agent: others need no gRPC.
        from worker_sdk.inprocess import messages, monitor  # noqa: PLC0415

        _check_may_start(link)
        self._messages = messages
        self._monitor_module = monitor
        self._plan = plan
        self._link = link
        self._function = function
        self._arguments = arguments
        self._local_rank = environment.local_rank()
        self._first = environment.initial_state()
        self._end_kind: int | None = None
        self._remains: list[BaseException] = []
        """What the function raised here in the iteration that was interrupted."""
        self._monitor = monitor.Monitor(
            link,
            self._abort,
            local_rank=self._local_rank,
            cleanup_s=plan.timing.soft_timeout,
        )
        progress = Progress()
        self._ticker = Ticker(plan.timing, link.limits, progress, self._monitor.silent)
        self._call = CallWrapper(self._first, progress, self._monitor.atomic)
        self._spec = messages.spec(plan.policy, plan.timing, plan.limits, self._first.world_size)

    def run(self) -> Any:
        """Return what the function returned in the iteration that all completed."""
        interrupter = Interrupter(self._monitor.gate)
        self._monitor.signal = interrupter.send
        Active.call, Active.pid = self._call, os.getpid()
        try:
            self._monitor.start()
            self._ticker.start()
            with garbage.older_objects_left_out():
                return self._iterate()
        except BaseException as error:
            self._end(error)
            raise
        finally:
            Active.call = None
            for part in self._of_torch():
                part.let_go()
            self._ticker.close()
            self._monitor.close()
            interrupter.close()

    def _iterate(self) -> Any:
        count = 0
        while True:
            number = self._link.iteration
            group = self._plan.policy.group_of(self._call.state)
            step = self._messages.entered(number, self._spec, group)
            answer = self._monitor.enter(step)
            self._link.iteration = number + 1
            self._check_not_lost(answer)
            if isinstance(answer, self._messages.Aborted):
                raise RestartAbort(answer.reason)
            if isinstance(answer, self._messages.Begun):
                is_completed, value = self._run_iteration(answer, count)
                if is_completed:
                    return value
            count += 1
            garbage.free(self._remains)

    def _run_iteration(self, begun: Begun, count: int) -> tuple[bool, Any]:
        """Return whether all completed it, and what the function returned here."""
        for part in self._of_torch():
            part.let_go()  # all are here
        state = self._plan.policy.filtered(self._first.placed(begun.place, count))
        environment.apply(state, begun.place)
        self._call._state = state  # noqa: SLF001 - of the same module
        self._ticker.run(is_judging=True)
        with torch_store.awaited_in_python() if self._of_torch() else contextlib.nullcontext():
            outcome = self._monitor.gate.run(self._body)
        self._ticker.pause()
        error = outcome.error
        if error is not None:
            _drop_our_frames(error)
        if error is not None and not self._may_restart_after(error):
            raise error
        answer = self._monitor.leave(self._cause(outcome))
        if isinstance(answer, self._messages.AllCompleted):
            return True, outcome.value
        self._check_not_lost(answer)
        log.info("iteration %d is interrupted: %s", count, _reason(answer))
        self._link.limits.clear()
        self._ticker.run(is_judging=False)
        self._clean_up(error if isinstance(error, Exception) else None)
        self._ticker.pause()
        self._call._state = replace(state, fn_exception=None)  # noqa: SLF001
        if error is not None:
            self._remains.append(error)
        return False, None

    def _check_not_lost(self, answer: object) -> None:
        if isinstance(answer, self._monitor_module.Lost):
            raise RestartError("the agent takes no more part in restarts of this worker")

    def _body(self) -> Any:
        state = self._call.state
        prepare(self._plan, state)
        if state.mode is not Mode.ACTIVE:
            return None  # a spare: it waits with those that completed
        return call_user(self._function, self._arguments, self._call)

    def _abort(self) -> None:
        if self._plan.abort is not None:
            call_with(self._plan.abort, self._call.state, None)

    def _of_torch(self) -> list[AbortTorchDistributed]:
        parts = flattened(self._plan.abort)
        return [part for part in parts if isinstance(part, AbortTorchDistributed)]

    def _may_restart_after(self, error: BaseException) -> bool:
        return isinstance(error, Exception | RankShouldRestart)

    def _cause(self, outcome: Outcome) -> Any:
        if outcome.error is None:
            return None
        kind = self._messages.Kind.INTERRUPTION_KIND_EXCEPTION
        return self._messages.interruption(kind, self._local_rank, outcome.error)

    def _clean_up(self, error: Exception | None) -> None:
        """Run the hooks that come after an interruption.

        Raises:
            HealthCheckError: One of them failed, so this worker can't go on.
        """
        for part in self._of_torch():
            part.settle()
        state = replace(self._call.state, fn_exception=error)
        for name, hook in (
            ("finalize", self._plan.finalize),
            ("health check", self._plan.health_check),
        ):
            if hook is None:
                continue
            try:
                call_with(hook, state, error)
            except Exception as failure:
                self._end_kind = self._messages.Kind.INTERRUPTION_KIND_UNHEALTHY
                if failure.__cause__ is None and failure is not error:
                    failure.__cause__ = error
                raise HealthCheckError(f"{name} failed: {failure}") from failure

    def _end(self, error: BaseException) -> None:
        """Tell that this worker takes no part any more."""
        _drop_our_frames(error)
        kind = self._end_kind
        if kind is None:
            name = "EXCEPTION" if isinstance(error, Exception) else "BASE_EXCEPTION"
            if isinstance(error, SystemExit) and not error.code:
                name = "EXITED"
            kind = self._messages.Kind.Value(f"INTERRUPTION_KIND_{name}")
        cause = self._messages.interruption(
            self._messages.Kind.ValueType(kind), self._local_rank, error
        )
        self._link.end(self._messages.terminated(max(self._link.iteration - 1, 0), cause))


def _drop_our_frames(error: BaseException) -> None:
    """Let the traceback of what the user's code raised begin with the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OUR_FRAMES:
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace


_OUR_FRAMES = (__name__, interrupt.__name__)


def _reason(answer: object) -> str:
    return getattr(answer, "reason", "")


def _check_may_start(link: Link) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a wrapped function can only be called in the main thread")
    if link.is_ended:
        raise RestartError("this worker has ended its part in this round")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        raise RuntimeError(
            "torch.distributed is initialized already: initialize it in the wrapped function,"
            " which is restarted with other ranks"
        )
    link.begin()
