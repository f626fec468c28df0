"""Shell. TLS with the certificate that gRPC shows, also after it was replaced."""

from __future__ import annotations

import os
import ssl
from asyncio import sslproto

from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown

# Read buffer of each connection, in place of asyncio's 256 KiB, with which a thousand strangers
# took 320 MB.
BUFFER_BYTES = 32 * 1024
sslproto.SSLProtocol.max_size = BUFFER_BYTES


class Handshakes:
    """Keeps the TLS context up to date. ``context`` is the one to listen with."""

    def __init__(self, identity: ServerIdentity) -> None:
        self._identity = identity
        self._shown = identity.configuration()
        self._latest = self.context = _made(self._shown)
        self.context.sni_callback = self._replace

    def _replace(self, handshake: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> int | None:
        """Use the current certificate in a handshake; called for each, also without SNI."""
        try:
            shown = self._identity.configuration()
            if shown is not self._shown:
                self._latest, self._shown = _made(shown), shown
        except Exception:  # noqa: BLE001 - the identity has told what is wrong; the one before holds
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        handshake.context = self._latest
        return None


def _made(shown: Shown) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Python reads keys from files alone; this one is in memory.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(shown.key + b"\n" + shown.chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    if shown.clients is not None:
        context.load_verify_locations(cadata=shown.clients.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed is not looked at again, and the authorities may change.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context
