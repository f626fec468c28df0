"""A gRPC server with TLS that only echoes, and clients of it that trust what they are told to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from cryptography import x509

from drumbeat.access import certificates
from drumbeat.coordinator.access.server_identity import ServerIdentity
from tests.support.certificates import Pair

METHOD = "/echo/Echo"


class TlsServer:
    """A server that is asked by ``call`` and ``connection``; ``seen`` are its auth contexts."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.port = port
        self.seen: list[Any] = []

    @asynccontextmanager
    async def connection(
        self, trusted: bytes, pair: Pair | None = None
    ) -> AsyncIterator[Callable[[], Any]]:
        """Open a connection of its own; yields a function that makes a call on it."""
        shown = (pair.key, pair.certificate) if pair else (None, None)
        options = [
            ("grpc.ssl_target_name_override", certificates.SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        credentials = grpc.ssl_channel_credentials(trusted, *shown)
        async with grpc.aio.secure_channel(self.address, credentials, options) as channel:
            echo: Any = channel.stream_stream(METHOD)(timeout=30)

            async def call() -> bytes:
                await echo.write(b"x")
                answer: bytes = await echo.read()
                return answer

            yield call
            echo.cancel()

    async def lets_in(self, trusted: bytes, pair: Pair | None = None) -> bool:
        """Whether a new connection is served. It fails as unavailable if not."""
        async with self.connection(trusted, pair) as call:
            try:
                return bool(await call() == b"x")
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False

    async def certificate(self) -> x509.Certificate:
        """Return the certificate that a new connection is shown."""
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.port))
        return x509.load_pem_x509_certificate(pem.encode())


@asynccontextmanager
async def serving(identity: ServerIdentity) -> AsyncIterator[TlsServer]:
    """Serve with an identity while the context is open."""
    server = grpc.aio.server()

    async def echo(_: Any, context: Any) -> None:
        opened.seen.append(context.auth_context())
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("echo", {"Echo": handler}),)
    )
    opened = TlsServer(server.add_secure_port("127.0.0.1:0", identity.server_credentials()))
    await server.start()
    try:
        yield opened
    finally:
        await server.stop(0)
