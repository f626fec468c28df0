"""Authorities and certificates for tests: for whatever names and dates, as bytes and as files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from drumbeat.access import certificates
from drumbeat.access.token import ID_CHARACTERS, SECRET_CHARACTERS, Role, Token

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, with its chain if it has one, and its key; both in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str = "tls") -> tuple[str, str]:
        """Write both, the key for its owner alone; return the paths as settings take them."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            path.write_bytes(content)
        paths[1].chmod(0o600)
        return str(paths[0]), str(paths[1])


class CertificateAuthority:
    """A certificate authority, with the name that one of a coordinator has.

    What one that is ``like`` another issues looks as if that other one had, but for the signature.
    """

    def __init__(self, like: CertificateAuthority | None = None) -> None:
        self.key = ec.generate_private_key(certificates.CURVE)
        self._shown: ec.EllipticCurvePublicKey = (like or self).key.public_key()
        self.certificate = certificates.ca_certificate(
            self.key.public_key(), self.key, until=datetime.now(UTC) + 3650 * DAY
        )

    @property
    def pem(self) -> bytes:
        """Its certificate, as files of authorities have it."""
        return _pem(self.certificate)

    @property
    def key_text(self) -> str:
        """Its public key, as tokens have it."""
        return certificates.key_text(self.key.public_key())

    def token(self, role: Role = Role.JOIN, token_id: str = "") -> Token:
        """Return a token that names this authority, which no coordinator knows."""
        token_id = token_id or "x" * ID_CHARACTERS
        return Token(role, token_id, "s" * SECRET_CHARACTERS, self.key_text)

    def write(self, folder: Path, name: str = "ca") -> str:
        """Write its certificate; return the path."""
        path = folder / f"{name}.crt"
        path.write_bytes(self.pem)
        return str(path)

    def issue(
        self,
        *names: str,
        common_name: str = "",
        after: timedelta = -DAY,
        until: timedelta = DAY,
        chain: bytes = b"",
    ) -> Pair:
        """Issue a certificate for a server or a client, by default of the coordinator's name.

        ``names`` are DNS names, addresses and URIs; ``after`` and ``until`` are from now on.
        """
        key, now = ec.generate_private_key(certificates.CURVE), datetime.now(UTC)
        common = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        issuer = self._shown
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(common))
            .issuer_name(certificates.ca_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + after)
            .not_valid_after(now + until)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName(
                    [_general_name(name) for name in names or (certificates.SERVER_NAME,)]
                ),
                critical=not common_name,
            )
        )
        signed = builder.sign(self.key, hashes.SHA256())
        return Pair(_pem(signed) + chain, private_pem(key))


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as files have it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
