"""Shell. The operator's own server certificate: files that are read again when they change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from drumbeat.access.files import PEM_BYTES_MAX, read_private, read_public
from drumbeat.access.problem import AccessProblem
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown, time_of_day

log = structlog.get_logger()

# What clients of gRPC's TLS let a server sign with, beside RSA.
_CURVES = frozenset({"secp256r1", "secp384r1"})


class OperatorCertificate(ServerIdentity):
    """The files of ``--tls-cert``, ``--tls-key`` and, for mutual TLS, ``--tls-client-ca``.

    Raises ``CertificateUnusable``. Later, files that do not fit leave those before in use.
    ``clock`` is the time of day.
    """

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str | None = None,
        *,
        clock: Callable[[], datetime] = time_of_day,
    ) -> None:
        super().__init__()
        self.files = certificate, key, client_ca
        self.is_mutual = client_ca is not None
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: x509.Certificate | None = None
        self._versions = self._stat()
        try:
            self._shown = self._load()
        except AccessProblem as problem:
            raise errors.CertificateUnusable(problem.text, hint=problem.hint) from problem

    def configuration(self) -> Shown:
        """Return what is shown now; the files are read if one of them is not what it was."""
        with self._lock:
            versions = self._stat()
            if versions != self._versions:
                try:
                    self._shown = self._load()
                    self._complaint = ""
                except AccessProblem as problem:
                    self._complain(problem)
                    if not problem.is_final:  # nothing has to change for another try
                        return self._shown
                self._versions = versions
            return self._shown

    def _stat(self) -> list[tuple[int, ...]]:
        """Return what changes when the files do, of content, place and mode; and with each hour.

        What is read anew ends what TLS remembers of clients, who else resume their sessions for
        two days without another look at their certificates.
        """
        hour = int(self._clock().timestamp() // 3600)
        return [(hour,), *(_version(path) for path in self.files if path)]

    def _load(self) -> Shown:
        """Read the files. Raises ``AccessProblem``."""
        chain_file, key_file, client_ca = self.files
        shown = read_public(chain_file, "--tls-cert").encode()
        certificate = _certificates(shown, f"the --tls-cert {chain_file}")[0]
        key = read_private(key_file, "--tls-key", bytes_max=PEM_BYTES_MAX).encode()
        _check_key(key, certificate, f"the --tls-key {key_file}")
        until = certificate.not_valid_after_utc
        if until <= self._clock():
            problem = f"the --tls-cert {chain_file} has expired: it was valid until {until}"
            raise AccessProblem(problem, "have it renewed")
        clients = None
        if client_ca is not None:
            clients = read_public(client_ca, "--tls-client-ca").encode()
            _certificates(clients, f"the --tls-client-ca {client_ca}")
        if certificate != self._logged:
            self._logged = certificate
            log.info("server certificate read", path=chain_file, until=str(until))
        return Shown(key, shown, clients)


def _version(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)  # noqa: PTH116 - a text, as it was given
    except OSError as error:
        return (error.errno or 0,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _certificates(content: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        hint = "name a file with `-----BEGIN CERTIFICATE-----`, and all of what follows it"
        raise AccessProblem(f"{name} has no certificate in PEM", hint) from error


def _check_key(content: bytes, certificate: x509.Certificate, name: str) -> None:
    """Raise ``AccessProblem`` unless it is a certificate's, and one that TLS takes."""
    try:
        key = serialization.load_pem_private_key(content, None)
    except TypeError as error:
        raise AccessProblem(f"{name} has a passphrase", "name one without") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "name a file with `-----BEGIN PRIVATE KEY-----`, and all of what follows it"
        raise AccessProblem(f"{name} has no private key in PEM", hint) from error
    if key.public_key() != certificate.public_key():
        hint = "the first certificate in the file has to be the server's, and the key that one's"
        raise AccessProblem(f"{name} does not belong to the --tls-cert", hint)
    is_ec = isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES
    if not is_ec and not isinstance(key, rsa.RSAPrivateKey):
        raise AccessProblem(f"{name} is of a kind that gRPC's TLS does not take", _KEY_KINDS)


_KEY_KINDS = "have a certificate made for a key of P-256, P-384 or RSA"
