"""Pure. The wire format of torch's ``TCPStore``: commands of clients, and answers.

A command is one byte and its arguments: numbers are little-endian and have 64 bits, texts come
after their length and lists after their count. Source: what torch's own clients and servers of
2.2 to 2.13 say to each other; releases have only added commands.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from enum import Enum, IntEnum, unique
from typing import Any, Self

from msgspec import Struct

# What torch's own server takes.
TEXT_BYTES_MAX = 8 * 1024 * 1024
LIST_MAX = 128 * 1024
# Of one command with all its texts, which is kept until it is complete; torch's has no such bound.
COMMAND_BYTES_MAX = 64 * 1024 * 1024
# What it takes to keep one argument, beside its bytes.
ARGUMENT_BYTES = 48
# What every client says first.
MAGIC = 0x3C85F7CE

_INTEGER, _SIZE, _WORD = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<I")


@unique
class Kind(Enum):
    """What an argument is."""

    WORD = "32 bits"
    INTEGER = "64 bits"
    TEXT = "bytes"
    TEXTS = "a list of bytes"
    PAIRS = "a list of keys, each with its value after it"


@unique
class Op(IntEnum):
    """What a client wants, by number from 0 without a gap, and what arguments come with it."""

    kinds: tuple[Kind, ...]

    def __new__(cls, number: int, *kinds: Kind) -> Self:
        """Make a command of its number and the kinds of its arguments."""
        op = int.__new__(cls, number)
        op._value_, op.kinds = number, kinds
        return op

    VALIDATE = 0, Kind.WORD
    SET = 1, Kind.TEXT, Kind.TEXT
    COMPARE_SET = 2, Kind.TEXT, Kind.TEXT, Kind.TEXT
    GET = 3, Kind.TEXT
    ADD = 4, Kind.TEXT, Kind.INTEGER
    CHECK = 5, Kind.TEXTS
    WAIT = 6, Kind.TEXTS
    COUNT_KEYS = 7
    DELETE = 8, Kind.TEXT
    APPEND = 9, Kind.TEXT, Kind.TEXT
    MULTI_GET = 10, Kind.TEXTS
    MULTI_SET = 11, Kind.PAIRS
    CANCEL_WAIT = 12
    PING = 13, Kind.WORD
    QUEUE_PUSH = 14, Kind.TEXT, Kind.TEXT
    QUEUE_POP = 15, Kind.TEXT
    QUEUE_LENGTH = 16, Kind.TEXT
    LIST_KEYS = 17
    BARRIER = 18, Kind.TEXT, Kind.INTEGER


class Command(Struct, frozen=True):
    """One command: keys and values are bytes, a list of either is one argument."""

    op: Op
    arguments: tuple[Any, ...] = ()


class CommandError(ValueError):
    """A client says what is no command, or more than it may."""


class CommandReader:
    """Finds the commands in what one client sends, in pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._taken = self._kept = 0  # of this command, without and with what it takes to keep it
        self._complete: list[Command] = []
        self._reading = self._read()

    @property
    def held(self) -> int:
        """How many bytes are kept of a command that is not complete."""
        return len(self._data) + self._kept

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete now; after ``CommandError`` there are no more."""
        self._data += data
        next(self._reading)
        complete, self._complete = self._complete, []
        del self._data[: self._at]
        self._at = 0
        return complete

    def close(self) -> None:
        """Keep nothing any more: the generator and this refer to each other."""
        self._reading.close()
        self._data.clear()

    def _read(self) -> Generator[None]:
        is_valid = False
        while True:
            self._taken = self._kept = 0
            number = (yield from self._take(1))[0]
            if number >= len(Op) or is_valid == (number == Op.VALIDATE):
                raise CommandError(f"this store has no command {number}")
            arguments = []
            for kind in Op(number).kinds:
                argument = yield from self._read_argument(kind)
                arguments.append(argument)
            if not is_valid and arguments != [MAGIC]:
                raise CommandError("the client is not a client of torch's store")
            is_valid = True
            self._complete.append(Command(Op(number), tuple(arguments)))

    def _read_argument(self, kind: Kind) -> Generator[None, None, Any]:
        match kind:
            case Kind.WORD:
                return (yield from self._read_number(_WORD))
            case Kind.INTEGER:
                return (yield from self._read_number(_INTEGER))
            case Kind.TEXT:
                size = yield from self._read_size(TEXT_BYTES_MAX)
                return (yield from self._take(size))
        texts = []
        for _ in range((2 if kind is Kind.PAIRS else 1) * (yield from self._read_size(LIST_MAX))):
            text = yield from self._read_argument(Kind.TEXT)
            texts.append(text)
        return texts

    def _read_number(self, kind: struct.Struct) -> Generator[None, None, int]:
        number: int = kind.unpack((yield from self._take(kind.size)))[0]
        return number

    def _read_size(self, most: int) -> Generator[None, None, int]:
        size = yield from self._read_number(_SIZE)
        if size > most:
            raise CommandError(f"length {size} exceeds {most}")
        return size

    def _take(self, size: int) -> Generator[None, None, bytes]:
        self._taken += size
        if self._taken > COMMAND_BYTES_MAX:
            raise CommandError(f"the command exceeds {COMMAND_BYTES_MAX} bytes")
        while len(self._data) - self._at < size:
            yield
        with memoryview(self._data) as data, data[self._at : self._at + size] as part:
            taken = bytes(part)  # copied once: it may be large
        self._at += size
        self._kept += size + ARGUMENT_BYTES
        return taken


READY, NOT_READY = b"\0", b"\1"
AWAITED, CANCELED = b"\0", b"\1"


def word(value: int) -> bytes:
    """Return the answer to a ping."""
    return _WORD.pack(value)


def integer(value: int) -> bytes:
    """Return an answer that is a number."""
    return _INTEGER.pack(value)


def text(value: bytes) -> bytes:
    """Return an answer that is a value."""
    return _SIZE.pack(len(value)) + value


def texts(values: Iterable[bytes]) -> bytes:
    """Return an answer of several values, whose count the client knows."""
    return b"".join(map(text, values))
