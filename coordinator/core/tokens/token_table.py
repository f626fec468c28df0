"""Pure. What is known of tokens, and whom one lets in: the fold of what the journal keeps of them.

The clock is the coordinator's. It goes on while the coordinator is down, but not while its
machine is: after a reboot it goes on from the last write. So that no token comes back by that,
one that has expired is journaled as such.
"""

from __future__ import annotations

import hashlib
import hmac

from msgspec import Struct

from drumbeat.access.token import Role, Token
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.tokens.caller import Caller


class KeptToken(Struct, frozen=True, kw_only=True):
    """A token, nearly always without its secret. Instants are those of the coordinator's clock."""

    token_id: str
    role: Role
    secret_sha256: bytes
    created_at: float
    expires_at: float | None = None  # None: it is valid until it is revoked
    run_id: str = ""  # the only run that it is for; empty: any
    created_by: str = ""  # the name of a caller
    has_expired: bool = False
    revoked_at: float | None = None
    # Of the one token that coordinators make themselves, so that each can tell how to join.
    secret: str = ""

    def is_expired(self, *, now: float) -> bool:
        """Return whether it opens nothing new any more."""
        return self.has_expired or (self.expires_at is not None and now >= self.expires_at)

    def is_valid(self, *, now: float) -> bool:
        """Return whether it is neither revoked nor expired."""
        return self.revoked_at is None and not self.is_expired(now=now)

    @property
    def ended_at(self) -> float:
        """When it was revoked or else expires; never, if that is not known."""
        instants = (self.revoked_at, self.expires_at)
        return min((at for at in instants if at is not None), default=float("inf"))

    def __str__(self) -> str:
        return f"{self.role} token {self.token_id}"

    __repr__ = __str__  # it may have a secret


class TokenTable:
    """Tokens by their ids, in the order of their creation."""

    def __init__(self) -> None:
        self.tokens: dict[str, KeptToken] = {}

    def put(self, token_id: str, token: KeptToken | None) -> None:
        """Take in what is known of a token from now on; ``None``: nothing."""
        if token is None:
            self.tokens.pop(token_id, None)
        else:
            self.tokens[token_id] = token

    def is_revoked(self, token_id: str) -> bool:
        """Return whether there was such a token."""
        kept = self.tokens.get(token_id)
        return kept is not None and kept.revoked_at is not None

    def verify(self, token: Token, *, now: float) -> Caller:
        """Return who calls with a token. Raises ``Unauthenticated``.

        An expired one still tells who it is: that may come back where it was before.
        """
        kept = self.tokens.get(token.token_id)
        given = secret_sha256(token.secret)
        is_right = hmac.compare_digest(given, given[::-1] if kept is None else kept.secret_sha256)
        if kept is None or not is_right or token.role is not kept.role:
            raise errors.Unauthenticated(f"its token {token.token_id} is not known here")
        if kept.revoked_at is not None:
            raise errors.RevokedToken(kept.token_id, kept.run_id)
        is_expired = kept.is_expired(now=now)
        return Caller(kept.token_id, kept.role, kept.run_id, is_expired=is_expired)


def secret_sha256(secret: str) -> bytes:
    """Return what is kept of a secret: it has too many bits to be guessed from that."""
    return hashlib.sha256(secret.encode()).digest()
