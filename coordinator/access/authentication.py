"""Pure. Who calls: from the token or the certificate that a call brings."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping

from drumbeat.access.token import InvalidToken, Role, Token, parse_token
from drumbeat.coordinator import errors
from drumbeat.coordinator.core.tokens.caller import TRUSTED, Caller

AUTHORIZATION = "authorization"
_SCHEME = "bearer "

Metadata = Iterable[tuple[str, str | bytes]]
Verify = Callable[[Token], Caller]
OfCertificate = Callable[[Mapping[str, Iterable[bytes]]], Caller]


class Authenticator:
    """Finds out who calls. ``local`` is the token of the user that the coordinator runs as.

    ``verify`` knows the tokens; without ``of_certificate`` certificates are not looked at.
    """

    def __init__(
        self, verify: Verify, *, local: Token, of_certificate: OfCertificate | None = None
    ) -> None:
        self._verify, self._local, self._of_certificate = verify, local, of_certificate

    def by_token(self, metadata: Metadata) -> Caller | None:
        """Return whose token a call brings, None if it brings none. Raises ``Unauthenticated``."""
        given = [value for key, value in metadata if key == AUTHORIZATION]
        if not given:
            if self._of_certificate is None:
                raise errors.Unauthenticated("it brings no token")
            return None
        if len(given) > 1 or not isinstance(given[0], str):
            raise errors.Unauthenticated("it brings more than one token")
        if given[0][: len(_SCHEME)].lower() != _SCHEME:
            raise errors.Unauthenticated("its authorization is not of the form: Bearer TOKEN")
        try:
            token = parse_token(given[0][len(_SCHEME) :])
        except InvalidToken as error:
            raise errors.Unauthenticated(str(error)) from None
        if token.token_id == self._local.token_id:
            if not hmac.compare_digest(token.secret, self._local.secret):
                raise errors.Unauthenticated("its token is of an earlier life of this coordinator")
            return Caller(token.token_id, Role.ADMIN)
        return self._verify(token)

    def by_certificate(self, properties: Mapping[str, Iterable[bytes]]) -> Caller:
        """Return whose certificate it is. Raises ``Unauthenticated``."""
        assert self._of_certificate is not None, "a token is asked for then"
        return self._of_certificate(properties)


def token_id_of(metadata: Metadata) -> str:
    """Return the id in the token that a call brings, which may be any; empty if it brings none."""
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str):
            try:
                return parse_token(value[len(_SCHEME) :]).token_id
            except InvalidToken:
                break
    return ""


class Open(Authenticator):
    """Lets every caller do everything: nothing is authenticated (``--insecure``)."""

    def __init__(self) -> None:
        """Ask for nothing."""

    def by_token(self, metadata: Metadata) -> Caller | None:  # noqa: ARG002
        """Return the one caller there is."""
        return TRUSTED
