"""Shell. What is asked for over HTTP: stops, restarts, saves, drains, as by the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.message import Message

from coordinator.errors import InvalidRequest
from coordinator.shell.http.calls import Call
from coordinator.shell.http.site import RUN, Route
from coordinator.wire.documents import Document
from drumbeat.format import one_line
from drumbeat.mapping import duration
from drumbeat.v1 import control_pb2 as pb

_TEXTS = ("reason", "name", "run_id", "call_id")
# Of each kind of request, and of no other: a field that is misspelt is not passed over.
_OF_RUN = frozenset({"reason", "grace_s", "call_id"})
_OF_DRAIN = frozenset({"name", "run_id", "reason", "grace_s", "call_id"})
_OF_UNDRAIN = frozenset({"name", "run_id", "reason", "call_id"})


_ACTIONS: tuple[tuple[str, str, type[Message], frozenset[str]], ...] = (
    (f"/api/runs/{RUN}/stop", "StopRun", pb.StopRunRequest, _OF_RUN),
    (f"/api/runs/{RUN}/restart", "RestartRun", pb.RestartRunRequest, _OF_RUN),
    (f"/api/runs/{RUN}/checkpoint", "Checkpoint", pb.CheckpointRequest, _OF_RUN),
    ("/api/drains", "DrainAgent", pb.DrainAgentRequest, _OF_DRAIN),
    ("/api/undrains", "UndrainAgent", pb.UndrainAgentRequest, _OF_UNDRAIN),
)


def action_routes() -> list[Route]:
    """Return the routes of all actions. They need the role admin; each is a line of the audit."""
    return [
        Route(path, f"ControlService/{rpc}", partial(_act, rpc, kind, fields), is_change=True)
        for path, rpc, kind, fields in _ACTIONS
    ]


async def _act(rpc: str, kind: type[Message], fields: frozenset[str], call: Call) -> Document:
    """Do what is asked for. Raises ``InvalidRequest`` or ``Forbidden``."""
    request = await _asked(call, kind, fields)
    done = await getattr(call.term.control, rpc)(request, call)
    about = {"agents_count": done.agents_count} if rpc == "DrainAgent" else {}
    return {"is_new": done.is_new, "outcome": done.outcome, **about}


async def _asked(call: Call, kind: type[Message], fields: frozenset[str]) -> Message:
    body = await call.body()
    if unknown := sorted(body.keys() - fields):
        allowed = f"of the fields {', '.join(sorted(fields))}"
        raise InvalidRequest("body", one_line(unknown[0], 64), allowed)
    for name in fields.intersection(_TEXTS):
        if not isinstance(body.get(name, ""), str):
            raise InvalidRequest(name, one_line(str(body[name]), 64), "a text")
    run_id = call.run_id or body.get("run_id", "")
    call.known.caller.check_run(run_id)
    more: dict[str, Any] = {"name": body["name"]} if "name" in body else {}
    if (grace := body.get("grace_s")) is not None:
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < 1e9:
            raise InvalidRequest("grace_s", one_line(str(grace), 64), "seconds, 0 or more")
        more["grace"] = duration(grace)
    return kind(
        run_id=run_id,
        reason=body.get("reason", ""),
        request_id=body.get("call_id", ""),
        **more,
    )
