"""Calls and bytes that no client of ours would send, made up from one seed.

Services are found by their descriptors, so that a new call is fuzzed as soon as there is one.
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from bench.strangers import http2
from bench.strangers.attacks import Door
from drumbeat.coordinator.core.tokens.caller import incarnation_of
from drumbeat.coordinator.shell.transport.methods import SERVICES
from drumbeat.tasks import is_asked_to_end
from drumbeat.v1 import common_pb2, session_pb2
from tests.support.wire import OPEN, spec

CALL_S = 2.0
DEPTH_MAX = 4
REPEATED_MAX = 5
CALLS_PER_CHANNEL = 40
MESSAGES_MAX = 12
# What no call may end with: a mistake of the coordinator's.
FAULTS = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})
# How gRPC's client says that it could not write any more; the status it had is lost then.
_OWN_ERROR = "Internal error from Core"
_TEXTS = (
    *("", "run", ".", "..", "../../etc/passwd", "a" * 128, "a" * 129, "\0", "\x1b[2J\x1b]0;x\x07"),
    *("\u202e", "é" * 300, "\U0001f600" * 70, "%s%n{0}", "1e400", "x" * 70_000),
)
_INTEGERS = (0, 1, 2, 7, 127, 255, 65_535, 65_536, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1)
_FLOATS = (0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan"))


def methods() -> dict[str, Descriptor]:
    """Return the message that each method of each service takes, by its path."""
    pool = descriptor_pool.Default()
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    services = [pool.FindServiceByName(name) for name in names]
    return {
        f"/{service.full_name}/{method.name}": method.input_type
        for service in services
        for method in service.methods
    }


class Mutator:
    """Makes messages, and spoils what was made."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def message(self, descriptor: Descriptor, depth: int = 0) -> Message:
        """Return a message with some of its fields, and values that they may have or not."""
        made = message_factory.GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self._rng.random() < 0.5:
                self._set(made, field, depth)
        return made

    def change(self, message: Message) -> None:
        """Give some fields of a message other values."""
        for field in message.DESCRIPTOR.fields:
            if self._rng.random() < 0.3:
                self._set(message, field, 1)

    def encoded(self, message: Message) -> bytes:
        """Return the bytes of a message, not always those it has."""
        data = message.SerializeToString()
        return self.spoilt(data) if self._rng.random() < 0.2 else data

    def spoilt(self, data: bytes) -> bytes:
        """Return bytes that are nearly these."""
        rng, changed = self._rng, bytearray(data or b"\0")
        at = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                del changed[at:]
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(1, 30))
            case 3:
                changed += changed[at:]
            case _:
                return rng.randbytes(rng.randrange(1, 2_000))
        return bytes(changed)

    def _set(self, message: Message, field: Any, depth: int) -> None:
        kind, name = field.message_type, field.name
        if depth >= DEPTH_MAX and kind is not None:
            return
        if kind is not None and kind.GetOptions().map_entry:
            key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
            for _ in range(self._rng.randrange(REPEATED_MAX)):
                getattr(message, name)[self._value(key)] = self._value(value)
        elif field.is_repeated:
            made = [self._any(field, depth) for _ in range(self._rng.randrange(REPEATED_MAX))]
            getattr(message, name).extend(made)
        elif kind is not None:
            getattr(message, name).CopyFrom(self.message(kind, depth + 1))
        else:
            setattr(message, name, self._value(field))

    def _any(self, field: Any, depth: int) -> Any:
        kind = field.message_type
        return self._value(field) if kind is None else self.message(kind, depth + 1)

    def _value(self, field: Any) -> Any:
        rng, kind = self._rng, field.cpp_type
        match kind:
            case FieldDescriptor.CPPTYPE_STRING:
                if field.type == FieldDescriptor.TYPE_BYTES:
                    return rng.randbytes(rng.choice((0, 1, 32, 5_000)))
                return rng.choice(_TEXTS)
            case FieldDescriptor.CPPTYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return rng.choice(_FLOATS)
            case FieldDescriptor.CPPTYPE_ENUM:
                return rng.choice((*(value.number for value in field.enum_type.values), 99, -1))
        is_wide = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
        is_signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
        most = 2 ** ((64 if is_wide else 32) - is_signed) - 1
        value = min(rng.choice(_INTEGERS), most)
        return -value if is_signed and rng.random() < 0.3 else value


class Fuzzer:
    """Makes calls and connections until it is told to end, and counts how the calls ended.

    ``channel`` opens a connection; ``callers`` are the metadata that calls come with, none and
    wrong ones among them. ``is_allowed`` says which calls not to make with which of them.
    """

    def __init__(
        self,
        seed: int,
        door: Door,
        channel: Callable[[], grpc.aio.Channel],
        callers: dict[str, grpc.aio.Metadata],
        *,
        is_allowed: Callable[[str, str], bool],
    ) -> None:
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng)
        self._door, self._channel, self._callers = door, channel, callers
        self._is_allowed = is_allowed
        self.ends: Counter[tuple[str, grpc.StatusCode]] = Counter()
        """Of calls, by method and status."""
        self.faults: list[str] = []
        """Of the coordinator's: which call ended how."""
        self.connections = 0
        """On which bytes were sent that are no calls."""

    async def run(self, lasting_s: float, *, at_once: int = 6) -> None:
        """Trouble the coordinator for so long."""
        until = time.monotonic() + lasting_s
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._call(until))
            for _ in range(2):
                group.create_task(self._connect(until))

    async def _call(self, until: float) -> None:
        paths = methods()
        while time.monotonic() < until:
            async with self._channel() as channel:
                for _ in range(CALLS_PER_CHANNEL):
                    path = self._rng.choice((*paths, OPEN, OPEN))
                    caller = self._rng.choice([*self._callers])
                    if time.monotonic() < until and self._is_allowed(path, caller):
                        await self._call_once(channel, path, caller, paths[path])

    async def _call_once(
        self, channel: grpc.aio.Channel, path: str, caller: str, kind: Descriptor
    ) -> None:
        is_session = path == OPEN and self._rng.random() < 0.8
        said = self._reports() if is_session else [*self._messages(kind)]
        how: dict[str, Any] = {"metadata": self._callers[caller], "timeout": CALL_S}
        # What is sent as one ends as the coordinator says, even if that reads nothing of it.
        is_one = isinstance(said, list) and len(said) == 1
        call: Any = (
            channel.unary_stream(path)(*said, **how)
            if is_one
            else channel.stream_stream(path)(**how)
        )
        try:
            for data in () if is_one else said:
                await call.write(data)
                if is_session:
                    await self._hear(call)
            if self._rng.random() < 0.2:
                call.cancel()
            if not is_one:
                await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            status, details = await call.code(), await call.details()
        except grpc.aio.AioRpcError as error:
            status, details = error.code(), error.details() or ""
        except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.InternalError):
            if is_asked_to_end():
                raise
            status, details = grpc.StatusCode.CANCELLED, ""  # gRPC does not say it better
        finally:
            call.cancel()
        self.ends[path, status] += 1
        if status in FAULTS and details != _OWN_ERROR:
            self.faults.append(f"{path} for {caller}: {status.name} {details}")

    async def _hear(self, call: Any) -> None:
        """Take in what a session is told, mostly its welcome."""
        if self._rng.random() < 0.7:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    directive = session_pb2.Directive.FromString(await call.read() or b"")
                    if directive.HasField("welcome"):
                        self._session_id = directive.welcome.session_id

    def _messages(self, kind: Descriptor) -> Iterator[bytes]:
        for _ in range(self._rng.choice((0, 1, 1, 1, 3))):
            if self._rng.random() < 0.15:
                yield self._rng.randbytes(self._rng.randrange(500))
            else:
                yield self._mutator.encoded(self._mutator.message(kind))

    def _reports(self) -> Iterator[bytes]:
        """Make up what an agent says: a hello that may be sound, and reports of its session."""
        rng, key = self._rng, secrets.token_bytes(32)
        fence = common_pb2.Fence(
            run_id=f"fuzzed-{rng.randrange(20)}", incarnation=incarnation_of(key)
        )
        beat = session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE, master_port=4000)
        purpose = session_pb2.RunPurpose(run_id=fence.run_id, spec=spec(1, 3))
        hello = session_pb2.Hello(
            run=purpose,
            host="host",
            address="127.0.0.1",
            role="default",
            local_world_size=rng.choice((1, 8)),
            incarnation_key=key,
            beat=beat,
        )
        report = session_pb2.AgentReport(fence=fence, hello=hello)
        if rng.random() < 0.5:
            self._mutator.change(report.hello)
        self._session_id = ""
        yield self._mutator.encoded(report) if rng.random() < 0.3 else report.SerializeToString()
        for _ in range(rng.randrange(MESSAGES_MAX)):
            fence.session_id = self._session_id
            report = session_pb2.AgentReport()
            self._mutator.change(report)
            if rng.random() < 0.9:
                fence.round_id = rng.choice((0, 1, 2, 2**53 + 1))
                report.fence.CopyFrom(fence)
            yield self._mutator.encoded(report)

    async def _connect(self, until: float) -> None:
        while time.monotonic() < until:
            self.connections += 1
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(CALL_S):
                    await self._trouble(is_raw=self._rng.random() < 0.3)

    async def _trouble(self, *, is_raw: bool) -> None:
        reader, writer = await self._door.open(is_raw=is_raw)
        try:
            for data in self._bytes():
                writer.write(data)
                await writer.drain()
            if self._rng.random() < 0.5:
                await asyncio.wait_for(reader.read(65536), 0.05)
        finally:
            writer.transport.abort()

    def _bytes(self) -> Iterator[bytes]:
        """Make up what HTTP/2 may look like, or does not."""
        rng, spoilt = self._rng, self._mutator.spoilt
        if rng.random() < 0.2:
            yield rng.randbytes(rng.randrange(1, 5_000))
            return
        yield http2.HELLO if rng.random() < 0.9 else spoilt(http2.HELLO)
        for stream in range(1, rng.randrange(3, 60), 2):
            path = rng.choice([*methods()])
            payload = rng.randbytes(rng.randrange(200))
            kind, flags = rng.randrange(12), rng.getrandbits(8)
            yield rng.choice(
                (
                    http2.call(path, stream),
                    spoilt(http2.call(path, stream)),
                    http2.frame(kind, payload, flags=flags, stream=rng.choice((0, 1, stream))),
                    http2.frame(http2.Kind.DATA, b"\0" + payload, stream=stream),
                    http2.reset(stream),
                )
            )
