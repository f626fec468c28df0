"""Shell. What is asked for over HTTP: stops, restarts, saves, drains, as by the command line."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

from coordinator.errors import InvalidRequest
from coordinator.shell.http.calls import Call
from coordinator.shell.http.site import RUN, Handle, Route
from coordinator.wire.documents import Document
from drumbeat.format import one_line
from drumbeat.mapping import duration
from drumbeat.v1 import control_pb2 as pb

M = TypeVar("M", bound=Message)

_TEXTS = ("reason", "name", "run_id", "call_id")
# Of each kind of request, and of no other: a field that is misspelt is not passed over.
_OF_RUN = frozenset({"reason", "grace_s", "call_id"})
_OF_DRAIN = frozenset({"name", "run_id", "reason", "grace_s", "call_id"})
_OF_UNDRAIN = frozenset({"name", "run_id", "reason", "call_id"})


class Actions:
    """The handlers of it. They are for the role admin, and each is a line of the audit."""

    def routes(self) -> list[Route]:
        """Return where they are."""

        def route(path: str, rpc: str, handle: Handle) -> Route:
            return Route(path, f"ControlService/{rpc}", handle, is_change=True)

        return [
            route(f"/api/runs/{RUN}/stop", "StopRun", self.stop),
            route(f"/api/runs/{RUN}/restart", "RestartRun", self.restart),
            route(f"/api/runs/{RUN}/checkpoint", "Checkpoint", self.checkpoint),
            route("/api/drains", "DrainAgent", self.drain),
            route("/api/undrains", "UndrainAgent", self.undrain),
        ]

    async def stop(self, call: Call) -> Document:
        """Stop a run."""
        request = await _asked(call, pb.StopRunRequest, _OF_RUN)
        return _done(await call.term.control.StopRun(request, call))

    async def restart(self, call: Call) -> Document:
        """Have a run begin another round."""
        request = await _asked(call, pb.RestartRunRequest, _OF_RUN)
        return _done(await call.term.control.RestartRun(request, call))

    async def checkpoint(self, call: Call) -> Document:
        """Have training save, and go on."""
        request = await _asked(call, pb.CheckpointRequest, _OF_RUN)
        return _done(await call.term.control.Checkpoint(request, call))

    async def drain(self, call: Call) -> Document:
        """Make agents leave, and keep them out."""
        request = await _asked(call, pb.DrainAgentRequest, _OF_DRAIN)
        response = await call.term.control.DrainAgent(request, call)
        return {**_done(response), "agents_count": response.agents_count}

    async def undrain(self, call: Call) -> Document:
        """Let agents in again."""
        request = await _asked(call, pb.UndrainAgentRequest, _OF_UNDRAIN)
        return _done(await call.term.control.UndrainAgent(request, call))


async def _asked(call: Call, kind: type[M], fields: frozenset[str]) -> M:
    """Read what is asked for. Raises ``InvalidRequest`` or ``Forbidden``."""
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


def _done(response: Any) -> Document:
    return {"is_new": response.is_new, "outcome": response.outcome}
