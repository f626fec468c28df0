"""Shell. Hooks of a restart: base classes, composition, and some that are ready to use.

The exception that a hook is called with is what the function raised here, or ``None``.
"""

import abc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from worker_sdk.inprocess import errors
from worker_sdk.inprocess.arguments import Duration, call_with, count, seconds
from worker_sdk.inprocess.state import State, local_rank

_SUBCLASSABLE = 1 << 10  # `Py_TPFLAGS_BASETYPE`; the class of plain functions does not have it


class Hook(abc.ABC):
    """Is called with as many of the state and the exception as its signature takes."""

    @abc.abstractmethod
    def __call__(self, state: State) -> Any:
        """Do what the kind of hook is for."""


class Initialize(Hook):
    """Runs before the function, in every iteration; what it raises counts as the function's."""


class Abort(Hook):
    """Frees the main thread from what it may be stuck in, once an iteration is interrupted.

    Runs on another thread. An exception from it is logged, and the restart goes on.
    """


class Finalize(Hook):
    """Cleans up once the main thread has left the function; an exception ends the worker."""


class HealthCheck(Hook):
    """Says whether the worker can go on, by raising if it can't.

    Runs before the function, and after an interruption, where an exception ends the worker.
    """


class Compose:
    """Calls several callables as one, the last first.

    What returns ``None`` hands on what it was given, a tuple is handed on as several arguments.
    It is an instance of the nearest class that all of them have in common.
    """

    instances: tuple[Any, ...]

    def __new__(cls, *instances: Any) -> Any:
        """Return an instance of a class made for it."""
        if not instances:
            raise ValueError("Compose needs at least one instance")
        for instance in instances:
            if isinstance(instance, type):
                raise TypeError(f"Compose takes instances, not the class {instance.__name__}")
        common = next(
            candidate
            for candidate in type(instances[0]).__mro__
            if all(isinstance(instance, candidate) for instance in instances)
            and candidate is not Compose
            and candidate.__flags__ & _SUBCLASSABLE
        )
        # Not made as the common class is: its arguments have no meaning here.
        kind = type("Composed", (cls, common), {"__init__": lambda *_: None})
        composed: Any = object.__new__(kind)
        composed.instances = instances
        return composed

    def __call__(self, *arguments: Any) -> Any:
        """Call them all, and return what the first of them returned."""
        last = arguments[0] if arguments else None
        for instance in reversed(self.instances):
            result = call_with(instance, *arguments)
            if result is not None:
                last = result
                arguments = result if isinstance(result, tuple) else (result, *arguments[1:])
        return last


def flattened(hook: object) -> Iterator[object]:
    """Yield what ``hook`` is composed of, in the order in which it is called."""
    if isinstance(hook, Compose):
        for instance in reversed(hook.instances):
            yield from flattened(instance)
    elif hook is not None:
        yield hook


@dataclass(eq=False, repr=False)
class RetryController(Initialize):
    """Says when a restart in process is no longer worth it.

    Under an agent an iteration beyond the limits does not begin, and the round ends as if a worker
    had failed. Iterations are those of one call, the first included.
    """

    max_iterations: int | None = None
    min_world_size: int = 1
    min_active_world_size: int = 1

    def __post_init__(self) -> None:
        count("min_world_size", self.min_world_size)
        count("min_active_world_size", self.min_active_world_size)
        count("max_iterations", self.max_iterations, is_optional=True)

    def __call__(self, state: State) -> State:
        """Raise ``RestartAbort`` if the state is beyond the limits."""
        most, number = self.max_iterations, state.iteration
        if most is not None and number >= most:
            raise errors.RestartAbort(f"iteration {number} is beyond max_iterations={most}")
        for name in ("world_size", "active_world_size"):
            size, least = getattr(state, name) or 0, getattr(self, f"min_{name}")
            if size < least:
                raise errors.RestartAbort(f"{name} {size} is below min_{name}={least}")
        return state


@dataclass(eq=False, repr=False)
class ThreadedFinalize(Finalize):
    """Runs a function on a thread of its own for a limited time, and raises what it raises."""

    timeout: Duration
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.timeout_s = seconds("timeout", self.timeout)

    def __call__(self, state: State) -> State:
        """Run it; ``TimeoutError`` if it takes too long."""
        function = partial(self.fn, *self.args, **(self.kwargs or {}))
        _run_threaded(function, self.timeout_s, name="finalize")
        return state


@dataclass(eq=False, repr=False)
class FaultCounter(HealthCheck):
    """Ends a worker whose function has failed more than ``max_rank_faults`` times."""

    max_rank_faults: int | None = None
    faults_count = 0

    def __post_init__(self) -> None:
        count("max_rank_faults", self.max_rank_faults, least=0, is_optional=True)

    def __call__(self, state: State) -> State:
        """Count a fault of this worker's own."""
        if state.fn_exception is not None:
            self.faults_count += 1
            said, most = f"{self.faults_count} faults", self.max_rank_faults
            if most is not None and self.faults_count > most:
                raise errors.FaultCounterExceeded(f"{said}, more than max_rank_faults={most}")
        return state


@dataclass(eq=False, repr=False)
class CudaHealthCheck(HealthCheck):
    """Fails if the GPU of this worker is not done within ``timeout``, or reports an error."""

    timeout: Duration = timedelta(seconds=30)

    def __post_init__(self) -> None:
        self.timeout_s = seconds("timeout", self.timeout)

    def __call__(self, state: State) -> State:
        """Wait for the GPU; nothing to do where none is used."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return state
        device = local_rank()
        if device is None or device >= torch.cuda.device_count():
            device = torch.cuda.current_device()
        wait = partial(torch.cuda.synchronize, device)
        _run_threaded(wait, self.timeout_s, name="cuda health check")
        wait()  # what went wrong may be told only by the call after the one that waited
        return state


def _run_threaded(function: Callable[[], object], timeout_s: float, *, name: str) -> None:
    """Run ``function`` on a daemon thread, which after ``timeout_s`` is left to itself."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised on the caller's thread
            raised.append(error)

    thread = threading.Thread(target=run, name=f"worker_sdk {name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise errors.TimeoutError(f"{name} took longer than {timeout_s:g} s")
    if raised:
        raise raised.pop()
