"""Shell. Asks a coordinator what an operator wants; says what came of it, or what went wrong."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from coordinator.access.calls import call_channel
from coordinator.command.requests import (
    CreateToken,
    DrainAgent,
    ForgetRun,
    ListDrains,
    ListTokens,
    Request,
    ResetLimits,
    RestartRun,
    RetireAuthority,
    RevokeToken,
    RotateAuthority,
    ShowAuthority,
    StopRun,
    UndrainAgent,
)
from coordinator.errors import CallFailed
from drumbeat.command.table import short, table
from drumbeat.format import count
from drumbeat.mapping import ERROR_KEY, duration, seconds_of
from drumbeat.v1 import common_pb2, control_pb2, control_pb2_grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

# A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0

_REFUSED = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
    }
)
_HINTS: dict[type[Request], str] = {
    ResetLimits: "--run-id names the run",
    RevokeToken: "`coordinator token list` shows the ids",
}
_FULL_HINTS: dict[type[Request], str] = {
    CreateToken: "revoke those that are not needed any more; `coordinator token list` shows them",
    RotateAuthority: "give all who have a token a new one, then `coordinator authority retire`",
}

Call = Callable[[str, "Message"], Any]  # a method of the control service, with its request


def perform(asked: Request, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
    """Ask for one thing; return what to print. Raises ``CallFailed``."""
    access = call_channel(asked, asked.coordinator, use_proxy=asked.use_proxy)
    try:
        with access as (channel, metadata):
            stub = control_pb2_grpc.ControlServiceStub(channel)

            def call(method: str, request: Message) -> Any:
                return getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)

            return CALLS[type(asked)](asked, call)
    except grpc.RpcError as error:
        raise failure_of(asked, error) from error


def _reset_limits(asked: ResetLimits, call: Call) -> str:
    response = call("ResetLimits", control_pb2.ResetLimitsRequest(run_id=asked.run_id))
    return f"coordinator: run {asked.run_id}: {count(response.forgotten, 'limit')} forgotten"


def _create_token(asked: CreateToken, call: Call) -> str:
    role = control_pb2.Role.Value(f"ROLE_{asked.role.upper()}")
    request = control_pb2.CreateTokenRequest(role=role, run_id=asked.run_id or "")
    if asked.ttl is not None:
        request.ttl.CopyFrom(duration(asked.ttl))
    text: str = call("CreateToken", request).text
    return text


def _list_tokens(_asked: ListTokens, call: Call) -> str:
    heads = ("ID", "ROLE", "RUN", "AGE", "LEFT", "STATE", "CREATED BY")
    tokens = call("ListTokens", control_pb2.ListTokensRequest()).tokens
    return table(heads, [_row(token) for token in tokens])


def _revoke_token(asked: RevokeToken, call: Call) -> str:
    request = control_pb2.RevokeTokenRequest(token_id=asked.token_id)
    token = call("RevokeToken", request).token
    return f"coordinator: {_role(token)} token {token.token_id} is revoked"


def _show_authority(_asked: ShowAuthority, call: Call) -> str:
    keys = call("GetAuthority", control_pb2.GetAuthorityRequest()).keys
    served = ["newest", *["until it is retired"] * (len(keys) - 1)]
    rows = [(_fingerprint(key), key, until) for key, until in zip(keys, served, strict=True)]
    return table(("AUTHORITY", "KEY IN TOKENS", "SERVED"), rows)


def _rotate_authority(_asked: RotateAuthority, call: Call) -> str:
    newest, *older = call("RotateAuthority", control_pb2.RotateAuthorityRequest()).keys
    told = f"coordinator: new tokens are of the authority {_fingerprint(newest)}"
    until = "served until `coordinator authority retire`"
    return f"{told}; those of the {len(older)} before are {until}"


def _retire_authority(_asked: RetireAuthority, call: Call) -> str:
    newest, *_ = call("RetireAuthority", control_pb2.RetireAuthorityRequest()).keys
    return f"coordinator: only tokens of the authority {_fingerprint(newest)} are served"


def _stop_run(asked: StopRun, call: Call) -> str:
    request = control_pb2.StopRunRequest(
        run_id=asked.run_id,
        reason=asked.reason or "",
        request_id=uuid.uuid4().hex,
        grace=None if asked.grace is None else duration(asked.grace),
    )
    return f"coordinator: run {asked.run_id}: {call('StopRun', request).outcome}"


def _restart_run(asked: RestartRun, call: Call) -> str:
    request = control_pb2.RestartRunRequest(
        run_id=asked.run_id,
        reason=asked.reason or "",
        request_id=uuid.uuid4().hex,
        grace=None if asked.grace is None else duration(asked.grace),
    )
    return f"coordinator: run {asked.run_id}: {call('RestartRun', request).outcome}"


def _forget_run(asked: ForgetRun, call: Call) -> str:
    request = control_pb2.ForgetRunRequest(run_id=asked.run_id, request_id=uuid.uuid4().hex)
    call("ForgetRun", request)
    return f"coordinator: run {asked.run_id}: it is forgotten"


def _drain_agent(asked: DrainAgent, call: Call) -> str:
    request = control_pb2.DrainAgentRequest(
        name=asked.name,
        run_id=asked.run_id or "",
        reason=asked.reason or "",
        request_id=uuid.uuid4().hex,
        grace=None if asked.grace is None else duration(asked.grace),
    )
    return f"coordinator: {asked.name}: {call('DrainAgent', request).outcome}"


def _undrain_agent(asked: UndrainAgent, call: Call) -> str:
    request = control_pb2.UndrainAgentRequest(
        name=asked.name,
        run_id=asked.run_id or "",
        reason=asked.reason or "",
        request_id=uuid.uuid4().hex,
    )
    return f"coordinator: {asked.name}: {call('UndrainAgent', request).outcome}"


def _list_drains(_asked: ListDrains, call: Call) -> str:
    drains = call("ListDrains", control_pb2.ListDrainsRequest()).drains
    rows = [
        (each.name, each.run_id, short(round(seconds_of(each.age))), each.caller, each.reason)
        for each in drains
    ]
    return table(("NAME", "RUN", "AGE", "BY", "REASON"), rows)


CALLS: dict[type[Request], Callable[[Any, Call], str]] = {
    ResetLimits: _reset_limits,
    CreateToken: _create_token,
    ListTokens: _list_tokens,
    RevokeToken: _revoke_token,
    ShowAuthority: _show_authority,
    RotateAuthority: _rotate_authority,
    RetireAuthority: _retire_authority,
    StopRun: _stop_run,
    RestartRun: _restart_run,
    ForgetRun: _forget_run,
    DrainAgent: _drain_agent,
    UndrainAgent: _undrain_agent,
    ListDrains: _list_drains,
}


def _row(token: control_pb2.Token) -> tuple[str, ...]:
    left_s = seconds_of(token.time_left) if token.HasField("time_left") else None
    state = "revoked" if token.is_revoked else "expired" if left_s == 0 else "valid"
    left = short(round(left_s)) if left_s and not token.is_revoked else ""
    age = short(round(seconds_of(token.age)))
    return token.token_id, _role(token), token.run_id, age, left, state, token.created_by


def _role(token: control_pb2.Token) -> str:
    # One of a later version has a number alone.
    name = control_pb2.Role.DESCRIPTOR.values_by_number.get(token.role)
    return name.name.removeprefix("ROLE_").lower() if name is not None else str(token.role)


def _fingerprint(key: str) -> str:
    """Return what the name of an authority has of its key; the key itself if it is none."""
    try:
        return hashlib.sha256(base64.urlsafe_b64decode(key)).hexdigest()[:16]
    except ValueError:
        return key


def failure_of(asked: Request, error: grpc.RpcError) -> CallFailed:
    """Say what went wrong with a call that was refused, or failed."""
    status, details = error.code(), str(error.details() or "")
    if status in _REFUSED:
        return CallFailed(_violation(error) or details, 2, _HINTS.get(type(asked), ""))
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and type(asked) in _FULL_HINTS:
        return CallFailed(details, 1, _FULL_HINTS[type(asked)])
    at = f"the coordinator at {asked.coordinator}"
    return CallFailed(f"{at} failed: {status.name}: {details}", 1)


def _violation(error: grpc.RpcError) -> str:
    """Name the option that the coordinator does not take, as its field is named there."""
    metadata: Any = error.trailing_metadata() or ()
    told = {key: value for key, value in metadata}  # noqa: C416 - it is of a type of its own
    found = common_pb2.ErrorDetail.FromString(told.get(ERROR_KEY, b"")).violation
    if not found.field:
        return ""
    option = f"--{found.field.replace('_', '-')}"
    return f"{option}: {found.value} is given, allowed is {found.allowed}"
