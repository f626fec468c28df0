"""Pure. Who calls, which role each method asks for, and what a caller may touch."""

from __future__ import annotations

import hashlib
from collections.abc import Set as AbstractSet

from msgspec import Struct

from drumbeat.access.token import Role
from drumbeat.coordinator import errors
from drumbeat.coordinator.api.operations import BY_FULL_NAME

_AGENT = "/drumbeat.v1.AgentService/"
# Roles beside admin, by service, of what is in no table of operations.
_SERVICES: dict[str, AbstractSet[Role]] = {
    _AGENT: {Role.JOIN},
    "/grpc.reflection.v1alpha.ServerReflection/": {Role.VIEW},
}
# What any caller may ask for that reaches the port.
OPEN = frozenset({"/grpc.health.v1.Health/"})
# Id of the token for the user that the coordinator runs as; no other token has it.
LOCAL_ID = "hostuser"


class Caller(Struct, frozen=True):
    """One that is known. ``name`` is the id of its token or the name in its certificate."""

    name: str
    role: Role
    run_id: str = ""  # the only run it is for; empty: any
    is_proven: bool = True  # whether agents have to prove their incarnation
    is_expired: bool = False  # its token was: it may bring agents back that came before

    def check_method(self, method: str) -> None:
        """Raise ``Forbidden`` if the caller may not call a method: ``/package.Service/Method``."""
        service = method[: method.rfind("/") + 1]
        if self.is_expired and service != _AGENT:
            raise errors.Unauthenticated(f"its token {self.name} has expired")
        allowed = roles_of(method)
        if allowed is None or self.role not in allowed:
            needed = " or ".join(sorted(allowed or {Role.ADMIN}))
            raise errors.Forbidden(self.name, f"{method[1:]} needs the role {needed}")

    def check_run(self, run_id: str) -> None:
        """Raise ``Forbidden`` if the caller is for another run."""
        if self.run_id and run_id != self.run_id:
            raise errors.Forbidden(self.name, f"it is for the run {self.run_id} only")

    def check_incarnation(self, incarnation: str, key: bytes) -> None:
        """Raise ``Forbidden`` unless ``key`` proves that the caller speaks for an incarnation."""
        if self.is_proven and incarnation_of(key) != incarnation:
            raise errors.Forbidden(self.name, "it does not prove that it speaks for this agent")


def roles_of(method: str) -> AbstractSet[Role] | None:
    """Return the roles that may call a method; ``None``: no table has it, so no one may."""
    operation = BY_FULL_NAME.get(method)
    service = method[: method.rfind("/") + 1]
    roles = _SERVICES.get(service) if operation is None else operation.roles
    return None if roles is None else roles | {Role.ADMIN}


TRUSTED = Caller("", Role.ADMIN, is_proven=False)
"""In the same process, or where nothing is authenticated."""


def incarnation_of(key: bytes) -> str:
    """Return the incarnation that a key proves."""
    return hashlib.sha256(key).hexdigest()[:32]
