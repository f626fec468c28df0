"""Shell. What a token's public key is worth in TLS: names, and whom a client trusts."""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# The name in a coordinator's own certificate. Its authority signs nothing else, so that who has
# a certificate of it is the coordinator, at whatever address.
SERVER_NAME = "coordinator.drumbeat"
CURVE = ec.SECP256R1()
ANCHORS_MAX = 32  # kept for the connections to come; another one is made anew
# Clocks of machines differ; a certificate is valid that much before it was made.
BACKDATED = timedelta(days=2)


def key_text(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as tokens have it."""
    return base64.urlsafe_b64encode(_point(key)).decode()


def ca_name(key: ec.EllipticCurvePublicKey) -> x509.Name:
    """Return the name of the authority that has a key."""
    name = f"drumbeat CA {hashlib.sha256(_point(key)).hexdigest()[:16]}"
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def ca_certificate(
    key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey, *, until: datetime
) -> x509.Certificate:
    """Return the certificate of an authority, issued by its own key or by another one's."""
    issuer = signer.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(ca_name(key))
        .issuer_name(ca_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_CA_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(signer, hashes.SHA256())
    )


def trust_anchors(keys: list[str]) -> bytes:
    """Return the public keys of tokens as certificates that TLS takes for trusted, in PEM.

    A trust anchor is a name and a key (RFC 5280, 6.1.1); its signature is not looked at, so one
    that is made here does. Raises ``ValueError`` for a text that is no key.
    """
    return b"".join(map(_anchor_pem, keys))


@lru_cache(maxsize=ANCHORS_MAX)
def _anchor_pem(text: str) -> bytes:
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, base64.urlsafe_b64decode(text))
    except (ValueError, binascii.Error) as error:
        raise ValueError("no public key of an authority") from error
    until = datetime.now(UTC) + timedelta(days=3650)
    return _anchor(key, until).public_bytes(serialization.Encoding.PEM)


def _anchor(key: ec.EllipticCurvePublicKey, until: datetime) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(ca_name(key))
        .issuer_name(ca_name(key))
        .public_key(key)
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .sign(ec.generate_private_key(CURVE), hashes.SHA256())
    )


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)


_CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
