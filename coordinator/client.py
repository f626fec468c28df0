"""Shell. What the command line asks of a coordinator that runs."""

from __future__ import annotations

import grpc

from coordinator.config import ResetLimits
from coordinator.errors import CallFailed
from drumbeat.v1 import control_pb2, control_pb2_grpc

# A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0


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
    details = str(error.details() or "")
    match error.code():
        case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.INVALID_ARGUMENT:
            return CallFailed(details, 2, "--run-id names the run")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = f"the coordinator at {address} cannot be reached: {details}"
            return CallFailed(problem, 3, "--coordinator HOST:PORT says where it listens")
        case status:
            return CallFailed(f"the coordinator at {address} failed: {status.name}: {details}", 1)
