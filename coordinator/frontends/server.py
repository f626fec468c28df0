"""Shell. The coordinator's side of front ends: the server whose connections they hold."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import structlog

from drumbeat.command.own_process import own_process
from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from drumbeat.coordinator.access.server_identity import ServerIdentity
from drumbeat.coordinator.errors import PortInUse
from drumbeat.coordinator.frontends import messages as ms
from drumbeat.coordinator.frontends.call import ForwardedCall
from drumbeat.coordinator.frontends.link import Link

log = structlog.get_logger()

PROCESS = "drumbeat.coordinator.frontends"
START_WITHIN_S = 60.0  # with all cores busy
# Of a front end that dies before it has ever let callers in.
STARTS_MAX = 3
# Once its end of the sockets has closed.
END_WITHIN_S = 1.0
# Before one that ended is started again, if it had not lasted as long.
RESTART_DELAY_S = 1.0


class Listen(NamedTuple):
    """What front ends are told."""

    host: str
    port: int
    options: Sequence[tuple[str, int]]
    silence_max_s: float


class FrontEndServer:
    """Serves calls whose connections ``count`` processes hold, which share one port.

    Of ``grpc.aio.Server`` it has what the coordinator uses once a server has its port.

    All that is known of callers, sessions and runs is here, as without front ends. One that dies
    costs its callers a connection: it is started again, and they reconnect, to it or another one.
    """

    def __init__(
        self,
        count: int,
        listen: Listen,
        interceptor: grpc.aio.ServerInterceptor,
        identity: ServerIdentity | None,
    ) -> None:
        # Called before calls of agents end for no fault of theirs.
        self.on_cut_off: Callable[[], None] = lambda: None
        # Called with the seconds for which a front end that holds calls has brought nothing more.
        self.on_deaf: Callable[[float], None] = lambda _seconds: None
        self._loop = asyncio.get_running_loop()
        self.listen, self._interceptor, self._identity = listen, interceptor, identity
        self._generic: list[grpc.GenericRpcHandler] = []
        self._methods: list[str] = []
        self._reserved: socket.socket | None = None
        self._front_ends = [FrontEnd(number, self) for number in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self.is_stopping = False

    def bind(self, family: int, address: Any) -> int:
        """Reserve the port, which only listens in front ends. Raises ``OSError``."""
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # as gRPC does
                reserved.setsockopt(socket.SOL_SOCKET, option, 1)
            reserved.bind(address)
        except OSError:
            reserved.close()
            raise
        self._reserved = reserved
        port: int = reserved.getsockname()[1]
        self.listen = self.listen._replace(port=port)
        return port

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        self._generic += generic_rpc_handlers

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, Any]
    ) -> None:
        """Have front ends take calls of these methods; ``add_generic_rpc_handlers`` serves them."""
        self._methods += (f"/{service_name}/{name}" for name in method_handlers)

    async def start(self) -> None:
        """Return once all front ends let callers in. Raises ``PortInUse`` if one can't."""
        self._tasks = [
            asyncio.create_task(one.run(), name=f"front end {one.number}")
            for one in self._front_ends
        ]
        for one, task in zip(self._front_ends, self._tasks, strict=True):
            await asyncio.wait((one.listening, task), return_when=asyncio.FIRST_COMPLETED)
            if not one.listening.done():
                task.result()
            try:
                one.listening.result()
            except OSError as error:
                raise PortInUse(self.listen.host, self.listen.port, str(error)) from error

    async def stop(self, grace: float | None) -> None:
        """Let no call in any more, and end those that are under way after this time."""
        self.is_stopping = True
        within_s = grace or 0.0
        for one in self._front_ends:
            one.send(ms.Stop(within_s))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s + 1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reserved is not None:
            self._reserved.close()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Return once no front end runs any more. Raises the error of one whose keeper failed."""
        done, pending = await asyncio.wait(self._tasks, timeout=timeout)
        for task in done:
            task.result()
        return bool(pending)

    def tell_identity(self) -> None:
        """Have handshakes made with what the identity shows now. For any thread."""
        for one in self._front_ends:
            self._loop.call_soon_threadsafe(one.tell_identity)

    # For front ends.

    def opening(self) -> ms.Open:
        """Return what a front end is told first."""
        where = self.listen
        host = f"[{where.host}]" if ":" in where.host else where.host
        return ms.Open(
            address=f"{host}:{where.port}",
            options=tuple(where.options),
            methods=tuple(self._methods),
            silence_max_s=where.silence_max_s,
            identity=self.shown(),
        )

    def shown(self) -> ms.Identity | ms.Files | None:
        """Return what handshakes are to be made with now."""
        if self._identity is None:
            return None
        shown = self._identity.configuration()  # it says, too, what is wrong with its files
        if isinstance(self._identity, OperatorCertificate):
            return ms.Files(*self._identity.files)
        return ms.Identity(shown.key, shown.chain)

    async def serve(self, call: ForwardedCall, method: str) -> None:
        """Serve a call to its end. An error of ours is logged by the interceptor."""
        try:
            metadata = call.invocation_metadata()
            details: Any = SimpleNamespace(method=method, invocation_metadata=metadata)
            handler = await self._interceptor.intercept_service(self._found, details)
            if handler is None:
                call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                return
            call.use(handler.request_deserializer, handler.response_serializer)
            serve: Any = handler.stream_stream
            await serve(call.requests(), call)
            call.end_by_itself()
        except grpc.aio.AbortError:
            pass  # its status was sent
        except asyncio.CancelledError:
            call.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - as gRPC does it, and it was logged
            call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _found(self, details: grpc.HandlerCallDetails) -> Any:
        handlers = (generic.service(details) for generic in self._generic)
        return next((handler for handler in handlers if handler is not None), None)


def is_deaf(unanswered: int) -> bool:
    """Whether agents may not have been heard for the time of the latest of so many signs."""
    return unanswered > 0


async def _ended(process: asyncio.subprocess.Process, *, is_stuck: bool) -> int:
    """Return the exit status of a process that is to end, by SIGKILL if it has to be."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0 if is_stuck else END_WITHIN_S):
            return await process.wait()
    # Not before: a process that has ended is no one's to signal, and asyncio loses its status then.
    with suppress(ProcessLookupError):
        process.kill()
    return await process.wait()


class FrontEnd:
    """One front end: its process, which is started again as often as it ends, and its calls."""

    def __init__(self, number: int, server: FrontEndServer) -> None:
        self.number, self._server = number, server
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it lets callers in for the first time; with an ``OSError`` if it can't."""
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._shown: ms.Identity | ms.Files | None = None
        self._calls: dict[int, tuple[ForwardedCall, asyncio.Task[None]]] = {}
        self._is_ready, self._problem = False, ""  # why its port can't be had
        self._unanswered = 0  # signs of life, since the latest of the front end

    async def run(self) -> None:
        """Keep a process until the server stops."""
        tries = 0
        while not self._server.is_stopping:
            began = time.monotonic()
            reason = await self._run_once()
            if self._server.is_stopping:
                break
            tries += 1
            if not self.listening.done() and tries >= STARTS_MAX:
                self.listening.set_exception(OSError(reason))
                break
            message = f"front end {self.number} ended: {reason}; its agents connect again"
            log.warning("front end ended", message=message, reason=reason)
            if time.monotonic() - began < RESTART_DELAY_S:
                await asyncio.sleep(RESTART_DELAY_S)

    def send(self, message: ms.Message) -> None:
        """Send a message, if there is a process."""
        if self._link is not None:
            self._link.send(message)

    def tell_identity(self) -> None:
        """Tell it what the identity shows, if that is another one than before."""
        shown = self._server.shown()
        if shown is not None and shown != self._shown:
            self._shown = shown
            self.send(shown)

    async def _run_once(self) -> str:
        """Hold one process from its start to its end; return why it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *own_process(PROCESS, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._lost.clear()
        self._is_ready, self._unanswered, self._problem = False, 0, ""
        loop = asyncio.get_running_loop()
        _, self._link = await loop.create_connection(
            lambda: Link(ms.ToCoordinator, self._take, self._lost.set), sock=ours
        )
        opening = self._server.opening()
        self._shown = opening.identity
        self._link.send(opening)
        reason = ""
        try:
            reason = await self._until_lost()
        finally:
            self._link.close()
            self._link = None
            if self._calls:
                self._server.on_cut_off()
            for _, task in self._calls.values():
                task.cancel()
            self._calls.clear()
            status = await _ended(process, is_stuck=bool(reason))
        return reason or self._problem or f"exit status {status}"

    async def _until_lost(self) -> str:
        """Return once it has ended, or is to be: then why."""
        interval_s = self._server.listen.silence_max_s / ms.SIGNS_PER_SILENCE
        starting_max = max(ms.SIGNS_PER_SILENCE, START_WITHIN_S / interval_s)
        while not self._lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._lost.wait()
            if self._unanswered >= (ms.SIGNS_PER_SILENCE if self._is_ready else starting_max):
                return f"silent for {self._unanswered * interval_s:.1f} s"
            if is_deaf(self._unanswered) and self._calls:
                self._server.on_deaf(interval_s)
            self._unanswered += 1
            self.send(ms.Alive())
        return ""

    def _take(self, message: ms.ToCoordinator) -> None:
        match message:
            case ms.Said() | ms.Taken() | ms.SaidAll():
                if (found := self._calls.get(message.call)) is not None:
                    found[0].take(message)
            case ms.Left():
                if (found := self._calls.pop(message.call, None)) is not None:
                    found[1].cancel()
            case ms.Begun():
                self._begin(message)
            case ms.Alive():
                self._unanswered = 0
            case ms.Handshake():
                self.tell_identity()
            case ms.Paused():
                self._server.on_cut_off()
            case ms.Listening(problem=problem):
                self._is_ready, self._unanswered, self._problem = True, 0, problem
                if not self.listening.done():
                    if problem:
                        self.listening.set_exception(OSError(problem))
                    else:
                        self.listening.set_result(None)

    def _begin(self, begun: ms.Begun) -> None:
        call = ForwardedCall(begun, self.send)
        task = asyncio.create_task(self._server.serve(call, begun.method))
        self._calls[begun.call] = (call, task)
