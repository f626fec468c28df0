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

_HOME_OF: dict[str, tuple[type, ...]] = {
    "abort": (Abort,),
    "compose": (Compose,),
    "exception": (RankShouldRestart, RestartAbort, RestartError),
    "finalize": (Finalize,),
    "health_check": (HealthCheck, FaultCounterExceeded),
    "initialize": (Initialize,),
    "rank_assignment": (RankAssignment,),
    "rank_filter": (RankFilter,),
    "wrap": (CallWrapper, Wrapper),
}
"""Modules of nvidia-resiliency-ext, and what is in them there: these classes and their kinds."""


if not TYPE_CHECKING:  # to a type checker, it would be an answer to every name

    def __getattr__(name: str) -> object:
        """Say what to write instead of a name that users know from elsewhere."""
        hint = "docs/inprocess.md, Differences, has what nvidia-resiliency-ext names otherwise"
        if kinds := _HOME_OF.get(name):
            classes = [known for known in __all__ if issubclass(globals()[known], kinds)]
            hint = f"names are flat here: {', '.join(f'inprocess.{known}' for known in classes)}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {hint}")
