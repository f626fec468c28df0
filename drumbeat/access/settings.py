"""Pure. How an agent, or an operator's command, is told whom to trust and who it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumbeat.access.token import Token, parse_token
from drumbeat.command.settings import FLAG, Kind, setting, text

_SECTION = "Access"
_PATH = text("the path of a file", len, metavar="FILE")


def _token(given: Any) -> Token:
    return given if isinstance(given, Token) else parse_token(str(given))


TOKEN = Kind(
    "a token, as `coordinator token create` prints it", _token, _token, Token.text, "TOKEN"
)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class AccessSettings:
    """What both a command line and a program can say of the way into a coordinator.

    Without any of it, the coordinator of the same user on the same host lets its user in.
    """

    token: Token | str | None = setting(  # noqa: RUF009
        None,
        TOKEN,
        _SECTION,
        "What lets this machine in, as the coordinator printed it. DRUMBEAT_TOKEN and "
        "--token-file keep it out of the list of processes.",
        shown_default="none; not needed by the coordinator's user on its host",
    )
    token_file: str | None = setting(
        None,
        _PATH,
        _SECTION,
        "File with the token, for its owner alone; read again at each connection.",
        shown_default="none",
    )
    tls_ca: str | None = setting(
        None,
        _PATH,
        _SECTION,
        "Authorities that the coordinator's certificate may be of, in PEM, instead of the "
        "token's; read again at each connection, as the next two.",
        shown_default="the token's",
    )
    tls_cert: str | None = setting(
        None, _PATH, _SECTION, "Certificate to show the coordinator, in PEM.", shown_default="none"
    )
    tls_key: str | None = setting(
        None, _PATH, _SECTION, "Its key, for its owner alone.", shown_default="none"
    )
    tls_server_name: str | None = setting(
        None,
        text("a name", len),
        _SECTION,
        "Name that the coordinator's certificate has to have, with --tls-ca.",
        shown_default="the host of --coordinator",
    )
    insecure: bool = setting(
        False,
        FLAG,
        _SECTION,
        "Speak to a coordinator that runs with --insecure: nothing is encrypted, and neither "
        "side knows the other.",
    )
