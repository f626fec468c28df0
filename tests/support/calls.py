"""What the tests of calls share."""

import threading
from collections.abc import Callable
from typing import Any

from drumbeat.worker.v1 import iteration_pb2
from worker_sdk import inprocess
from worker_sdk.inprocess import State

WAIT_S = 20.0


class Noted:
    """Hooks of all kinds that write down when they ran."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, str | None]] = []
        log = self.log

        def note(kind: str, state: State, error: BaseException | None) -> None:
            log.append((kind, state.iteration, None if error is None else type(error).__name__))

        class Initialize(inprocess.Initialize):
            def __call__(self, state: State, error: BaseException | None = None) -> None:
                note("initialize", state, error)

        class Abort(inprocess.Abort):
            def __call__(self, state: State) -> None:
                note("abort", state, None)

        class Finalize(inprocess.Finalize):
            def __call__(self, state: State, error: BaseException | None = None) -> None:
                note("finalize", state, error)

        class HealthCheck(inprocess.HealthCheck):
            def __call__(self, state: State, error: BaseException | None = None) -> None:
                note("health", state, error)

        self.hooks: dict[str, Any] = {
            "initialize": Initialize(),
            "abort": Abort(),
            "finalize": Finalize(),
            "health_check": HealthCheck(),
        }


def kind_of(name: str) -> int:
    """Return the number of a kind of interruption."""
    return iteration_pb2.InterruptionKind.Value(f"INTERRUPTION_KIND_{name}")


def later(function: Callable[[], object]) -> None:
    """Call ``function`` on another thread, once this one had time to go on and block."""
    timer = threading.Timer(0.05, function)
    timer.daemon = True
    timer.start()
