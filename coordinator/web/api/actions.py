"""Shell. What is asked for over HTTP: stops, restarts, saves, drains, as by the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict

from drumbeat.coordinator.api.documents import REQUESTS, Document, request_of
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.web.calls import Call
from drumbeat.coordinator.web.site import RUN, Route
from drumbeat.format import one_line

_METHODS = {
    f"/api/runs/{RUN}/stop": "StopRun",
    f"/api/runs/{RUN}/restart": "RestartRun",
    f"/api/runs/{RUN}/checkpoint": "Checkpoint",
    "/api/drains": "DrainAgent",
    "/api/undrains": "UndrainAgent",
}
_RENAMED = {"grace": "grace_s", "request_id": "call_id"}


def action_routes() -> list[Route]:
    """Return the routes of all actions. They need the role admin; each is a line of the audit."""
    return [
        Route(path, f"ControlService/{method}", partial(_act, method), is_change=True)
        for path, method in _METHODS.items()
    ]


async def _act(method: str, call: Call) -> Document:
    request = await _asked(call, method)
    response = await getattr(call.term.control, method)(request, call)
    return MessageToDict(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


async def _asked(call: Call, method: str) -> Any:
    """Read what is asked for. Raises ``InvalidRequest`` or ``Forbidden``."""
    body = await call.body()
    names = {name: _RENAMED.get(name, name) for name in REQUESTS[method].fields_by_name}
    # A field that is misspelt is not passed over.
    fields = set(names.values()) - ({"run_id"} if call.run_id else set())
    if unknown := sorted(body.keys() - fields):
        allowed = f"of the fields {', '.join(sorted(fields))}"
        raise InvalidRequest("body", one_line(unknown[0], 64), allowed)
    for name in fields - {"grace_s"}:
        if not isinstance(body.get(name, ""), str):
            raise InvalidRequest(name, one_line(str(body[name]), 64), "a text")
    run_id = call.run_id or body.get("run_id", "")
    call.known.caller.check_run(run_id)
    if (grace := body.get("grace_s")) is not None and (
        isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < 1e9
    ):
        raise InvalidRequest("grace_s", one_line(str(grace), 64), "seconds, 0 or more")
    given = {name: body.get(shown) for name, shown in names.items()}
    return request_of(method, {**given, "run_id": run_id})
