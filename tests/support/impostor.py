"""What answers in the place of a coordinator, with a certificate of its own."""

import contextlib
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Self

from tests.support.certificates import Pair
from tests.support.waiting import MS

TIMEOUT_S = 20_000 * MS


class Impostor:
    """A TLS server that takes in what it is told; a context manager."""

    def __init__(self, pair: Pair) -> None:
        self.handshakes = 0
        """How many clients began one."""
        self.heard = b""
        """What clients said once they took it for the right one."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        with tempfile.TemporaryDirectory() as folder:
            self._context.load_cert_chain(*pair.write(Path(folder)))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, name="impostor")

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(TIMEOUT_S)
            self.handshakes += 1
            with contextlib.suppress(OSError), connection:
                secured = self._context.wrap_socket(connection, server_side=True)
                with secured:
                    while data := secured.recv(65536):
                        self.heard += data
