"""Shell. A front end: holds the connections of callers, and carries their calls to the coordinator.

It knows nothing of what they say, and ends with its coordinator. While that is silent, it holds no
connection: callers notice, and look for another coordinator.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import grpc

from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from drumbeat.coordinator.access.server_identity import ServerIdentity, Shown
from drumbeat.coordinator.frontends import messages as ms
from drumbeat.coordinator.frontends.link import Link
from drumbeat.coordinator.shell.garbage import GARBAGE
from drumbeat.coordinator.shell.transport.connections import keep_threads, reuse_memory
from drumbeat.coordinator.shell.transport.grpc_server import make_server
from drumbeat.tasks import until_one_ends

# A certificate that is another one now is asked for no more often.
HANDSHAKES_TOLD_S = 1.0

Context = grpc.aio.ServicerContext[Any, Any]


def run(descriptor: int) -> NoReturn:
    """Serve the coordinator at the other end of a socket; never returns."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # the coordinator gets them, too, and says when
        signal.signal(signum, signal.SIG_IGN)

    async def serve() -> None:
        await FrontEnd().serve(socket.socket(fileno=descriptor))

    reuse_memory()
    GARBAGE.collect_rarely()
    asyncio.run(serve())
    # gRPC's threads may still hold connections, and nothing is left to be done for them.
    os._exit(0)


class FrontEnd:
    """One process with a port of its own in the group of front ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._opened: asyncio.Future[ms.Open] = self._loop.create_future()
        self._stopped: asyncio.Future[float] = self._loop.create_future()
        self._identity: ServerIdentity | None = None
        self._told_at = float("-inf")
        self._silences = 0  # signs of life that were due, since the latest of the coordinator
        self._heard = asyncio.Event()
        self._link: Link

    async def serve(self, end: socket.socket) -> None:
        """Return once the coordinator has said so, and calls have ended or it does not wait."""
        _, self._link = await self._loop.create_connection(
            lambda: Link(ms.ToFrontEnd, self._take, _end_at_once), sock=end
        )
        opened = await self._opened
        match opened.identity:
            case ms.Files(certificate=certificate, key=key, client_ca=client_ca):
                self._identity = GivenFiles(certificate, key, client_ca)
                self._identity.on_handshake = self._on_handshake
            case ms.Identity():
                self._identity = GivenIdentity(_shown(opened.identity), self._on_handshake)
        keep_threads()
        while not self._stopped.done():
            try:
                await self._serve_callers(opened)
            except (OSError, RuntimeError) as error:
                self._link.send(ms.Listening(str(error)))
                break
        self._link.close()

    async def _serve_callers(self, opened: ms.Open) -> None:
        """Return once the coordinator has said so, or is heard again after a silence.

        Raises ``OSError`` or ``RuntimeError`` if the port can't be had.
        """
        server = make_server([], opened.options)
        self._serve_methods(server, opened.methods)
        if self._identity is None:
            server.add_insecure_port(opened.address)
        else:
            server.add_secure_port(opened.address, self._identity.server_credentials())
        await server.start()
        self._link.send(ms.Listening(""))
        await until_one_ends(
            asyncio.shield(self._stopped), self._until_silence(opened.silence_max_s)
        )
        if self._stopped.done():
            await server.stop(self._stopped.result())
            return
        self._link.send(ms.Paused())
        await server.stop(0.0)
        self._heard.clear()
        await self._heard.wait()

    def _serve_methods(self, server: grpc.aio.Server, methods: tuple[str, ...]) -> None:
        services: dict[str, dict[str, Any]] = {}
        for method in methods:
            _, service, name = method.split("/")
            handler: Any = grpc.stream_stream_rpc_method_handler(partial(self._forward, method))
            services.setdefault(service, {})[name] = handler
        for service, handlers in services.items():
            server.add_registered_method_handlers(service, handlers)
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))

    async def _forward(self, method: str, _: object, context: Context) -> None:
        number = next(self._numbers)
        call = self._calls[number] = _Call(number, context, self._link)
        is_mutual = self._identity is not None and self._identity.is_mutual
        certificate = context.auth_context() if is_mutual else {}
        properties = {key: list(values) for key, values in certificate.items()}
        metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
        self._link.send(ms.Begun(number, method, metadata, context.peer(), properties))
        try:
            await call.carry()
        finally:
            del self._calls[number]
            self._link.send(ms.Left(number))
            if not self._calls:
                GARBAGE.collect_when_idle(lambda: not self._calls)

    def _on_handshake(self) -> None:
        """Called on a thread of gRPC's."""
        self._loop.call_soon_threadsafe(self._tell_handshake)

    def _tell_handshake(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= HANDSHAKES_TOLD_S:
            self._told_at = now
            self._link.send(ms.Handshake())

    async def _until_silence(self, silence_max_s: float) -> None:
        """Return once the coordinator has been silent for too long."""
        self._silences = 0
        while self._silences < ms.SIGNS_PER_SILENCE:
            self._silences += 1
            await asyncio.sleep(silence_max_s / ms.SIGNS_PER_SILENCE)

    def _take(self, message: ms.ToFrontEnd) -> None:
        match message:
            case ms.Said(call=number) | ms.Greeted(call=number) | ms.Ended(call=number):
                if (call := self._calls.get(number)) is not None:
                    call.answers.put_nowait(message)
            case ms.Taken(call=number):
                if (call := self._calls.get(number)) is not None:
                    call.taken.set()
            case ms.Alive():
                self._silences = 0
                self._heard.set()
                self._link.send(message)
            case ms.Identity():
                if isinstance(self._identity, GivenIdentity):
                    self._identity.shown = _shown(message)
            case ms.Open():
                self._opened.set_result(message)
            case ms.Stop(within_s=within_s):
                if not self._stopped.done():
                    self._stopped.set_result(within_s)


class GivenFiles(OperatorCertificate):
    """The operator's own certificate. The coordinator says what is wrong with the files."""

    on_handshake: Callable[[], None] = staticmethod(lambda: None)

    def configuration(self) -> Shown:
        self.on_handshake()
        return super().configuration()


class GivenIdentity(ServerIdentity):
    """A certificate of the coordinator's own authority, as the coordinator tells it."""

    def __init__(self, shown: Shown, on_handshake: Callable[[], None]) -> None:
        super().__init__()
        self.shown, self._on_handshake = shown, on_handshake

    def configuration(self) -> Shown:
        self._on_handshake()
        return self.shown


class _Call:
    """One call: what its caller says goes up, and answers come down, one at a time each."""

    def __init__(self, number: int, context: Context, link: Link) -> None:
        self._number, self._context, self._link = number, context, link
        self.answers: asyncio.Queue[ms.Said | ms.Greeted | ms.Ended] = asyncio.Queue()
        self.taken = asyncio.Event()

    async def carry(self) -> None:
        """Return once the coordinator has ended the call."""
        reading = asyncio.create_task(self._read())
        try:
            await self._answer()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)  # a call that broke ends here

    async def _read(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self.taken.clear()
            self._link.send(ms.Said(self._number, message))
            await self.taken.wait()
            GARBAGE.note_message()
        self._link.send(ms.SaidAll(self._number))

    async def _answer(self) -> None:
        while True:
            match await self.answers.get():
                case ms.Said(message=message):
                    await self._context.write(message)
                    self._link.send(ms.Taken(self._number))
                    GARBAGE.note_message()
                case ms.Greeted(metadata=metadata):
                    await self._context.send_initial_metadata(metadata)
                case ms.Ended(status=status, details=details, metadata=metadata):
                    if code := _STATUSES[status]:
                        self._context.set_code(code)
                        self._context.set_details(details)
                        self._context.set_trailing_metadata(metadata)
                    return


_STATUSES = {
    code.value[0]: None if code is grpc.StatusCode.OK else code for code in grpc.StatusCode
}


def _shown(identity: ms.Identity) -> Shown:
    return Shown(identity.key, identity.chain)


def _end_at_once() -> NoReturn:
    """End all connections with this process: their callers are to connect elsewhere."""
    os._exit(1)
