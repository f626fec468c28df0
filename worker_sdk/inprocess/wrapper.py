"""Shell. ``Wrapper``: restarts a function on all workers, within their processes."""

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

from worker_sdk import runtime
from worker_sdk.inprocess import hooks, ranks
from worker_sdk.inprocess.arguments import Duration, timing, with_instance
from worker_sdk.inprocess.errors import RestartError
from worker_sdk.inprocess.hooks import RetryController, flattened
from worker_sdk.inprocess.process_groups import AbortTorchDistributed
from worker_sdk.inprocess.ranks import RankAssignment, RankFilter, ShiftRanks
from worker_sdk.inprocess.restart.call_wrapper import AgentLink, Current, Plan, run_once

log = logging.getLogger("worker_sdk")

R = TypeVar("R")

_NO_STORE = (
    "has no meaning here: there is no store. Workers agree through their agent and"
    " the coordinator, so leave it out"
)
_INSTEAD = {
    "store_factory": _NO_STORE,
    "store_kwargs": _NO_STORE,
    "completion": "is not offered: what it would do, write after the call of the function",
    "terminate": "is not offered: what it would do, write into an `except BaseException` around"
    " the call of the function",
    "monitor_process_pidfile": "has no meaning here: there is no such process, the agent watches",
}
"""Of arguments that users know from elsewhere: what to write instead."""
_CONTINUED = (
    (inspect.iscoroutinefunction, "call asyncio.run in the function"),
    (inspect.isasyncgenfunction, "iterate over it with asyncio.run in the function"),
    (inspect.isgeneratorfunction, "iterate over it in the function"),
)
"""Functions that only return something which runs later, outside of the wrapper."""
_HOOKS: dict[str, Any] = {
    "initialize": hooks.Initialize,
    "abort": hooks.Abort,
    "finalize": hooks.Finalize,
    "health_check": hooks.HealthCheck,
}


@dataclass(kw_only=True, eq=False)
class Wrapper:
    """Restarts a function on all workers of a run when it fails on one of them.

    The processes stay. Used as a decorator: ``@Wrapper(soft_timeout=60)``. All workers begin an
    iteration together, and when it is interrupted anywhere, all clean up and begin the next one,
    without those that are lost. Without an agent the function is simply called.

    See docs/inprocess.md for the arguments; changing them later has no effect. Durations are
    timedeltas, or seconds. Raises ``TypeError`` and ``ValueError`` that name the argument.
    """

    initialize: hooks.Initialize | None = None
    abort: hooks.Abort | None = AbortTorchDistributed()  # noqa: RUF009 - it has no state
    finalize: hooks.Finalize | None = None
    health_check: hooks.HealthCheck | None = None
    rank_assignment: RankAssignment = ShiftRanks()  # noqa: RUF009
    rank_filter: RankFilter | None = None
    monitor_thread_interval: Duration = timedelta(seconds=1)
    monitor_process_interval: Duration = timedelta(seconds=1)
    heartbeat_interval: Duration = timedelta(seconds=1)
    progress_watchdog_interval: Duration = timedelta(seconds=1)
    soft_timeout: Duration = timedelta(seconds=60)
    hard_timeout: Duration = timedelta(seconds=90)
    heartbeat_timeout: Duration = timedelta(seconds=30)
    barrier_timeout: Duration = timedelta(seconds=120)
    completion_timeout: Duration = timedelta(seconds=120)
    last_call_wait: Duration = timedelta(seconds=1)
    termination_grace_time: Duration = timedelta(seconds=5)
    monitor_process_logfile: str | None = None
    enabled: bool = True
    max_iterations: int | None = None
    min_world_size: int = 1
    min_active_world_size: int = 1

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Say what to write instead of an argument that users know from elsewhere."""
        for name in given.keys() & _INSTEAD.keys():
            raise TypeError(f"{name} {_INSTEAD[name]}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _HOOKS}
        for name, hook in given.items():
            if hook is not None and not isinstance(hook, _HOOKS[name]):
                kind = _HOOKS[name].__name__
                raise TypeError(f"{name} must be an instance of {kind}, not {hook!r}")
        if not isinstance(self.enabled, bool):
            raise TypeError(f"enabled must be True or False, not {self.enabled!r}")
        logfile = self.monitor_process_logfile
        if not isinstance(logfile, str | None):
            raise TypeError(f"monitor_process_logfile must be a path, not {logfile!r}")
        if logfile is not None and not os.path.isabs(logfile):  # noqa: PTH117
            raise ValueError(f"monitor_process_logfile must be an absolute path, not {logfile!r}")
        parts = [
            RetryController(self.max_iterations, self.min_world_size, self.min_active_world_size),
            *(part for part in flattened(self.initialize) if isinstance(part, RetryController)),
        ]
        limits = RetryController(
            min((n for part in parts if (n := part.max_iterations) is not None), default=None),
            max(part.min_world_size for part in parts),
            max(part.min_active_world_size for part in parts),
        )
        rules, own = ranks.rules_of(self.rank_assignment, self.rank_filter)
        self._plan = Plan(timing(vars(self)), limits, rules, own, **given)

    def __call__(self, fn: Callable[..., R]) -> Callable[..., R | None]:
        """Wrap ``fn``; a worker that stands by to the end returns ``None``."""
        if not callable(fn):
            raise TypeError(f"a wrapper takes a function, not {fn!r}")
        for is_continued, instead in _CONTINUED:
            if is_continued(fn):
                name = getattr(fn, "__qualname__", repr(fn))
                raise TypeError(
                    f"{name} would run only after the wrapper has returned; wrap a plain"
                    f" function, and {instead}"
                )
        if not self.enabled:
            return fn
        plan = self._plan

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return _run(plan, functools.partial(fn, *args, **kwargs))

        return wrapped


# What help() shows, instead of that of `__new__`.
_INIT: Any = functools.partial(Wrapper.__init__, None)  # type: ignore[arg-type]
Wrapper.__signature__ = inspect.signature(_INIT)  # type: ignore[attr-defined]


def _run(plan: Plan, function: functools.partial[Any]) -> Any:
    if Current.call is not None:
        log.info("a wrapped function within another is restarted with it, not by itself")
        return with_instance(function, Current.call)()
    if (link := AgentLink.of_process()) is None:
        why = "no agent, as there is under `agent join`"
        if runtime.has_agent():
            why = "the agent watches another process of this worker, not this one"
        name = getattr(function.func, "__name__", function.func)
        log.warning("%s: %s is called once, without restarts", why, name)
        return run_once(plan, function)
    if sys.platform != "linux":
        raise RestartError(
            f"in-process restart needs Linux, this is {sys.platform}; with enabled=False the"
            " function is called as it is"
        )
    # Not before there is an agent: others need no messages.
    from worker_sdk.inprocess.restart.call import Call  # noqa: PLC0415

    return Call(plan, link, function).run()
