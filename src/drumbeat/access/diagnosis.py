"""Shell. Why TLS failed, when gRPC only says that a connection ended.

``explain`` tries the same with Python's ``ssl`` and the same certificates, and says in one sentence
what is wrong. It opens up to three connections, which send no call and no token.
"""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from drumbeat.access.local import is_of_another_user, is_this_host
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.text.addresses import HostPort, parse_host_port
from drumbeat.text.format import one_line

if TYPE_CHECKING:
    from cryptography import x509

    from drumbeat.access.client import Credentials, Tls

TIME_MAX_S = 3.0  # without the name service

# In the details of gRPC 1.66 or later if this side refused the other side;
_SEEN_HERE = (
    " handshake failed",
    "Custom verification check failed",
    "is not in peer certificate",
    "Cannot check peer",
)
# and if the other side ended the connection: it refused this side, or restarts.
_ENDED_THERE = (
    "Socket closed",
    "reset by peer",
    "Handshake read failed",
    "Failed parsing HTTP/2",
    "http1.x server",
)

# This side ended a handshake, because the other side did not answer in time.
_GIVEN_UP = "Endpoint closing"

# The client's connection preface, and a frame of settings without any (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"

# Codes of X509_verify_cert: names are stable, texts are not.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_AUTHORITY = frozenset({2, 7, 18, 19, 20, 21, 33})
_OTHER_NAME = frozenset({62, 64})

_CHECK_ADDRESS = "--coordinator HOST:PORT says where the coordinator listens"
_CLOCK = (
    "a wrong clock on this machine looks the same: if the time above is wrong, set it; if not, "
    "{} certificate has to be renewed"
)
# Alerts about the client's certificate, by OpenSSL's names. gRPC's servers end the connection
# without one.
_OF_CERTIFICATES = frozenset(
    {
        "CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNKNOWN_CA", "BAD_CERTIFICATE",
        "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED",
        "CERTIFICATE_UNKNOWN", "ACCESS_DENIED",
    }
)  # fmt: skip
_TIME = "%Y-%m-%d %H:%M:%S UTC"


def is_worth_asking(details: str, *, is_known: bool) -> bool:
    """Whether ``explain`` may know more than the details of gRPC's UNAVAILABLE.

    ``is_known``: this coordinator has let this client in before. Then it is only asked if this side
    refused it: a coordinator that restarts must not be asked by thousands of agents at once.
    """
    marks = _SEEN_HERE if is_known else (*_SEEN_HERE, *_ENDED_THERE)
    return any(mark in details for mark in marks) and _GIVEN_UP not in details


def explain(coordinator: str, used: Credentials) -> AccessProblem | None:
    """Return why a connection to ``host:port`` failed before the first call; ``None``: unknown.

    Blocks for up to ``TIME_MAX_S``, and as long as the name service does. Connects directly, even
    if the environment names a proxy.
    """
    probe = _Probe(coordinator, parse_host_port(coordinator), monotonic() + TIME_MAX_S, used)
    try:
        problem = probe.of_plaintext() if used.tls is None else probe.of_tls(used.tls)
    except (OSError, ValueError):  # no answer in time, or none that can be read
        return None
    is_of_files = used.tls is not None and not used.tls.is_pinned
    if problem is not None and used.is_local and not is_of_files:
        # The next attempt reads what the coordinator on this host has published by then.
        problem.is_final = not _is_here(probe.where) or is_of_another_user(probe.where.port)
    return problem


class _Probe(NamedTuple):
    """One examination of one coordinator. Methods raise ``OSError`` if they learn nothing."""

    coordinator: str
    where: HostPort
    deadline: float
    used: Credentials

    def of_plaintext(self) -> AccessProblem | None:
        try:
            self._shake_hands(_trusting()).close()
        except ssl.SSLError as error:
            if not _alert(error):
                return None
        return AccessProblem(
            f"the coordinator at {self.coordinator} speaks TLS, and was spoken to in plaintext",
            "leave --insecure out, and give a token",
        )

    def of_tls(self, tls: Tls) -> AccessProblem | None:
        checking = _checking(tls)
        try:
            with self._shake_hands(checking, tls.server_name) as connection:
                is_http2 = connection.selected_alpn_protocol() == "h2"
                is_let_in = is_http2 and self._is_greeted(connection)
        except ssl.SSLCertVerificationError as error:
            return self._of_certificate(error, tls)
        except ssl.SSLError as error:
            alert = _alert(error)
            return self._of_alert(alert, tls) if alert else self._of_no_tls()
        if not is_http2:
            return self._no_http2()
        is_refused = not is_let_in and self._is_certificate_refused(checking, tls.server_name)
        return self._of_own_certificate(tls) if is_refused else None

    def _is_greeted(self, connection: ssl.SSLSocket) -> bool:
        """Whether the server sends its first frame, which in HTTP/2 comes before the client's.

        In TLS 1.3 a server checks the client's certificate after the client's handshake.
        """
        connection.settimeout(self._left())
        try:
            return bool(connection.recv(1))
        except ConnectionError:
            return False

    def _of_certificate(self, error: ssl.SSLCertVerificationError, tls: Tls) -> AccessProblem:
        leaf, code = self._leaf(), error.verify_code
        prefix = f"the certificate of the coordinator at {self.coordinator}"
        if code in (_NOT_YET_VALID, _EXPIRED):
            dates = leaf.dates or "came with one of an authority that is out of its time"
            return AccessProblem(f"{prefix} {dates}", _CLOCK.format("its"), is_final=False)
        if code in _UNKNOWN_AUTHORITY:
            if not tls.is_pinned:
                text = f"{prefix} is of an authority that --tls-ca does not have: {leaf.issuer}"
                return AccessProblem(text, "--tls-ca takes the authority that issued it")
            other = f"its certificate is of another authority, {leaf.issuer}"
            if self.used.is_local:
                text = (
                    f"what answers at {self.coordinator} is not this user's on this host: {other}"
                )
                return AccessProblem(text, f"for any other coordinator, {HOW_TO_GET_IN}")
            return AccessProblem(
                f"what answers at {self.coordinator} is not the coordinator that the token is of: "
                f"{other}",
                "check --coordinator; if the coordinator's authority was replaced, get a new token",
            )
        if code in _OTHER_NAME:
            return AccessProblem(
                f"{prefix} is not for {tls.server_name}, but for {leaf.names}",
                "--tls-server-name says which name it has to have",
            )
        return AccessProblem(f"{prefix} is not accepted: {error.verify_message}")

    def _of_alert(self, alert: str, tls: Tls) -> AccessProblem | None:
        if alert == "NO_APPLICATION_PROTOCOL":
            return self._no_http2()
        if alert not in _OF_CERTIFICATES:
            return None
        return self._of_own_certificate(tls, alert.lower().replace("_", " "))

    def _of_own_certificate(self, tls: Tls, reason: str = "") -> AccessProblem:
        if not tls.certificate:
            return AccessProblem(
                f"the coordinator at {self.coordinator} lets only clients with a certificate in",
                "give --tls-cert and --tls-key, as its operator issues them",
            )
        prefix = (
            f"the coordinator at {self.coordinator} does not accept the certificate of --tls-cert"
        )
        if dates := _read(tls.certificate.encode()).dates:
            return AccessProblem(f"{prefix}: it {dates}", _CLOCK.format("this"), is_final=False)
        return AccessProblem(
            f"{prefix}: {reason}".removesuffix(": "),
            "--tls-client-ca of the coordinator has to have the authority that issued it",
        )

    def _is_certificate_refused(self, context: ssl.SSLContext, server_name: str) -> bool:
        """Whether it is for the client's certificate: TLS 1.2 checks that in the handshake."""
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._shake_hands(context, server_name).close()
        except (ssl.SSLError, ConnectionResetError) as error:
            return not isinstance(error, ssl.SSLError) or _alert(error) != "PROTOCOL_VERSION"
        return False

    def _of_no_tls(self) -> AccessProblem | None:
        """Say what answers without TLS."""
        with self._connect() as connection:
            connection.sendall(_PREFACE)
            answer = connection.recv(9)
        if len(answer) < 9:
            return None
        if answer[3:4] == b"\4" and answer[5:9] == bytes(4):  # settings, of the connection
            return AccessProblem(
                f"the coordinator at {self.coordinator} does not speak TLS: it runs with "
                "--insecure",
                "have it run without; on a closed network, give --insecure here and no token",
            )
        text = f"what answers at {self.coordinator} is no coordinator: it does not speak TLS"
        return AccessProblem(text, _CHECK_ADDRESS, is_final=False)

    def _no_http2(self) -> AccessProblem:
        text = f"what answers at {self.coordinator} is no coordinator: it does not speak HTTP/2"
        return AccessProblem(text, _CHECK_ADDRESS, is_final=False)

    def _leaf(self) -> _Certificate:
        with self._shake_hands(_trusting()) as connection:
            content = connection.getpeercert(binary_form=True)
        return _read(content or b"")

    def _shake_hands(self, context: ssl.SSLContext, server_name: str = "") -> ssl.SSLSocket:
        connection = self._connect()
        try:
            # The timeout is that of the whole handshake, and OpenSSL bounds its bytes.
            return context.wrap_socket(connection, server_hostname=server_name or None)
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> socket.socket:
        return socket.create_connection(self.where, timeout=self._left())

    def _left(self) -> float:
        """Return the time that is left. Raises ``OSError`` if there is none."""
        if (left := self.deadline - monotonic()) <= 0:
            raise TimeoutError
        return left


def _is_here(where: HostPort) -> bool:
    try:
        return is_this_host(where)
    except AccessProblem:
        return True


def _alert(error: ssl.SSLError) -> str:
    """Return the name of the alert that the other side sent; empty if it sent none."""
    return (error.reason or "").partition("ALERT_")[2]


def _trusting() -> ssl.SSLContext:
    """Return a context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _checking(tls: Tls) -> ssl.SSLContext:
    """Return a context that checks certificates as gRPC does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=tls.authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    if tls.certificate:
        # The context only reads files.
        with os.fdopen(os.memfd_create("tls", os.MFD_CLOEXEC), "w") as file:
            file.write(f"{tls.certificate}\n{tls.key}\n")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class _Certificate(NamedTuple):
    """A certificate as it is described."""

    dates: str  # why it is not valid at present by this machine's clock; empty: it is
    issuer: str
    names: str


def _read(content: bytes) -> _Certificate:
    """Read a certificate, in DER or PEM. Raises ``ValueError``."""
    from cryptography import x509  # noqa: PLC0415 - slow to import, and rare

    try:
        if content.startswith(b"0"):
            certificate = x509.load_der_x509_certificate(content)
        else:
            certificate = x509.load_pem_x509_certificates(content)[0]
        issuer = one_line(certificate.issuer.rfc4514_string(), 100)
        return _Certificate(_dates(certificate), issuer, one_line(_names(certificate), 200))
    except Exception as error:  # a stranger's may hold anything
        raise ValueError("a certificate that cannot be read") from error


def _dates(certificate: x509.Certificate) -> str:
    now = datetime.now(UTC)
    after, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if after <= now <= until:
        return ""
    what = f"has expired at {until:{_TIME}}" if now > until else f"is valid from {after:{_TIME}} on"
    return f"{what}, and this machine's clock says {now:{_TIME}}"


def _names(certificate: x509.Certificate) -> str:
    from cryptography import x509  # noqa: PLC0415

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return certificate.subject.rfc4514_string() or "no name"
    return ", ".join(str(name.value) for name in names)
