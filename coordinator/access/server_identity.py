"""Shell. What the server shows in TLS handshakes, and who it is there for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any, NamedTuple

import grpc
import structlog
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from drumbeat.coordinator.errors import NoOwnAuthority

log = structlog.get_logger()


def time_of_day() -> datetime:
    """Return what certificates are valid by."""
    return datetime.now(UTC)


class Shown(NamedTuple):
    """What handshakes are made with, in PEM. ``clients``: authorities of theirs, for mutual TLS."""

    key: bytes
    chain: bytes
    clients: bytes | None = None


class ServerIdentity(ABC):
    """A certificate and its key, which may be replaced while the server runs.

    gRPC asks at each handshake, on a thread of its own, so nothing has to watch the clock or the
    files. Connections that exist live on, whatever is replaced.
    """

    is_mutual = False
    """Whether each client has to show a certificate too."""

    def __init__(self) -> None:
        # gRPC keeps a bare pointer to them, also while a server that is gone winds down.
        self._credentials: list[grpc.ServerCredentials] = []
        self._complaint = ""

    @property
    def keys(self) -> list[str]:
        """Public keys of all authorities that are served, newest first, as tokens have them.

        Empty where the certificate is the operator's own.
        """
        return []

    @abstractmethod
    def configuration(self) -> Shown:
        """Return what is shown now: the same object until it is replaced. For any thread."""

    def rotate(self) -> list[str]:
        """Have another authority, beside those that are served; return the keys. Blocks.

        Raises ``CoordinatorError``, and then nothing has changed.
        """
        raise NoOwnAuthority

    def retire(self) -> list[str]:
        """Serve the newest authority alone; return its key. Blocks. Raises as ``rotate`` does."""
        raise NoOwnAuthority

    def secret(self, purpose: bytes) -> bytes:
        """Return 32 bytes that follow from the key, other ones for each purpose.

        They are the same after a restart, and on each coordinator that has the key.
        """
        return derived(self.configuration().key, purpose)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return what one port of a server is opened with. Keep the identity while it is open."""
        shown = self.configuration()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            try:
                current = self.configuration()
            except Exception as error:  # noqa: BLE001 - gRPC would refuse the handshake
                self._complain(error)
                return None
            if current is shown:
                return None
            shown = current
            return _for_grpc(current)

        fetcher: Any = fetch  # None, for no change, is missing in the stubs
        made = grpc.dynamic_ssl_server_credentials(_for_grpc(shown), fetcher, self.is_mutual)
        self._credentials.append(made)
        return made

    def _complain(self, error: Exception) -> None:
        """Log what keeps a certificate from being replaced, once as long as it is the same."""
        if (complaint := f"{type(error).__name__}: {error}") != self._complaint:
            self._complaint = complaint
            log.error(
                "server certificate kept", reason=str(error), advice=getattr(error, "hint", "")
            )


def derived(key: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose (RFC 5869)."""
    return HKDF(hashes.SHA256(), 32, None, b"drumbeat " + purpose).derive(key)


def _for_grpc(shown: Shown) -> grpc.ServerCertificateConfiguration:
    pairs = [(shown.key, shown.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, shown.clients)
