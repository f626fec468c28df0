"""A server certificate of the operator's own: its files, their replacement, and mutual TLS."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from drumbeat.access.certificates import SERVER_NAME
from drumbeat.coordinator import errors
from drumbeat.coordinator.access.certificate_roles import names_of
from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from tests.support.certificates import DAY, CertificateAuthority, Pair
from tests.support.tls import serving

CA = CertificateAuthority()
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def replace(path: str, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file whole, as cert-manager and editors do."""
    new = Path(f"{path}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.chmod(mode)
    new.replace(path)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def remove(path: str) -> None:
    Path(path).unlink()


async def test_files_that_change_are_shown_from_then_on_and_a_call_in_progress_lives_on(
    tmp_path: Path,
) -> None:
    certificate, key = CA.issue().write(tmp_path)
    other, renewed = CertificateAuthority(), CA.issue()
    identity = OperatorCertificate(certificate, key)
    async with serving(identity) as server, server.connection(CA.pem) as call:
        assert await call() == b"x"
        first = await server.certificate()
        replace(certificate, renewed.certificate)
        replace(key, renewed.key)
        assert await server.certificate() != first
        assert await server.lets_in(CA.pem)
        moved = other.issue()
        replace(certificate, moved.certificate)
        replace(key, moved.key)
        assert not await server.lets_in(CA.pem)
        assert await server.lets_in(other.pem)
        assert await call() == b"x"


async def test_a_secret_of_kubernetes_is_read_again_when_its_directory_is_swapped(
    tmp_path: Path,
) -> None:
    others = CertificateAuthority()
    for name, authority in (("..1", CA), ("..2", others)):
        (tmp_path / name).mkdir()
        authority.issue().write(tmp_path / name)
    current = tmp_path / "..data"
    current.symlink_to("..1")
    paths = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    for path in paths:
        path.symlink_to(f"..data/{path.name}")
    async with serving(OperatorCertificate(*map(str, paths))) as server:
        assert await server.lets_in(CA.pem)
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(current)
        assert await server.lets_in(others.pem)


async def test_files_that_do_not_fit_leave_those_before_in_use_and_are_logged_once(
    tmp_path: Path,
) -> None:
    certificate, key = CA.issue().write(tmp_path)
    renewed = CA.issue()
    with structlog.testing.capture_logs() as logged:
        async with serving(OperatorCertificate(certificate, key)) as server:
            first = await server.certificate()
            replace(certificate, renewed.certificate[:100])
            assert [await server.certificate() for _ in range(3)] == 3 * [first]
            replace(certificate, renewed.certificate)  # the key is still the one before
            assert [await server.certificate() for _ in range(3)] == 3 * [first]
            remove(key)
            assert await server.certificate() == first
            replace(key, renewed.key)
            assert await server.certificate() != first
    kept = [line["reason"] for line in logged if line["event"] == "server certificate kept"]
    assert [reason.partition(" has ")[0].partition(" does ")[0] for reason in kept] == [
        f"the --tls-cert {certificate}",
        f"the --tls-key {key}",
        f"the --tls-key {key}",
    ]


async def test_a_key_that_is_made_private_is_read_although_its_content_is_the_same(
    tmp_path: Path,
) -> None:
    certificate, key = CA.issue().write(tmp_path)
    renewed = CA.issue()
    async with serving(OperatorCertificate(certificate, key)) as server:
        first = await server.certificate()
        replace(certificate, renewed.certificate)
        replace(key, renewed.key, mode=0o644)
        assert await server.certificate() == first
        os.chmod(key, 0o600)  # noqa: PTH101
        assert await server.certificate() != first


async def test_a_failure_that_passes_by_itself_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = CA.issue().write(tmp_path)
    identity = OperatorCertificate(certificate, key)
    first = identity.configuration()
    renewed = CA.issue()
    replace(certificate, renewed.certificate)
    replace(key, renewed.key)

    def fail(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        assert identity.configuration() is first
    assert identity.configuration() is not first


async def test_mutual_tls_lets_in_certificates_of_its_authority_alone(tmp_path: Path) -> None:
    clients, strangers = CertificateAuthority(), CertificateAuthority()
    server_files = CA.issue().write(tmp_path)
    identity = OperatorCertificate(*server_files, clients.write(tmp_path))
    right = clients.issue("gpu7.train", "spiffe://td/agent/7", common_name="anna")
    async with serving(identity) as server:
        assert not await server.lets_in(CA.pem)
        assert not await server.lets_in(CA.pem, strangers.issue("gpu7.train"))
        assert not await server.lets_in(CA.pem, clients.issue("gpu7.train", until=-DAY / 2))
        assert server.seen == []
        assert await server.lets_in(CA.pem, right)
        assert names_of(server.seen[0]) == ["gpu7.train", "spiffe://td/agent/7"]
        replace(str(tmp_path / "ca.crt"), strangers.pem)
        assert not await server.lets_in(CA.pem, right)
        assert await server.lets_in(CA.pem, strangers.issue("x"))


class ResumingClient:
    """A client of mutual TLS that goes on with its last session, if the server lets it."""

    def __init__(self, port: int, trusted: bytes, files: tuple[str, str]) -> None:
        self._port = port
        self._context = ssl.create_default_context(cadata=trusted.decode())
        self._context.set_alpn_protocols(["h2"])
        self._context.load_cert_chain(*files)
        self._session: ssl.SSLSession | None = None

    def has_resumed(self) -> bool | None:
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=10) as plain,
            self._context.wrap_socket(
                plain, server_hostname=SERVER_NAME, session=self._session
            ) as opened,
        ):
            opened.recv(1)  # the session comes with the first bytes
            self._session = opened.session
            return opened.session_reused


async def test_the_certificate_of_a_client_is_looked_at_anew_within_the_hour(
    tmp_path: Path,
) -> None:
    now = [datetime(2026, 1, 1, 12, 10, tzinfo=UTC)]
    files = (*CA.issue().write(tmp_path), CA.write(tmp_path))
    async with serving(OperatorCertificate(*files, clock=lambda: now[0])) as server:
        client = ResumingClient(server.port, CA.pem, CA.issue("x").write(tmp_path, "client"))
        seen = [await asyncio.to_thread(client.has_resumed) for _ in range(2)]
        now[0] += timedelta(hours=1)
        seen += [await asyncio.to_thread(client.has_resumed) for _ in range(2)]
    assert seen == [False, True, False, True]


async def test_a_certificate_that_expires_is_kept_and_logged_once(tmp_path: Path) -> None:
    now = [datetime.now(UTC)]
    files = CA.issue(until=timedelta(hours=1)).write(tmp_path)
    with structlog.testing.capture_logs() as logged:
        identity = OperatorCertificate(*files, clock=lambda: now[0])
        shown = identity.configuration()
        for _ in range(5):
            now[0] += timedelta(hours=1)
            assert identity.configuration() is shown
    reasons = [line.get("reason", "") for line in logged]
    assert [reason for reason in reasons if "has expired" in reason] == reasons[1:]
    assert len(reasons) == 2


async def test_without_mutual_tls_a_client_has_no_name(tmp_path: Path) -> None:
    async with serving(OperatorCertificate(*CA.issue().write(tmp_path))) as server:
        assert await server.lets_in(CA.pem, CA.issue("gpu7.train"))
        assert names_of(server.seen[0]) == []


def test_an_operators_certificate_has_no_authority_to_replace(tmp_path: Path) -> None:
    identity = OperatorCertificate(*CA.issue().write(tmp_path))
    assert identity.keys == []
    for change in (identity.rotate, identity.retire):
        with pytest.raises(errors.NoOwnAuthority, match="--tls-cert"):
            change()


def pem_of(key: Key, secret: str = "") -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if secret:
        encryption = serialization.BestAvailableEncryption(secret.encode())
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


def _missing(path: Path) -> None:
    path.unlink()


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:90])


def _binary(path: Path) -> None:
    path.write_bytes(b"\x30\x82\xff" * 50)


def _open(path: Path) -> None:
    path.chmod(0o644)


def _foreign(path: Path) -> None:
    path.write_bytes(CA.issue().key)


def _secret(path: Path) -> None:
    path.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1()), "secret"))


def _expired(path: Path) -> None:
    path.write_bytes(CA.issue(until=-timedelta(hours=1)).certificate)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tls.crt", _missing, ("--tls-cert", "does not exist")),
        ("tls.crt", _half, ("--tls-cert", "no certificate in PEM")),
        ("tls.crt", _binary, ("--tls-cert", "not text")),
        ("tls.crt", _foreign, ("--tls-cert", "no certificate in PEM")),
        ("tls.key", _missing, ("--tls-key", "does not exist")),
        ("tls.key", _half, ("--tls-key", "no private key in PEM")),
        ("tls.key", _foreign, ("--tls-key", "does not belong to the --tls-cert")),
        ("tls.key", _open, ("--tls-key", "0644")),
        ("tls.key", _secret, ("--tls-key", "has a passphrase")),
        ("ca.crt", _missing, ("--tls-client-ca", "does not exist")),
        ("ca.crt", _half, ("--tls-client-ca", "no certificate in PEM")),
    ],
)
def test_a_file_that_is_no_good_at_the_start_is_named_by_its_option(
    tmp_path: Path, name: str, change: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    files = (*CA.issue().write(tmp_path), CA.write(tmp_path))
    OperatorCertificate(*files)
    change(tmp_path / name)
    with pytest.raises(errors.CertificateUnusable) as raised:
        OperatorCertificate(*files)
    for word in (*words, str(tmp_path / name)):
        assert word in str(raised.value)
    assert raised.value.hint
    assert raised.value.exit_code == 2
    assert "BEGIN" not in str(raised.value)


def test_an_expired_certificate_keeps_a_coordinator_from_starting(tmp_path: Path) -> None:
    files = CA.issue(until=DAY).write(tmp_path)
    OperatorCertificate(*files)
    with pytest.raises(errors.CertificateUnusable, match=r"--tls-cert .* has expired"):
        OperatorCertificate(*files, clock=lambda: datetime.now(UTC) + 2 * DAY)


def self_signed(key: Key, folder: Path) -> tuple[str, str]:
    name = x509.Name([])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - DAY)
        .not_valid_after(datetime.now(UTC) + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=True)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return Pair(made.public_bytes(serialization.Encoding.PEM), pem_of(key)).write(folder)


@pytest.mark.parametrize(
    "make", [ed25519.Ed25519PrivateKey.generate, lambda: ec.generate_private_key(ec.SECP521R1())]
)
def test_a_kind_of_key_that_no_client_would_take_is_refused(
    tmp_path: Path, make: Callable[[], Key]
) -> None:
    with pytest.raises(errors.CertificateUnusable, match=r"--tls-key .* does not take") as raised:
        OperatorCertificate(*self_signed(make(), tmp_path))
    assert "P-256" in raised.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        lambda: ec.generate_private_key(ec.SECP384R1()),
    ],
)
async def test_other_kinds_of_keys_are_shown(tmp_path: Path, make: Callable[[], Key]) -> None:
    files = self_signed(make(), tmp_path)
    async with serving(OperatorCertificate(*files)) as server:
        assert await server.lets_in(read(files[0]))
