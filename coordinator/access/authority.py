"""Shell. The coordinator's own certificate authority: its file, and the certificates it issues."""

from __future__ import annotations

import errno
import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from drumbeat.access import certificates
from drumbeat.access.files import PEM_BYTES_MAX, read_private
from drumbeat.access.problem import AccessProblem
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown, derived, time_of_day

log = structlog.get_logger()

# Private key of the authority, and after it the certificates that lead from it to the oldest
# authority that is served: each issued by the key of the next, the last by its own. One file,
# because a rename then replaces all of it.
FILE = "ca.key"
_WHAT = "key of the certificate authority"
AUTHORITY_LIFETIME = timedelta(days=3650)
# Of a server certificate, which the process alone holds: each start makes another one.
CERTIFICATE_LIFETIME = timedelta(days=90)
RENEWED_AFTER = CERTIFICATE_LIFETIME * 2 / 3
# So many authorities are served at once; their certificates are sent in each handshake.
AUTHORITIES_MAX = 8

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PEM = serialization.Encoding.PEM


class Issuer(Struct, frozen=True):
    """The key that signs, and the certificates from it to the oldest authority.

    Its ``content`` is what is kept of it: the key, and who has it can pass for a coordinator.
    """

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...]

    @classmethod
    def new(cls, *, now: datetime) -> Issuer:
        """Make an authority."""
        key = ec.generate_private_key(certificates.CURVE)
        until = now + AUTHORITY_LIFETIME
        return cls(key, (certificates.ca_certificate(key.public_key(), key, until=until),))

    def rotated(self, *, now: datetime) -> Issuer:
        """Return a new one that this one vouches for."""
        key = ec.generate_private_key(certificates.CURVE)
        until = now + AUTHORITY_LIFETIME
        crossed = certificates.ca_certificate(key.public_key(), self.key, until=until)
        return Issuer(key, (crossed, *self.chain))

    def retired(self, *, now: datetime) -> Issuer:
        """Return the same without those that vouch for it."""
        until = now + AUTHORITY_LIFETIME
        alone = certificates.ca_certificate(self.key.public_key(), self.key, until=until)
        return Issuer(self.key, (alone,))

    @classmethod
    def parse(cls, content: bytes) -> Issuer:
        """Read what ``content`` wrote. Raises ``ValueError``, which says what is wrong."""
        try:
            key = serialization.load_pem_private_key(content, None)
            chain = tuple(x509.load_pem_x509_certificates(content))
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError("it does not have a key and its certificates in PEM") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise ValueError("its key is not one of P-256")
        if key.public_key() != chain[0].public_key():
            raise ValueError("its key does not belong to its certificate")
        try:
            for issued, issuer in zip(chain, (*chain[1:], chain[-1]), strict=True):
                issued.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise ValueError("its certificates do not belong together") from error
        return cls(key, chain)

    def content(self) -> bytes:
        """Return the key, and after it the certificates, in PEM."""
        return b"".join((_key_pem(self.key), *map(_pem, self.chain)))

    def keys(self) -> list[str]:
        """Return the public keys of all that are served, newest first."""
        public = [certificate.public_key() for certificate in self.chain]
        return [
            certificates.key_text(key)
            for key in public
            if isinstance(key, ec.EllipticCurvePublicKey)
        ]

    def issue(self, *, now: datetime) -> Shown:
        """Return a new server certificate, with those that clients of older authorities need."""
        key = ec.generate_private_key(certificates.CURVE)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
        san = x509.SubjectAlternativeName([x509.DNSName(certificates.SERVER_NAME)])
        ours = self.key.public_key()
        issued = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(certificates.ca_name(ours))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - certificates.BACKDATED)
            .not_valid_after(now + CERTIFICATE_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_SERVER_USAGE, critical=False)
            .add_extension(san, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        chain = b"".join(map(_pem, (issued, *self.chain[:-1])))
        return Shown(_key_pem(key), chain)


class OwnAuthority(ServerIdentity):
    """An authority of a coordinator's own, wherever it is kept.

    ``clock`` is the time of day, which certificates are about.
    """

    def __init__(self, issuer: Issuer, clock: Callable[[], datetime]) -> None:
        super().__init__()
        self._clock = clock
        self._changing = threading.Lock()  # held while it is replaced where it is kept
        self._lock = threading.Lock()  # of what follows; handshakes wait for it
        self._issuer = issuer
        self._issued_at = clock()
        self._issued = self._issuer.issue(now=self._issued_at)

    @property
    def keys(self) -> list[str]:
        """Public keys of all authorities that are served, newest first, as tokens have them."""
        return self._issuer.keys()

    def configuration(self) -> Shown:
        """Return what is shown now; a certificate is renewed once two thirds of it are over."""
        now = self._clock()
        with self._lock:
            age = now - self._issued_at
            # A clock that was set back since makes a certificate that is not valid yet.
            if not -certificates.BACKDATED / 2 < age < RENEWED_AFTER:
                self._issue(self._issuer, now)
            return self._issued

    def secret(self, purpose: bytes) -> bytes:
        """Return 32 bytes that follow from the key of the newest authority."""
        number = self._issuer.key.private_numbers().private_value
        return derived(number.to_bytes(32), purpose)

    def rotate(self) -> list[str]:
        """Have another authority, which the one before vouches for until it is retired."""
        with self._changing:
            before = self._issuer
            if len(before.chain) >= AUTHORITIES_MAX:
                raise errors.LimitReached("authorities_max", AUTHORITIES_MAX)
            self._keep(before, after := before.rotated(now=self._clock()))
            return after.keys()

    def retire(self) -> list[str]:
        """Serve the newest authority alone; harmless if repeated."""
        with self._changing:
            before = self._issuer
            if len(before.chain) == 1:
                return before.keys()
            self._keep(before, after := before.retired(now=self._clock()))
            return after.keys()

    @abstractmethod
    def _keep(self, before: Issuer, issuer: Issuer) -> None:
        """Keep another one, then serve it. Blocks. Raises ``CoordinatorError``."""

    def _serve(self, issuer: Issuer) -> None:
        """Have certificates of it shown from the next handshake on. For any thread."""
        with self._lock:
            self._issue(issuer, self._clock())

    def _issue(self, issuer: Issuer, now: datetime) -> None:
        self._issued = issuer.issue(now=now)
        self._issuer, self._issued_at = issuer, now


class Authority(OwnAuthority):
    """The authority in a state directory, which has to be locked; made at the first start.

    Raises ``AuthorityUnusable``.
    """

    def __init__(self, directory: Path, clock: Callable[[], datetime] = time_of_day) -> None:
        self._directory = directory
        super().__init__(read_issuer(directory) or self._made(clock()), clock)

    def _keep(self, before: Issuer, issuer: Issuer) -> None:  # noqa: ARG002
        try:
            write_issuer(self._directory, issuer)
        except errors.AuthorityUnusable as error:
            raise errors.Unavailable(str(error)) from error
        self._serve(issuer)

    def _made(self, now: datetime) -> Issuer:
        issuer = Issuer.new(now=now)
        write_issuer(self._directory, issuer)
        log.info("certificate authority made", path=str(self._directory / FILE))
        return issuer


def read_issuer(directory: Path) -> Issuer | None:
    """Return the authority in a state directory, if there is one. Raises ``AuthorityUnusable``."""
    path = str(directory / FILE)
    if not os.path.lexists(path):
        return None
    try:
        return Issuer.parse(read_private(path, _WHAT, bytes_max=PEM_BYTES_MAX).encode())
    except AccessProblem as problem:
        raise errors.AuthorityUnusable(problem.text) from problem
    except ValueError as error:
        raise errors.AuthorityUnusable(f"the {_WHAT} {path}: {error}") from error


def write_issuer(directory: Path, issuer: Issuer) -> None:
    """Replace the file, whole, safe against power loss. Raises ``AuthorityUnusable``."""
    path, new = directory / FILE, directory / f"{FILE}.new"
    try:
        new.unlink(missing_ok=True)  # of a process that ended while it wrote
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
            file.write(issuer.content())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync_directory(directory)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        hint = _ROOM if error.errno in _FULL else _WRITABLE
        problem = f"the {_WHAT} {path} cannot be written: {error.strerror or error}"
        raise errors.AuthorityUnusable(problem, hint=hint) from error


_ROOM = "free some space there"
_WRITABLE = "make the directory and its file system writable for this user"

_SERVER_USAGE = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])


def _sync_directory(directory: Path) -> None:
    with suppress(OSError):  # some file systems cannot, and need not
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(_PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain)
