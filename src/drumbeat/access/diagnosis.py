"""Shell. Why TLS failed, when gRPC says no more than that a connection ended.

The same is tried once more by other means, with the same certificates, so that one sentence can
say what is wrong. It costs up to three connections, which say nothing and carry no token.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from drumbeat.access.local import is_of_another_user, is_this_host
from drumbeat.access.problem import HOW_TO_GET_IN, AccessProblem
from drumbeat.command.settings import HostPort, parse_host_port
from drumbeat.format import one_line

if TYPE_CHECKING:
    from cryptography import x509

    from drumbeat.access.client import Credentials, Tls

TIME_MAX_S = 3.0  # of all of it but the name service

# What gRPC's details have if this side has seen what is wrong with the other one, in 1.66 or later;
_SEEN_HERE = (
    " handshake failed",
    "Custom verification check failed",
    "is not in peer certificate",
    "Cannot check peer",
)
# and if the other side just ended the connection: it may have seen something, or it restarts.
_ENDED_THERE = (
    "Socket closed",
    "reset by peer",
    "Handshake read failed",
    "Failed parsing HTTP/2",
    "http1.x server",
)

# It was this side that ended a handshake, for nothing had come back in time.
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
# Alerts about the client's certificate, as OpenSSL calls them. gRPC's servers send none, and
# just end the connection.
_OF_CERTIFICATES = frozenset(
    {
        "CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNKNOWN_CA", "BAD_CERTIFICATE",
        "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED",
        "CERTIFICATE_UNKNOWN", "ACCESS_DENIED",
    }
)  # fmt: skip
# Of a record, of messages in it, and their lengths (RFC 5246, 6.2.1 and 7.4).
_HANDSHAKE, _CERTIFICATE_REQUEST, _HELLO_DONE = 22, 13, 14
_FLIGHT_BYTES_MAX = 256 * 1024
_TIME = "%Y-%m-%d %H:%M:%S UTC"


def is_worth_asking(details: str, *, is_known: bool) -> bool:
    """Whether ``explain`` may know more than the details of gRPC's UNAVAILABLE.

    ``is_known``: this coordinator has let this client in before. Thousands of those that come
    back to one that restarts would only be in its way, so they ask only what they have seen
    themselves.
    """
    marks = _SEEN_HERE if is_known else (*_SEEN_HERE, *_ENDED_THERE)
    return any(mark in details for mark in marks) and _GIVEN_UP not in details


def explain(coordinator: str, used: Credentials) -> AccessProblem | None:
    """Say why a connection to ``host:port`` failed before anything was said; None if unknown.

    Blocks for up to ``TIME_MAX_S``, and as long as the name service does. What is behind a proxy
    of the environment is looked at without it.
    """
    probe = _Probe(coordinator, parse_host_port(coordinator), monotonic() + TIME_MAX_S, used)
    try:
        found = probe.of_plaintext() if used.tls is None else probe.of_tls(used.tls)
    except (OSError, EOFError, ValueError):  # nothing answers, or not in time, or what none reads
        return None
    is_of_files = used.tls is not None and not used.tls.is_pinned
    if found is not None and used.is_local and not is_of_files:
        # On this host, the next attempt finds what the coordinator has left by then.
        found.is_final = not _is_here(probe.where) or is_of_another_user(probe.where.port)
    return found


class _Probe(NamedTuple):
    """One examination of one coordinator. Its methods raise ``OSError`` if they learn nothing."""

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
        is_refused = not is_let_in and self._is_certificate_wanted()
        return self._of_own_certificate(tls) if is_refused else None

    def _is_greeted(self, connection: ssl.SSLSocket) -> bool:
        """Whether the server says anything, as one of HTTP/2 does before its client.

        Since TLS 1.3 it judges the client's certificate after the handshake. What we would write
        could cost us its last word.
        """
        connection.settimeout(self._left())
        try:
            return bool(connection.recv(1))
        except ConnectionError:
            return False

    def _of_certificate(self, error: ssl.SSLCertVerificationError, tls: Tls) -> AccessProblem:
        leaf, code = self._leaf(), error.verify_code
        its = f"the certificate of the coordinator at {self.coordinator}"
        if code in (_NOT_YET_VALID, _EXPIRED):
            dates = leaf.dates or "came with one of an authority that is out of its time"
            return AccessProblem(f"{its} {dates}", _CLOCK.format("its"), is_final=False)
        if code in _UNKNOWN_AUTHORITY:
            if not tls.is_pinned:
                text = f"{its} is of an authority that --tls-ca does not have: {leaf.issuer}"
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
                f"{its} is not for {tls.server_name}, but for {leaf.names}",
                "--tls-server-name says which name it has to have",
            )
        return AccessProblem(f"{its} is not accepted: {error.verify_message}")

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
        its = f"the coordinator at {self.coordinator} does not accept the certificate of --tls-cert"
        if dates := _read(tls.certificate.encode()).dates:
            return AccessProblem(f"{its}: it {dates}", _CLOCK.format("this"), is_final=False)
        return AccessProblem(
            f"{its}: {reason}".removesuffix(": "),
            "--tls-client-ca of the coordinator has to have the authority that issued it",
        )

    def _is_certificate_wanted(self) -> bool:
        """Whether the server asks for a client's certificate, which TLS 1.2 does in plain sight."""
        context = _trusting()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        hello = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
        messages = bytearray()
        with self._connect() as connection:
            connection.sendall(hello.read())
            while len(messages) < _FLIGHT_BYTES_MAX:
                head = self._receive(connection, 5)
                if head[0] != _HANDSHAKE:
                    return False
                messages += self._receive(connection, int.from_bytes(head[3:5]))
                kinds = _kinds(messages)
                if _CERTIFICATE_REQUEST in kinds or _HELLO_DONE in kinds:
                    return _CERTIFICATE_REQUEST in kinds
        return False

    def _receive(self, connection: socket.socket, size: int) -> bytes:
        """Receive so many bytes. Raises ``EOFError`` if there are less."""
        content = b""
        while len(content) < size:
            connection.settimeout(self._left())
            if not (more := connection.recv(size - len(content))):
                raise EOFError
            content += more
        return content

    def _of_no_tls(self) -> AccessProblem | None:
        """Judge what answers without TLS."""
        with self._connect() as connection:
            connection.sendall(_PREFACE)
            answer = self._receive(connection, 9)
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
        problem = OSError()
        for family, kind, protocol, _, address in socket.getaddrinfo(
            *self.where, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(self._left())
                connection.connect(address)
                connection.settimeout(self._left())
            except OSError as error:
                connection.close()
                problem = error
            else:
                return connection
        raise problem

    def _left(self) -> float:
        """Return the time that is left. Raises ``OSError`` if none is."""
        if (left := self.deadline - monotonic()) <= 0:
            raise TimeoutError
        return left


def _is_here(where: HostPort) -> bool:
    try:
        return is_this_host(where)
    except AccessProblem:
        return True


def _alert(error: ssl.SSLError) -> str:
    """Return the name of the alert that the other side has sent; empty if it has sent none."""
    return (error.reason or "").partition("ALERT_")[2]


def _kinds(messages: bytes | bytearray) -> set[int]:
    """Return the kinds of the handshake messages that have at least begun."""
    found, start = set[int](), 0
    while start + 4 <= len(messages):
        found.add(messages[start])
        start += 4 + int.from_bytes(messages[start + 1 : start + 4])
    return found


def _trusting() -> ssl.SSLContext:
    """Return what talks to everyone, to look at what they show."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _checking(tls: Tls) -> ssl.SSLContext:
    """Return what checks as gRPC does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=tls.authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    if tls.certificate:
        # It takes files only; this one is in memory, and ends here.
        with os.fdopen(os.memfd_create("tls", os.MFD_CLOEXEC), "w") as file:
            file.write(f"{tls.certificate}\n{tls.key}\n")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class _Certificate(NamedTuple):
    """What is said of a certificate."""

    dates: str  # how it is out of its time by this machine's clock; empty if it is not
    issuer: str
    names: str


def _read(content: bytes) -> _Certificate:
    """Read a certificate, in DER or PEM. Raises ``ValueError``."""
    from cryptography import x509  # noqa: PLC0415 - slow to import, and rare

    try:
        is_der = content.startswith(b"0")
        found = (
            x509.load_der_x509_certificate(content)
            if is_der
            else x509.load_pem_x509_certificates(content)[0]
        )
        issuer = one_line(found.issuer.rfc4514_string(), 100)
        return _Certificate(_dates(found), issuer, one_line(_names(found), 200))
    except Exception as error:  # of strangers, it may have anything in it
        raise ValueError("a certificate that cannot be read") from error


def _dates(found: x509.Certificate) -> str:
    now = datetime.now(UTC)
    after, until = found.not_valid_before_utc, found.not_valid_after_utc
    if after <= now <= until:
        return ""
    what = f"has expired at {until:{_TIME}}" if now > until else f"is valid from {after:{_TIME}} on"
    return f"{what}, and this machine's clock says {now:{_TIME}}"


def _names(found: x509.Certificate) -> str:
    from cryptography import x509  # noqa: PLC0415

    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return found.subject.rfc4514_string() or "no name"
    return ", ".join(str(name.value) for name in names)
