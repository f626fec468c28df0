"""Shell. What the command line asks of a coordinator that runs."""

from __future__ import annotations

import grpc

from coordinator.config import ResetLimits
from coordinator.errors import CallFailed
from drumbeat.v1 import control_pb2, control_pb2_grpc

# A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_UNREACHABLE = 3

_REFUSALS = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}
_SILENCES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


def reset_limits(asked: ResetLimits, *, timeout_s: float = CALL_TIMEOUT_S) -> int:
    """Have the learned limits of a run forgotten; return how many. Raises ``CallFailed``."""
    options = [("grpc.enable_http_proxy", int(asked.use_proxy))]
    with grpc.insecure_channel(asked.coordinator, options) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        request = control_pb2.ResetLimitsRequest(run_id=asked.run_id)
        try:
            return stub.ResetLimits(request, timeout=timeout_s).forgotten
        except grpc.RpcError as error:
            raise _failure(error, asked.coordinator) from error


def _failure(error: grpc.RpcError, address: str) -> CallFailed:
    status = error.code()
    details = str(error.details() or "")
    if status in _REFUSALS:
        return CallFailed(details, exit_code=EXIT_REFUSED, hint="--run-id names the run")
    if status in _SILENCES:
        return CallFailed(
            f"the coordinator at {address} cannot be reached: {details}",
            exit_code=EXIT_UNREACHABLE,
            hint="--coordinator HOST:PORT says where it listens",
        )
    problem = f"the coordinator at {address} failed: {status.name}: {details}"
    return CallFailed(problem, exit_code=EXIT_FAILED)
