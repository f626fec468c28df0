"""Pure. How an agent, or an operator's command, is told whom to trust and who it is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from drumbeat.access.token import PREFIX, Token, parse_token
from drumbeat.command.settings import FLAG, Kind, setting, text
from drumbeat.text.violation import Violation

_SECTION = "Access"
_PATH = text("the path of a file", len, metavar="FILE")


def _token(given: Any) -> Token:
    return given if isinstance(given, Token) else parse_token(str(given))


TOKEN = Kind(
    "a token, as `coordinator token create` prints it",
    _token,
    _token,
    Token.text,
    "TOKEN",
    is_secret=True,
)
# A token may land here by mistake.
_TOKEN_FILE = text(
    "the path of a file with a token", lambda path: path and PREFIX not in path, metavar="FILE"
)._replace(is_secret=True)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class AccessSettings:
    """What both a command line and a program can say of the way into a coordinator.

    Without any of it, the coordinator of the same user on the same host lets its user in.
    """

    token: Token | str | None = setting(  # noqa: RUF009
        None,
        TOKEN,
        _SECTION,
        "Token that the coordinator printed. DRUMBEAT_TOKEN and --token-file keep it out of the "
        "process list and the shell's history.",
        shown_default="none; not needed by the coordinator's user on its host",
    )
    token_file: str | None = setting(
        None,
        _TOKEN_FILE,
        _SECTION,
        "File with the token, mode 0600. It is read again at each connection, so that a token "
        "can be replaced.",
        shown_default="none",
    )
    tls_ca: str | None = setting(
        None,
        _PATH,
        _SECTION,
        "Authorities of the coordinator's certificate, in PEM, instead of the token's. The files "
        "of --tls-* are read again at each connection.",
        shown_default="the token's",
    )
    tls_cert: str | None = setting(
        None, _PATH, _SECTION, "Client certificate, in PEM.", shown_default="none"
    )
    tls_key: str | None = setting(
        None, _PATH, _SECTION, "Key of --tls-cert, in PEM; mode 0600.", shown_default="none"
    )
    tls_server_name: str | None = setting(
        None,
        text("a name", len),
        _SECTION,
        "Name that the coordinator's certificate must have, with --tls-ca.",
        shown_default="the host of --coordinator",
    )
    insecure: bool = setting(
        False,
        FLAG,
        _SECTION,
        "Connect to a coordinator that runs with --insecure: no encryption, no authentication.",
    )

    def access_given(self) -> list[str]:
        """Return which of these settings are given."""
        return [name for name in ACCESS_NAMES if getattr(self, name)]

    def access_violations(self) -> list[Violation]:
        """Return the rules that these settings break together."""
        violations: list[Violation] = []
        given = self.access_given()
        if self.insecure and len(given) > 1:
            allowed = "plaintext alone: without encryption there is no token and no certificate"
            violations.append(Violation("insecure", self.insecure, allowed))
        if self.token and self.token_file:
            allowed = "nothing beside a token that is given itself"
            violations.append(Violation("token_file", self.token_file, allowed))
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if other in given and name not in given:
                allowed = f"the path of a file, for the {_PARTS[other]} needs its {_PARTS[name]}"
                violations.append(Violation(name, None, allowed))
        if self.tls_server_name and not self.tls_ca:
            allowed = "nothing without authorities: the token says whom to trust"
            violations.append(Violation("tls_server_name", self.tls_server_name, allowed))
        return violations


ACCESS_NAMES = tuple(field.name for field in fields(AccessSettings))
_PARTS = {"tls_cert": "certificate", "tls_key": "key"}
