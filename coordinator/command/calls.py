"""Shell. Asks a coordinator what an operator wants; says what came of it, or what went wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from drumbeat.command.console import write_text
from drumbeat.command.table import short, table
from drumbeat.coordinator.access.calls import error_detail
from drumbeat.coordinator.api.documents import document_of, request_of
from drumbeat.coordinator.api.requests import (
    CheckpointRun,
    CreateToken,
    DrainAgent,
    ForgetRun,
    LinkPage,
    ListDrains,
    ListMembers,
    ListTokens,
    Request,
    ResetLimits,
    RestartRun,
    RetireAuthority,
    RevokeToken,
    RotateAuthority,
    ShowAuthority,
    StepDown,
    StopRun,
    UndrainAgent,
)
from drumbeat.coordinator.command.looking.reading import Reader, calls_of
from drumbeat.coordinator.errors import CallFailed
from drumbeat.format import are, count, listed, printable
from drumbeat.mapping import seconds_of
from drumbeat.v1 import control_pb2, control_pb2_grpc, query_pb2_grpc

if TYPE_CHECKING:
    from drumbeat.access.client import Metadata

# A coordinator answers within milliseconds; one that restarts is back within seconds.
CALL_TIMEOUT_S = 10.0
# The longest lease of a leader may have to end, and the next one's with it.
_TIMEOUTS_S: dict[type[Request], float] = {StepDown: 130.0}

# Names that are looked through for those like another one.
_COMPARED_MAX = 10_000

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

Call = Callable[[str], Any]  # calls a method of control or query with what the command was told


def perform(asked: Request, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
    """Ask for one thing; return what to print. Raises ``CallFailed``."""

    def work(channel: grpc.Channel, metadata: Metadata) -> Done:
        control = control_pb2_grpc.ControlServiceStub(channel)
        query = query_pb2_grpc.QueryServiceStub(channel)

        def call(method: str) -> Any:
            request = request_of(method, {**vars(asked), "request_id": uuid.uuid4().hex})
            stub = control if hasattr(control, method) else query
            within_s = _TIMEOUTS_S.get(type(asked), timeout_s)
            return getattr(stub, method)(request, timeout=within_s, metadata=metadata)

        return CALLS[type(asked)](asked, call)

    try:
        done = calls_of(asked).ask(work, is_repeatable=False)
    except grpc.RpcError as error:
        raise failure_of(asked, error) from error
    if done.note:
        write_text(f"coordinator: {printable(done.note)}\n")
    return done.text if asked.output == "text" else json.dumps(done.document)


class Done(NamedTuple):
    """What came of a request, to be read and for programs."""

    text: str
    document: dict[str, Any]
    note: str = ""  # for the user, on standard error


def _reset_limits(asked: ResetLimits, call: Call) -> Done:
    response = call("ResetLimits")
    text = f"coordinator: run {asked.run_id}: {count(response.forgotten, 'limit')} forgotten"
    return Done(text, {"run_id": asked.run_id, "forgotten": response.forgotten})


def _create_token(_asked: CreateToken, call: Call) -> Done:
    created = call("CreateToken")
    return Done(created.text, {"token": created.text, **_token(created.token)})


def _list_tokens(_asked: ListTokens, call: Call) -> Done:
    heads = ("ID", "ROLE", "RUN", "AGE", "LEFT", "STATE", "CREATED BY")
    tokens = [_token(each) for each in call("ListTokens").tokens]
    rows = [
        (
            each["token_id"],
            each["role"],
            each["run_id"] or "",
            _short(each["age_s"]),
            _short(each["time_left_s"]) if each["state"] == "valid" else "",
            each["state"],
            each["created_by"] or "",
        )
        for each in tokens
    ]
    return Done(table(heads, rows), {"tokens": tokens})


def _revoke_token(_asked: RevokeToken, call: Call) -> Done:
    token = _token(call("RevokeToken").token)
    text = f"coordinator: {token['role']} token {token['token_id']} is revoked"
    return Done(text, token)


def _show_authority(_asked: ShowAuthority, call: Call) -> Done:
    keys = call("GetAuthority").keys
    served = ["newest", *["until it is retired"] * (len(keys) - 1)]
    rows = [(_fingerprint(key), key, until) for key, until in zip(keys, served, strict=True)]
    return Done(table(("AUTHORITY", "KEY IN TOKENS", "SERVED"), rows), _authorities(keys))


def _rotate_authority(_asked: RotateAuthority, call: Call) -> Done:
    keys = call("RotateAuthority").keys
    told = f"coordinator: new tokens are of the authority {_fingerprint(keys[0])}"
    until = "served until `coordinator authority retire`"
    return Done(f"{told}; those of the {len(keys) - 1} before are {until}", _authorities(keys))


def _retire_authority(_asked: RetireAuthority, call: Call) -> Done:
    keys = call("RetireAuthority").keys
    text = f"coordinator: only tokens of the authority {_fingerprint(keys[0])} are served"
    return Done(text, _authorities(keys))


def _steer(asked: StopRun | RestartRun | CheckpointRun, call: Call, *, method: str) -> Done:
    response = call(method)
    document = {"run_id": asked.run_id, "is_new": response.is_new, "outcome": response.outcome}
    return Done(f"coordinator: run {asked.run_id}: {response.outcome}", document)


def _forget_run(asked: ForgetRun, call: Call) -> Done:
    is_new = call("ForgetRun").is_new
    document = {"run_id": asked.run_id, "is_new": is_new, "outcome": "it is forgotten"}
    return Done(f"coordinator: run {asked.run_id}: it is forgotten", document)


def _drain_agent(asked: DrainAgent, call: Call) -> Done:
    response = call("DrainAgent")
    done = _drained(asked, response)
    if not response.is_new or response.agents_count:
        return done
    return done._replace(note=_agents_like(asked))


def _undrain_agent(asked: UndrainAgent, call: Call) -> Done:
    response = call("UndrainAgent")
    done = _drained(asked, response)
    if response.is_new:
        return done
    names = {drain.name for drain in call("ListDrains").drains}
    drained = f"drained {are(len(names))} {listed(sorted(names))}" if names else ""
    return done._replace(note=drained)


def _drained(asked: DrainAgent | UndrainAgent, response: Any) -> Done:
    document = {
        "name": asked.name,
        "run_id": asked.run_id,
        "is_new": response.is_new,
        "outcome": response.outcome,
    }
    return Done(f"coordinator: {asked.name}: {response.outcome}", document)


def _list_drains(_asked: ListDrains, call: Call) -> Done:
    found = call("ListDrains").drains
    drains = [document_of(each) for each in found]
    rows = [
        (
            each["name"],
            each["run_id"] or "",
            _short(each["age_s"]),
            each["caller"] or "",
            each["reason"] or "",
        )
        for each in drains
    ]
    return Done(table(("NAME", "RUN", "AGE", "BY", "REASON"), rows), {"drains": drains})


def _list_members(_asked: ListMembers, call: Call) -> Done:
    response = call("ListCoordinators")
    members = [document_of(each) for each in response.coordinators]
    rows = [
        (
            each["address"],
            "leads" if each["is_leader"] else "follows",
            each["version"] or "",
            "yes" if each["is_this"] else "",
        )
        for each in members
    ]
    document = {
        "coordinators": members,
        "term": response.term or None,
        "reason": response.reason or None,
    }
    nothing = f"nothing is decided: {response.reason}" if response.reason else ""
    return Done(table(("ADDRESS", "ROLE", "VERSION", "ANSWERS"), rows), document, nothing)


def _step_down(_asked: StepDown, call: Call) -> Done:
    leader = call("StepDown").leader
    return Done(f"coordinator: {leader} leads", {"leader": leader})


def _link_page(_asked: LinkPage, call: Call) -> Done:
    found = call("GetPageLink")
    left_s = seconds_of(found.time_left) if found.HasField("time_left") else None
    return Done(found.url, {"url": found.url, "time_left_s": left_s})


CALLS: dict[type[Request], Callable[[Any, Call], Done]] = {
    ResetLimits: _reset_limits,
    CreateToken: _create_token,
    ListTokens: _list_tokens,
    RevokeToken: _revoke_token,
    ShowAuthority: _show_authority,
    RotateAuthority: _rotate_authority,
    RetireAuthority: _retire_authority,
    StopRun: partial(_steer, method="StopRun"),
    RestartRun: partial(_steer, method="RestartRun"),
    CheckpointRun: partial(_steer, method="Checkpoint"),
    ForgetRun: _forget_run,
    DrainAgent: _drain_agent,
    UndrainAgent: _undrain_agent,
    ListDrains: _list_drains,
    ListMembers: _list_members,
    StepDown: _step_down,
    LinkPage: _link_page,
}


def _token(token: control_pb2.Token) -> dict[str, Any]:
    left_s = seconds_of(token.time_left) if token.HasField("time_left") else None
    return {
        "token_id": token.token_id,
        "role": _role(token),
        "run_id": token.run_id or None,
        "age_s": seconds_of(token.age),
        "time_left_s": left_s,
        "state": "revoked" if token.is_revoked else "expired" if left_s == 0 else "valid",
        "created_by": token.created_by or None,
    }


def _authorities(keys: Sequence[str]) -> dict[str, Any]:
    return {"authorities": [{"authority": _fingerprint(key), "key": key} for key in keys]}


def _short(seconds: float | None) -> str:
    return "" if seconds is None else short(round(seconds))


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
        hint = _HINTS.get(type(asked), "")
        run_id = getattr(asked, "run_id", None)
        if status is grpc.StatusCode.NOT_FOUND and run_id is not None:
            hint = _runs_hint(asked, run_id) or hint
        return CallFailed(_violation(error) or details, 2, hint)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and type(asked) in _FULL_HINTS:
        return CallFailed(details, 1, _FULL_HINTS[type(asked)])
    at = "" if "," in asked.coordinator else f" at {asked.coordinator}"
    return CallFailed(f"the coordinator{at} failed: {status.name}: {details}", 1)


def _runs_hint(asked: Request, run_id: str) -> str:
    """Name the runs that there are, those like the one asked for first; empty if it is known."""
    try:
        runs = calls_of(asked).ask(lambda *opened: Reader(*opened).runs())
    except (grpc.RpcError, CallFailed):
        return ""  # what was refused is said in any case
    if run_id in (names := list(dict.fromkeys(run.run_id for run in runs))):
        return ""
    like = get_close_matches(run_id, names[:_COMPARED_MAX])
    return _there([*like, *names]) if names else "it has no run at present"


def _agents_like(asked: DrainAgent) -> str:
    """Warn that no agent or host has this name yet; name those that are meant, or may be."""
    names = sorted(calls_of(asked).ask(lambda *opened: _names(asked, Reader(*opened))))
    known = get_close_matches(asked.name, names[:_COMPARED_MAX]) or names
    there = f"; {_there(known)}" if known else ""
    warning = f"warning: no agent or host is called {asked.name} now"
    return f"{warning}{there}; `coordinator undrain {asked.name}` takes the drain back"


def _names(asked: DrainAgent, reader: Reader) -> set[str]:
    names = set[str]()
    for run in reader.runs():
        if asked.run_id in (None, run.run_id) and len(names) < _COMPARED_MAX:
            for agent in reader.agents(run):
                names |= {agent.name, agent.host}
    return names


def _there(names: Iterable[str]) -> str:
    """Say what there is: the first of some names, each once, and how many more."""
    each = list(dict.fromkeys(names))
    return f"there {are(len(each))} {listed(each)}"


def _violation(error: grpc.RpcError) -> str:
    """Name the option that the coordinator does not take, as its field is named there."""
    found = error_detail(error).violation
    if not found.field:
        return ""
    option = f"--{found.field.replace('_', '-')}"
    return f"{option}: {found.value} is given, allowed is {found.allowed}"
