"""Pure. Tokens: one string that names a role, opens a session and says whom to trust.

``drumbeat1.ROLE.ID.SECRET.CA.CHECK``: the id is no secret and is what logs have; ``CA`` is the
public key of the coordinator's certificate authority, so that an agent trusts this coordinator
and no other from the first contact on; the check tells a slip of the clipboard from a wrong token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

PREFIX = "drumbeat1"
ID_CHARACTERS = 8
SECRET_CHARACTERS = 22  # 128 bits
CHECK_CHARACTERS = 8
CA_CHARACTERS = 44  # a compressed point of P-256
NO_CA = "-"  # the coordinator's certificate is not its own: the agent is told whom to trust
_PART = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Role(StrEnum):
    """What a caller may do."""

    JOIN = "join"  # sessions and failure records, and the report of its run
    VIEW = "view"  # reading
    ADMIN = "admin"  # everything


class InvalidToken(ValueError):
    """A text is no token; the message says why, without the text."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. Its text is ``text()`` alone: as a string it has no secret."""

    role: Role
    token_id: str
    secret: str
    ca: str = NO_CA

    def text(self) -> str:
        """Return the one string that a user hands on."""
        body = f"{PREFIX}.{self.role}.{self.token_id}.{self.secret}.{self.ca}"
        return f"{body}.{_check(body)}"

    def __str__(self) -> str:
        return f"{self.role} token {self.token_id}"

    def __repr__(self) -> str:
        return f"<{self}>"


def parse_token(given: str) -> Token:
    """Read a token. Raises ``InvalidToken``, with a sentence that does not have the text in it."""
    text = given.strip()
    if not text:
        raise InvalidToken("the token is empty")
    parts = text.split(".")
    if parts[0] != PREFIX:
        known = re.fullmatch(r"drumbeat\d{1,3}", parts[0])
        of_another = f"it begins with {parts[0]}, which this version does not know"
        raise InvalidToken(f"the token is none of ours: {of_another}" if known else _NOT_OURS)
    if len(parts) < 6 or len(parts[5]) < CHECK_CHARACTERS:
        raise InvalidToken(
            f"the token is cut short: it has {len(parts)} of 6 parts and {len(text)} characters"
        )
    body, _, check = text.rpartition(".")
    _, role, token_id, secret, ca, *more = parts[:-1]
    is_whole = (
        not more
        and check == _check(body)
        and role in list(Role)
        and len(token_id) == ID_CHARACTERS
        and len(secret) == SECRET_CHARACTERS
        and (ca == NO_CA or len(ca) == CA_CHARACTERS)
        and all(map(_PART.fullmatch, parts))
    )
    if not is_whole:
        raise InvalidToken("the token was changed on its way: copy it again, whole")
    return Token(Role(role), token_id, secret, ca)


_NOT_OURS = f"this is no token: one begins with '{PREFIX}.'"


def _check(body: str) -> str:
    return f"{crc32(body.encode('utf-8', 'surrogatepass')):08x}"
