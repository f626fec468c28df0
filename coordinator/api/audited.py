"""Shell. What is around each control call: who makes it, for which run, and its audit line."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Protocol, TypeVar

from drumbeat.coordinator.access.audit import Audit
from drumbeat.coordinator.access.caller import Caller
from drumbeat.coordinator.api.operations import BY_METHOD, Scope
from drumbeat.format import one_line

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
    assert operation.audit is not None, "a control method is audited"
    noted = operation.audit.items()

    @wraps(function)
    async def serve(self: S, request: Req, context: object = None) -> Res:
        caller = self.caller_of(context)
        values = {key: getattr(request, name) for name, key in noted}
        with self.audit.call(operation.method, caller.name) as details:
            shown = {key: one_line(text, _VALUE_CHARACTERS_MAX) for key, text in values.items()}
            details |= {key: text for key, text in shown.items() if text}
            if operation.scope is Scope.RUN:
                caller.check_run(values["run.id"])
            return await function(self, request, caller.name, details)

    return serve
