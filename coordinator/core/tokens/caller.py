"""Pure. Who calls, and which run and agent a caller may speak for."""

from __future__ import annotations

import hashlib

from msgspec import Struct

from drumbeat.access.token import Role
from drumbeat.coordinator import errors

# Id of the token for the user that the coordinator runs as; no other token has it.
LOCAL_ID = "hostuser"


class Caller(Struct, frozen=True):
    """One that is known. ``name`` is the id of its token or the name in its certificate."""

    name: str
    role: Role
    run_id: str = ""  # the only run, or job of replica groups, it is for; empty: any
    is_proven: bool = True  # whether agents have to prove their incarnation
    is_expired: bool = False  # its token was: it may bring agents back that came before

    def check_run(self, run_id: str, job: str = "") -> None:
        """Raise ``Forbidden`` if the caller is for another run, and not for the ``job`` of this."""
        if self.run_id and self.run_id not in (run_id, job):
            raise errors.Forbidden(self.name, f"it is for the run {self.run_id} only")

    def check_incarnation(self, incarnation: str, key: bytes) -> None:
        """Raise ``Forbidden`` unless ``key`` proves that the caller speaks for an incarnation."""
        if self.is_proven and incarnation_of(key) != incarnation:
            raise errors.Forbidden(self.name, "it does not prove that it speaks for this agent")


TRUSTED = Caller("", Role.ADMIN, is_proven=False)
"""In the same process, or where nothing is authenticated."""


def incarnation_of(key: bytes) -> str:
    """Return the incarnation that a key proves."""
    return hashlib.sha256(key).hexdigest()[:32]
