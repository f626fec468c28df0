"""Shell. In-process restart, see docs/inprocess.md. No torch or gRPC until an agent listens."""

from typing import TYPE_CHECKING

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
    CudaHealthCheck,
    FaultCounter,
    Finalize,
    HealthCheck,
    Initialize,
    RetryController,
    ThreadedFinalize,
)
from worker_sdk.inprocess.process_groups import AbortTorchDistributed
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
from worker_sdk.inprocess.restart.call_wrapper import CallWrapper
from worker_sdk.inprocess.state import FrozenState, Mode, State, Status
from worker_sdk.inprocess.wrapper import Wrapper

__all__ = [
    "Abort", "AbortTorchDistributed", "ActivateAllRanks", "ActiveWorldSizeDivisibleBy",
    "CallWrapper", "Compose", "CudaHealthCheck", "FaultCounter", "FaultCounterExceeded",
    "FillGaps", "FilterCountGroupedByKey", "Finalize", "FrozenState", "HealthCheck",
    "HealthCheckError", "Initialize", "MaxActiveWorldSize", "Mode", "RankAssignment",
    "RankFilter", "RankShouldRestart", "RestartAbort", "RestartError", "RetryController",
    "ShiftRanks", "State", "Status", "ThreadedFinalize", "TimeoutError", "WorldSizeDivisibleBy",
    "Wrapper",
]  # fmt: skip

_HOME_OF = {
    "abort": "Abort AbortTorchDistributed",
    "compose": "Compose",
    "exception": "FaultCounterExceeded HealthCheckError RankShouldRestart RestartAbort"
    " RestartError TimeoutError",
    "finalize": "Finalize ThreadedFinalize",
    "health_check": "CudaHealthCheck FaultCounter FaultCounterExceeded HealthCheck",
    "initialize": "Initialize RetryController",
    "rank_assignment": "ActivateAllRanks ActiveWorldSizeDivisibleBy FillGaps"
    " FilterCountGroupedByKey MaxActiveWorldSize RankAssignment RankFilter ShiftRanks"
    " WorldSizeDivisibleBy",
    "rank_filter": "ActiveWorldSizeDivisibleBy MaxActiveWorldSize RankFilter",
    "wrap": "CallWrapper Wrapper",
}
"""Modules of nvidia-resiliency-ext, and the names here that are in them there."""
_NOT_HERE = frozenset({
    "AbortTransformerEngine", "Completion", "InternalError", "Layer", "LayerFlag",
    "RankDiscarded", "Terminate", "Tree", "attribution", "completion", "monitor_process",
    "monitor_thread", "nested_restarter", "progress_watchdog", "sibling_monitor", "store",
    "terminate",
})  # fmt: skip
"""What is there and has no counterpart."""


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Say what to write instead of a name that users know from elsewhere."""
        hint = ""
        if name in _HOME_OF:
            flat = ", ".join(f"inprocess.{found}" for found in _HOME_OF[name].split())
            hint = f"; names are flat here: {flat}"
        elif name in _NOT_HERE:
            hint = "; docs/inprocess.md, Differences, says what to write instead"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
