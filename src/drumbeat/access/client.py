"""Shell. What a client needs for one connection to a coordinator: whom it trusts, who it is.

What counts, in this order: authorities and certificates of files (``--tls-ca``, ``--tls-cert``); a
token, with the authority in it; ``--insecure``; what the coordinator of the same user on the same
host has left. A token never travels in plaintext.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drumbeat.access import local
from drumbeat.access.files import read_private, read_public
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.access.token import NO_CA, InvalidToken, Token, parse_token
from drumbeat.command.settings import by_option
from drumbeat.text.addresses import HostPort, parse_host_port

# Neither grpc nor cryptography is imported before it is needed: a command that only shows its
# help, or runs in one process, needs neither.
if TYPE_CHECKING:
    import grpc

    from drumbeat.access.settings import AccessSettings

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What TLS is asked to do, all of it in PEM."""

    authorities: str
    server_name: str  # that the coordinator's certificate has to have
    is_pinned: bool = False  # the authorities are a token's, not of a file
    certificate: str = ""  # to show; empty: none
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What one connection uses. As a string it has no secret."""

    tls: Tls | None  # None: plaintext
    token: Token | None = None
    is_local: bool = False  # of the coordinator's user on its host: to be asked for anew each time

    @property
    def channel(self) -> grpc.ChannelCredentials | None:
        """What a secure channel takes; None for an insecure one."""
        import grpc  # noqa: PLC0415

        if (tls := self.tls) is None:
            return None
        pair = (tls.key.encode(), tls.certificate.encode()) if tls.key else (None, None)
        return grpc.ssl_channel_credentials(tls.authorities.encode(), *pair)

    @property
    def options(self) -> list[tuple[str, Any]]:
        """Options that the channel needs beside its own."""
        return [("grpc.ssl_target_name_override", self.tls.server_name)] if self.tls else []

    @property
    def metadata(self) -> Metadata:
        """What every call has to carry."""
        return (("authorization", f"Bearer {self.token.text()}"),) if self.token else ()


def credentials(
    access: AccessSettings, coordinator: str, *, authorities: Sequence[str] = ()
) -> Credentials:
    """Return what a connection to ``host:port`` uses, from files as they are now.

    ``authorities``: keys that this coordinator has said are its own too. Raises ``AccessProblem``.
    Blocks as long as files do.
    """
    if broken := by_option(access.access_violations(), access):
        raise AccessProblem("; ".join(map(str, broken)))
    where = parse_host_port(coordinator)
    if access.insecure:
        return Credentials(tls=None)
    token = _given_token(access)
    if access.tls_ca or access.tls_cert:
        tls = _own_tls(access, where, token, authorities)
        if token is None and not tls.certificate:
            return _local_token(where, tls)
        return Credentials(tls=tls, token=token)
    if token is None:
        return _local_credentials(where)
    return Credentials(tls=_tls_of(token, authorities), token=token)


def _given_token(access: AccessSettings) -> Token | None:
    if isinstance(access.token, Token):
        return access.token
    text, source, hint = access.token or "", "", "copy the token again, whole"
    if not text and access.token_file:
        text = read_private(access.token_file, "token file")
        source, hint = f"{access.token_file}: ", "write the token into it again, whole and alone"
    try:
        return parse_token(text) if text else None
    except InvalidToken as error:
        raise AccessProblem(f"{source}{error}", hint) from error


def _local_credentials(where: HostPort) -> Credentials:
    published = local.find(where.port)
    if published and published != local.INSECURE:
        # No other coordinator can pass for the one that the token is of, wherever this is.
        token = parse_token(published)
        return Credentials(tls=_tls_of(token, ()), token=token, is_local=True)
    if not local.is_this_host(where):
        problem = f"a token is needed: the coordinator at {where} is on another host"
        raise AccessProblem(problem, HOW_TO_GET_IN)
    if published:
        return Credentials(tls=None, is_local=True)
    if not local.is_listened_at(where.port):
        problem = f"no coordinator is running at {where}: nothing on this host listens at that port"
        hint = "`coordinator serve` starts it; --coordinator HOST:PORT names another one"
        raise AccessProblem(problem, hint, is_final=False)
    if local.is_of_another_user(where.port):
        problem = f"a token is needed: the coordinator at {where} is another user's"
        raise AccessProblem(problem, HOW_TO_GET_IN)
    raise AccessProblem(
        f"no coordinator of this user is running on this host at port {where.port} yet; "
        "for any other, a token is needed",
        HOW_TO_GET_IN,
        is_final=False,
    )


def _local_token(where: HostPort, tls: Tls) -> Credentials:
    """Return what says who this is where only the authorities are given: the first token of all.

    Unlike a token's own authority, those of a file may let other hosts pass, so it goes to none.
    """
    published = local.find(where.port)
    if not published or published == local.INSECURE or not local.is_this_host(where):
        return Credentials(tls=tls)
    return Credentials(tls=tls, token=parse_token(published), is_local=True)


def _tls_of(token: Token, authorities: Sequence[str]) -> Tls:
    from drumbeat.access.certificates import SERVER_NAME  # noqa: PLC0415

    anchors = _anchors(token, authorities)
    return Tls(authorities=anchors, server_name=SERVER_NAME, is_pinned=True)


def _anchors(token: Token, authorities: Sequence[str]) -> str:
    from drumbeat.access.certificates import trust_anchors  # noqa: PLC0415

    if token.ca == NO_CA:
        raise AccessProblem(
            "--tls-ca is needed: the coordinator's certificate is its operator's own, and no token "
            "says which authority it is of",
            "give the file of the authority that issued the coordinator's --tls-cert",
        )
    try:
        anchors = [trust_anchors([token.ca])]
    except ValueError as error:
        problem = "the token was changed on its way: its authority is no public key"
        raise AccessProblem(problem, "copy the token again, whole") from error
    for key in dict.fromkeys(key for key in authorities if key != token.ca):
        with suppress(ValueError):  # of a later version: there are others
            anchors.append(trust_anchors([key]))
    return b"".join(anchors).decode()


def _own_tls(
    access: AccessSettings, where: HostPort, token: Token | None, authorities: Sequence[str]
) -> Tls:
    """Return what files say; the token says whom to trust if no file does."""
    pair = ("", "")
    if access.tls_cert and access.tls_key:
        pair = _read_pair(access.tls_cert, access.tls_key)
    if access.tls_ca:
        anchors = read_public(access.tls_ca, "file of authorities")
        _check_authorities(anchors, access.tls_ca)
        name = access.tls_server_name or where.host
        return Tls(authorities=anchors, server_name=name, certificate=pair[0], key=pair[1])
    if token is None:
        raise AccessProblem(
            "--tls-ca is needed beside --tls-cert: nothing else says whom to trust",
            "give the file of the authority that issued the coordinator's --tls-cert",
        )
    return replace(_tls_of(token, authorities), certificate=pair[0], key=pair[1])


def _check_authorities(anchors: str, path: str) -> None:
    import ssl  # noqa: PLC0415

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=anchors)
    except (ssl.SSLError, ValueError) as error:
        raise AccessProblem(
            f"the file of authorities {path} has no certificate in PEM, or a broken one",
            "--tls-ca takes what begins with -----BEGIN CERTIFICATE-----",
        ) from error


def _read_pair(cert_path: str, key_path: str) -> tuple[str, str]:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    certificate, key = read_public(cert_path, "certificate"), read_private(key_path, "key")
    try:
        shown = x509.load_pem_x509_certificates(certificate.encode())[0].public_key()
    except ValueError as error:
        raise AccessProblem(
            f"the certificate {cert_path} is none in PEM, or a broken one",
            "--tls-cert takes what begins with -----BEGIN CERTIFICATE-----",
        ) from error
    try:
        own = serialization.load_pem_private_key(key.encode(), None).public_key()
    except TypeError as error:
        raise AccessProblem(
            f"the key {key_path} is encrypted", "give one without a passphrase, for its owner alone"
        ) from error
    except ValueError as error:
        raise AccessProblem(
            f"the key {key_path} is none in PEM, or a broken one",
            "--tls-key takes what begins with -----BEGIN PRIVATE KEY-----",
        ) from error
    if own != shown:
        raise AccessProblem(
            f"the key {key_path} is not that of the certificate {cert_path}",
            "--tls-cert and --tls-key have to be issued together",
        )
    return certificate, key
