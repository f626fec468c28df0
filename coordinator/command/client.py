"""Shell. Asks a coordinator for what a verb needs, and says why it was refused. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import grpc

from drumbeat.access.client import Metadata
from drumbeat.coordinator.access.calls import CoordinatorCalls, error_detail
from drumbeat.coordinator.api.documents import request_of
from drumbeat.coordinator.api.operations import BY_METHOD, CALL_TIMEOUT_S
from drumbeat.coordinator.api.run_reader import RunReader
from drumbeat.coordinator.command.request import Request
from drumbeat.coordinator.errors import CallFailed
from drumbeat.text.format import are, listed
from drumbeat.v1 import control_pb2_grpc, query_pb2_grpc
from drumbeat.v1 import query_pb2 as pb

T = TypeVar("T")

# Names that are looked through for those like another one.
COMPARED_MAX = 10_000

_REFUSED = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
    }
)


class Client(RunReader):
    """Calls the methods of operators by their names. Each raises ``grpc.RpcError``."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata) -> None:
        self._stubs: dict[str, Any] = {
            "Query": query_pb2_grpc.QueryServiceStub(channel),
            "Control": control_pb2_grpc.ControlServiceStub(channel),
        }
        self._metadata = metadata

    def call(self, method: str, *, timeout_s: float = CALL_TIMEOUT_S, **values: Any) -> Any:
        """Return the answer of a method, or the stream of its answers, within a time."""
        return self._method(method)(
            request_of(method, values), timeout=timeout_s, metadata=self._metadata
        )

    def watch(self, method: str, request: Any) -> Any:
        """Return the stream of the answers of a method, for as long as it lasts."""
        return self._method(method)(request, metadata=self._metadata)

    def _method(self, method: str) -> Any:
        return getattr(self._stubs[BY_METHOD[method].service], method)

    def watch_events(self, run: pb.Run, after: int) -> Iterator[pb.WatchEventsResponse]:
        """Return the stream of what is decided on a run after an event."""
        about = {"run_id": run.run_id, "generation": run.generation, "after_sequence": after}
        stream: Iterator[pb.WatchEventsResponse] = self.watch(
            "WatchEvents", request_of("WatchEvents", about)
        )
        return stream


def calls_of(asked: Request) -> CoordinatorCalls:
    """Return the way to the coordinator that a command was told of."""
    return CoordinatorCalls(asked, asked.coordinator, use_proxy=asked.use_proxy)


def ask(calls: CoordinatorCalls, work: Callable[[Client], T], **how: bool) -> T:
    """Return what ``work`` does with the coordinator that leads; as ``CoordinatorCalls.ask``."""
    return calls.ask(lambda channel, metadata: work(Client(channel, metadata)), **how)


def failure_of(asked: Request, error: grpc.RpcError) -> CallFailed:
    """Say what went wrong with a call that was refused, or failed."""
    status, details, verb = error.code(), str(error.details() or ""), asked.verb
    if status in _REFUSED:
        hint, run_id = verb.hint, asked.values.get("run_id")
        if status is grpc.StatusCode.NOT_FOUND and run_id is not None:
            hint = _runs_hint(asked, run_id) or hint
        return CallFailed(_violation(error) or details, 2, hint)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and verb.full_hint:
        return CallFailed(details, 1, verb.full_hint)
    at = "" if "," in asked.coordinator else f" at {asked.coordinator}"
    return CallFailed(f"the coordinator{at} failed: {status.name}: {details}", 1)


def _runs_hint(asked: Request, run_id: str) -> str:
    """Name the runs that there are, those like the one asked for first; empty if it is known."""
    try:
        runs = ask(calls_of(asked), Client.runs)
    except (grpc.RpcError, CallFailed):
        return ""  # what was refused is said in any case
    if run_id in (names := list(dict.fromkeys(run.run_id for run in runs))):
        return ""
    like = get_close_matches(run_id, names[:COMPARED_MAX])
    return known([*like, *names]) if names else "it has no run at present"


def known(names: Iterable[str]) -> str:
    """Say what there is: the first of some names, each once, and how many more."""
    once = list(dict.fromkeys(names))
    return f"there {are(len(once))} {listed(once)}"


def _violation(error: grpc.RpcError) -> str:
    """Name the option that the coordinator does not take, as its field is named there."""
    violation = error_detail(error).violation
    if not violation.field:
        return ""
    option = f"--{violation.field.replace('_', '-')}"
    return f"{option}: {violation.value} is given, allowed is {violation.allowed}"
