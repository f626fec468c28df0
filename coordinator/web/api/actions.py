"""Shell. Changes over HTTP: the control methods that have a path, as gRPC serves them."""

from __future__ import annotations

from functools import partial
from typing import Any

from drumbeat.coordinator.api.documents import REQUESTS, Document, document_of, request_of
from drumbeat.coordinator.api.operations import OPERATIONS
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.web.calls import WebCall
from drumbeat.coordinator.web.site import Route
from drumbeat.text.format import one_line

_RENAMED = {"grace": "grace_s", "request_id": "call_id"}


def action_routes() -> list[Route]:
    """Return the routes of all control methods."""
    return [
        Route(path, partial(_act, operation.method))
        for operation in OPERATIONS
        if operation.service == "Control"
        for path in operation.paths
    ]


async def _act(method: str, call: WebCall) -> Document:
    request = await _request(call, method)
    return document_of(await getattr(call.term.control, method)(request, call))


async def _request(call: WebCall, method: str) -> Any:
    """Read the request of a call. Raises ``InvalidRequest`` or ``Forbidden``."""
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
    if (grace := body.get("grace_s")) is not None and (
        isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < 1e9
    ):
        raise InvalidRequest("grace_s", one_line(str(grace), 64), "seconds, 0 or more")
    given = {name: body.get(key) for name, key in names.items()}
    return request_of(method, {**given, "run_id": call.run_id or body.get("run_id", "")})
