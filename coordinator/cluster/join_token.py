"""Shell. The token with which machines join if the operator makes no other, and how to say so."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from drumbeat.access.token import NO_CA, InvalidToken, Role, Token, parse_token
from drumbeat.coordinator.core.events import TokenCreated
from drumbeat.coordinator.core.tokens.token_table import secret_sha256
from drumbeat.coordinator.errors import Unauthenticated
from drumbeat.coordinator.shell.driver import Driver

FILE = "join.token"  # in the state directory, for its user alone
# Standard output is a log there, which others than this user read, even if it is a terminal.
_LOGS = ("JOURNAL_STREAM", "KUBERNETES_SERVICE_HOST")


async def join_token(directory: Path, driver: Driver, ca: str, *, is_shared: bool) -> Token | None:
    """Return the token to join with, made when there is none; None once it was revoked.

    It is kept in the file, and if it ``is_shared`` in the journal, so that all coordinators have
    the same one. ``ca`` is the key of the authority that it is to pin. Raises
    ``CoordinatorError`` if it can't be made now, ``OSError`` for the file.
    """
    known = _shared(driver) if is_shared else _read(directory)
    if known is None:
        known = Token(Role.JOIN, secrets.token_hex(4), secrets.token_urlsafe(16), ca)
        asked = TokenCreated(
            token_id=known.token_id,
            role=known.role,
            secret_sha256=secret_sha256(known.secret),
            kept_secret=known.secret if is_shared else "",
        )
        await driver.change_token(asked)
    try:
        driver.tokens.verify(known, now=driver.now())
    except Unauthenticated:
        return None
    token = replace(known, ca=ca)
    if token != _read(directory):
        _write(directory, token)
    return token


def _shared(driver: Driver) -> Token | None:
    """Return the token that coordinators have made."""
    kept = (token for token in driver.tokens.tokens.values() if token.secret)
    return next((Token(token.role, token.token_id, token.secret, NO_CA) for token in kept), None)


def pin(directory: Path, ca: str) -> Token | None:
    """Have the token of the file name another authority; return it, None if there is none."""
    if (known := _read(directory)) is None:
        return None
    token = replace(known, ca=ca)
    if token != known:
        _write(directory, token)
    return token


def how_to_join(addresses: Sequence[str], token: Token | None, directory: Path) -> str:
    """Return what the operator is shown; ``addresses`` are those of all coordinators there are."""
    if token is None:
        return "make a token for machines that join:\n  coordinator token create --role join"
    # In the environment, for all users of a host read the arguments of its processes.
    before, after = f"DRUMBEAT_TOKEN={token.text()} ", ""
    if not shows_secrets():
        before, after = "", f" --token-file {directory / FILE}"
    if token.ca == NO_CA:
        after += " --tls-ca ca.crt"  # of the authority that the operator knows
    command = f"{before}agent join --coordinator {','.join(addresses)}{after} train.py"
    return f"join a machine with:\n  {command}"


def shows_secrets() -> bool:
    """Whether this user alone reads standard output: it is a terminal, and not that of a pod."""
    return sys.stdout.isatty() and not any(map(os.environ.get, _LOGS))


def _read(directory: Path) -> Token | None:
    """Return the token of the file; None if there is none, or none that is whole."""
    try:
        return parse_token((directory / FILE).read_text(errors="replace"))
    except (FileNotFoundError, InvalidToken):
        return None


def _write(directory: Path, token: Token) -> None:
    """Replace the file whole: agents may read it at any time."""
    new = directory / f"{FILE}.new"
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(f"{token.text()}\n")
    new.replace(directory / FILE)
