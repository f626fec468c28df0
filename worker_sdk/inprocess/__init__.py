"""Shell. In-process restart: the function starts again on all workers, no process does.

Each name is loaded when it is first asked for. See docs/inprocess.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_sdk.inprocess.call import CallWrapper
    from worker_sdk.inprocess.errors import (
        FaultCounterExceeded,
        HealthCheckError,
        RankShouldRestart,
        RestartAbort,
        RestartError,
        TimeoutError,  # noqa: A004 - the name under which users know it
    )
    from worker_sdk.inprocess.hooks import (
        Abort,
        Compose,
        FaultCounter,
        Finalize,
        HealthCheck,
        Initialize,
        RetryController,
        ThreadedFinalize,
    )
    from worker_sdk.inprocess.ranks import (
        ActivateAllRanks,
        ActiveWorldSizeDivisibleBy,
        FillGaps,
        FilterCountGroupedByKey,
        MaxActiveWorldSize,
        RankAssignment,
        RankFilter,
        ShiftRanks,
        WorldSizeDivisibleBy,
    )
    from worker_sdk.inprocess.state import FrozenState, Mode, State, Status
    from worker_sdk.inprocess.torch_hooks import AbortTorchDistributed, CudaHealthCheck
    from worker_sdk.inprocess.wrapper import Wrapper

__all__ = [
    "Abort",
    "AbortTorchDistributed",
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "CallWrapper",
    "Compose",
    "CudaHealthCheck",
    "FaultCounter",
    "FaultCounterExceeded",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Finalize",
    "FrozenState",
    "HealthCheck",
    "HealthCheckError",
    "Initialize",
    "MaxActiveWorldSize",
    "Mode",
    "RankAssignment",
    "RankFilter",
    "RankShouldRestart",
    "RestartAbort",
    "RestartError",
    "RetryController",
    "ShiftRanks",
    "State",
    "Status",
    "ThreadedFinalize",
    "TimeoutError",
    "WorldSizeDivisibleBy",
    "Wrapper",
]

_NAMES = {
    "call": ("CallWrapper",),
    "errors": (
        "FaultCounterExceeded", "HealthCheckError", "RankShouldRestart", "RestartAbort",
        "RestartError", "TimeoutError",
    ),
    "hooks": (
        "Abort", "Compose", "FaultCounter", "Finalize", "HealthCheck", "Initialize",
        "RetryController", "ThreadedFinalize",
    ),
    "ranks": (
        "ActivateAllRanks", "ActiveWorldSizeDivisibleBy", "FillGaps", "FilterCountGroupedByKey",
        "MaxActiveWorldSize", "RankAssignment", "RankFilter", "ShiftRanks", "WorldSizeDivisibleBy",
    ),
    "state": ("FrozenState", "Mode", "State", "Status"),
    "torch_hooks": ("AbortTorchDistributed", "CudaHealthCheck"),
    "wrapper": ("Wrapper",),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


_HOME_OF = {
    "abort": ("Abort", "AbortTorchDistributed"),
    "compose": ("Compose",),
    "exception": _NAMES["errors"],
    "finalize": ("Finalize", "ThreadedFinalize"),
    "health_check": ("CudaHealthCheck", "FaultCounter", "FaultCounterExceeded", "HealthCheck"),
    "initialize": ("Initialize", "RetryController"),
    "rank_assignment": _NAMES["ranks"],
    "rank_filter": ("RankFilter", "MaxActiveWorldSize", "ActiveWorldSizeDivisibleBy"),
    "wrap": ("CallWrapper", "Wrapper"),
}
"""Modules of nvidia-resiliency-ext, and the names here that are in them there."""
_NOT_HERE = frozenset({
    "AbortTransformerEngine", "Completion", "InternalError", "Layer", "LayerFlag",
    "RankDiscarded", "Terminate", "Tree", "attribution", "completion", "monitor_process",
    "monitor_thread", "nested_restarter", "progress_watchdog", "sibling_monitor", "store",
    "terminate",
})  # fmt: skip
"""What is there and has no counterpart."""


def _hint(name: str) -> str:
    if name in _HOME_OF:
        flat = ", ".join(f"inprocess.{found}" for found in sorted(_HOME_OF[name]))
        return f"; names are flat here: {flat}"
    if name in _NOT_HERE:
        return "; docs/inprocess.md, Differences, says what to write instead"
    return ""


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Load what was asked for. Python calls this once per name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
