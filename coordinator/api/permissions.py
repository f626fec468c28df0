"""Pure. Which role each method of the protocol needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from drumbeat.access.token import Role
from drumbeat.coordinator import errors
from drumbeat.coordinator.api.operations import BY_FULL_NAME
from drumbeat.coordinator.core.tokens.caller import Caller

_AGENT = "/drumbeat.v1.AgentService/"
# Roles beside admin, by service, of methods that are not in the table of operations.
_SERVICES: dict[str, AbstractSet[Role]] = {
    _AGENT: {Role.JOIN},
    "/grpc.reflection.v1alpha.ServerReflection/": {Role.VIEW},
}
# Services that need no token.
OPEN = frozenset({"/grpc.health.v1.Health/"})


def check_method(caller: Caller, method: str) -> None:
    """Raise ``Forbidden`` if ``caller`` may not call ``method``: ``/package.Service/Method``."""
    service = method[: method.rfind("/") + 1]
    if caller.is_expired and service != _AGENT:
        raise errors.Unauthenticated(f"its token {caller.name} has expired")
    allowed = roles_of(method)
    if allowed is None or caller.role not in allowed:
        needed = " or ".join(sorted(allowed or {Role.ADMIN}))
        raise errors.Forbidden(caller.name, f"{method[1:]} needs the role {needed}")


def roles_of(method: str) -> AbstractSet[Role] | None:
    """Return the roles that may call a method; ``None``: no table has it, so no one may."""
    operation = BY_FULL_NAME.get(method)
    service = method[: method.rfind("/") + 1]
    roles = _SERVICES.get(service) if operation is None else operation.roles
    return None if roles is None else roles | {Role.ADMIN}
