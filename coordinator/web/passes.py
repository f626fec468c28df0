"""Pure. Codes and session cookies: signed values with a caller and an expiry.

They outlive a process and hold on every coordinator that has the key, so ``now`` is the time of
day here, in seconds since 1970.
"""

from __future__ import annotations

import base64
import hmac
from enum import StrEnum

import msgspec
from msgspec import Struct

from drumbeat.access.token import Role
from drumbeat.coordinator.errors import LimitReached, Unauthenticated

# Used codes that are remembered, each until it expires.
USED_MAX = 10_000
TEXT_CHARACTERS_MAX = 2_048


class Kind(StrEnum):
    """What a pass is for."""

    CODE = "code"  # opens one session
    SESSION = "session"  # calls


class Pass(Struct, frozen=True, kw_only=True):
    """The access of a caller, as long as its token is valid."""

    kind: Kind
    pass_id: str
    name: str
    role: Role
    until: float
    token_id: str
    run_id: str = ""  # the only run it may see; empty: all


def signed(issued: Pass, secret: bytes) -> str:
    """Return a pass as text, signed with the secret."""
    body = base64.urlsafe_b64encode(msgspec.json.encode(issued)).rstrip(b"=")
    return f"{body.decode()}.{_mac(body, secret)}"


def opened(text: str, kind: Kind, secret: bytes, *, now: float) -> Pass:
    """Read a pass. Raises ``Unauthenticated``."""
    body, _, mac = text.partition(".")
    is_ours = len(text) <= TEXT_CHARACTERS_MAX and text.isascii()
    if not is_ours or not hmac.compare_digest(mac, _mac(body.encode(), secret)):
        raise Unauthenticated(f"its {kind} is not one of this coordinator's, or not whole")
    try:
        padded = body + "=" * (-len(body) % 4)
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Pass)
    except (ValueError, msgspec.MsgspecError):  # signed by another version
        raise Unauthenticated(f"its {kind} is of another version of this coordinator") from None
    if decoded.kind is not kind:
        raise Unauthenticated(f"it brings a {decoded.kind} where a {kind} is asked for")
    if now >= decoded.until:
        raise Unauthenticated(f"its {kind} has expired")
    return decoded


def csrf_of(session: str, secret: bytes) -> str:
    """Return the CSRF token of a session, which other sites cannot know."""
    return _mac(b"csrf " + session.encode(), secret)


def _mac(body: bytes, secret: bytes) -> str:
    made = hmac.digest(secret, body, "sha256")
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


class UsedCodes:
    """Lets each code be used once, as long as this process lives."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def take(self, code: Pass, *, now: float) -> None:
        """Use a code. Raises ``Unauthenticated`` or ``LimitReached``."""
        if len(self._until) >= USED_MAX:
            self._until = {key: until for key, until in self._until.items() if now < until}
            if len(self._until) >= USED_MAX:
                raise LimitReached("used_codes_max", USED_MAX)
        if code.pass_id in self._until:
            raise Unauthenticated("its code was used before")
        self._until[code.pass_id] = code.until
