"""Shell. What is around each control call: who makes it, for which run, and its audit line."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Protocol, TypeVar

from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.api.operations import BY_METHOD, Scope
from drumbeat.coordinator.core.tokens.caller import Caller
from drumbeat.text.format import one_line

# What the audit has of requests, and how it names that.
_NOTED = {"run_id": "run.id", "name": "agent.name", "reason": "why", "text": "note"}
_VALUE_CHARACTERS_MAX = 256


class Service(Protocol):
    """A service with control methods."""

    audit: Audit
    caller_of: Callable[[object], Caller]


Details = dict[str, Any]
S = TypeVar("S", bound=Service)
Req = TypeVar("Req")
Res = TypeVar("Res")


def audited(
    function: Callable[[S, Req, str, Details], Coroutine[Any, Any, Res]],
) -> Callable[..., Coroutine[Any, Any, Res]]:
    """Make a control method of a function, which gets the caller's name and the audit details.

    Raises ``Forbidden`` for a caller of another run.
    """
    operation = BY_METHOD[function.__name__]

    @wraps(function)
    async def serve(self: S, request: Req, context: object = None) -> Res:
        caller = self.caller_of(context)
        with self.audit.call(operation.method, caller.name) as details:
            for field, name in _NOTED.items():
                if text := getattr(request, field, ""):
                    details[name] = one_line(text, _VALUE_CHARACTERS_MAX)
            if operation.scope is Scope.RUN:
                caller.check_run(getattr(request, "run_id", ""))
            return await function(self, request, caller.name, details)

    return serve
