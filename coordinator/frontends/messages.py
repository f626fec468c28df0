"""Pure. What a front end and its coordinator tell each other about calls, and its form in bytes.

Both are processes of one installation and one user, at the ends of a pair of sockets: messages may
change with every release. ``call`` is a number that the front end gives to each of its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import msgspec
from msgspec import Struct

Metadata = tuple[tuple[str, Any], ...]
"""Pairs of a key and a text, or bytes where the key ends in ``-bin``."""

# In the time for which either side may be silent there are so many signs of life, so that one that
# stood still for a moment hears them before it judges.
SIGNS_PER_SILENCE = 4
_LENGTH_BYTES = 4
# Of one write: a reader handles it in one go.
BATCH_MAX = 256


class Message(Struct, frozen=True, array_like=True, gc=False):
    """One of those below."""


class Open(Message, tag=1, frozen=True):
    """To the front end, once: listen with gRPC's ``options``, for calls of these ``methods``."""

    address: str
    options: tuple[tuple[str, int], ...]
    methods: tuple[str, ...]
    silence_max_s: float
    identity: Identity | Files | None


class Files(Message, tag=15, frozen=True):
    """Where the operator's own certificate is, which is read again when it changes."""

    certificate: str
    key: str
    client_ca: str | None


class Identity(Message, tag=2, frozen=True):
    """To the front end: what handshakes are made with from now on, in PEM."""

    key: bytes
    chain: bytes


class Listening(Message, tag=3, frozen=True):
    """To the coordinator: callers are let in, or why they can't be."""

    problem: str


class Paused(Message, tag=14, frozen=True):
    """To the coordinator: it was silent for too long, so all connections are ended.

    ``Listening`` follows once it is heard again.
    """


class Handshake(Message, tag=4, frozen=True):
    """To the coordinator: handshakes are made. It answers if the certificate is another one now."""


class Alive(Message, tag=5, frozen=True):
    """Both ways: this process is not stuck. The front end repeats the coordinator's."""


class Stop(Message, tag=6, frozen=True):
    """To the front end: let no call in any more, and end once those under way have ended."""

    within_s: float


class Begun(Message, tag=7, frozen=True):
    """To the coordinator: a call. ``properties`` are those of a client's certificate."""

    call: int
    method: str
    metadata: Metadata
    peer: str
    properties: dict[str, list[bytes]]


class Said(Message, tag=8, frozen=True):
    """Both ways: a message of a call. The next one follows once this one was ``Taken``."""

    call: int
    message: bytes


class Taken(Message, tag=9, frozen=True):
    """Both ways: the latest message of a call was read, or left for its caller."""

    call: int


class SaidAll(Message, tag=10, frozen=True):
    """To the coordinator: the caller says no more in this call."""

    call: int


class Left(Message, tag=11, frozen=True):
    """To the coordinator: the caller of a call is gone."""

    call: int


class Greeted(Message, tag=12, frozen=True):
    """To the front end: the initial metadata of a call."""

    call: int
    metadata: Metadata


class Ended(Message, tag=13, frozen=True):
    """To the front end: the status with which a call ends, and its trailing metadata."""

    call: int
    status: int
    details: str
    metadata: Metadata


ToCoordinator = Union[Listening, Paused, Handshake, Alive, Begun, Said, Taken, SaidAll, Left]  # noqa: UP007
ToFrontEnd = Union[Open, Identity, Alive, Stop, Said, Taken, Greeted, Ended]  # noqa: UP007

_encoder = msgspec.msgpack.Encoder()


def encoded(messages: Sequence[Message]) -> bytes:
    """Return messages as bytes, of which ``Decoder`` makes them again."""
    frames = []
    for first in range(0, len(messages), BATCH_MAX):
        body = _encoder.encode(messages[first : first + BATCH_MAX])
        frames += [len(body).to_bytes(_LENGTH_BYTES), body]
    return b"".join(frames)


class Decoder:
    """Makes messages of bytes that come in pieces. ``kinds`` are those that are expected."""

    def __init__(self, kinds: object) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kinds])  # type: ignore[valid-type]
        self._rest = bytearray()

    def decoded(self, piece: bytes) -> Iterator[Message]:
        """Yield the messages that are there whole now."""
        rest = self._rest
        rest += piece
        begins = 0
        while len(rest) - begins >= _LENGTH_BYTES:
            ends = begins + _LENGTH_BYTES
            ends += int.from_bytes(rest[begins:ends])
            if ends > len(rest):
                break
            yield from self._decoder.decode(bytes(rest[begins + _LENGTH_BYTES : ends]))
            begins = ends
        del rest[:begins]
