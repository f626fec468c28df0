"""Shell. Encodes and decodes the messages between an agent and its supervisor.

One message is one line of JSON, checked on reading. Both ends belong to the same program and
the same release, so an unreadable line is a broken peer (`ProtocolError`), not a newer one.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar, get_args

import msgspec

from drumbeat.agent.model.messages import Command, SupervisorEvent
from drumbeat.agent.workers.output.lines import LineCutter

LINE_BYTES_MAX = 16 * 1024 * 1024
"""Longest line, newline included; a longer one raises `ProtocolError` on either side.

The largest message starts the workers of one host: the kernel takes about 2 MiB of arguments and
environment per process, and all but the small overrides are sent once for all of them.
"""

OUTBOX_BYTES_MAX = 2 * LINE_BYTES_MAX
"""Unsent bytes either side keeps; beyond that its peer does not read and counts as dead."""

M = TypeVar("M")


class ProtocolError(Exception):
    """A line that is too long or holds no message; the connection is of no further use."""


class Decoder(Generic[M]):
    """Reads the messages of one direction, `Command` or `SupervisorEvent`, from a stream."""

    def __init__(self, kinds: Any) -> None:
        self._types = {kind.__name__: kind for kind in get_args(kinds)}
        self._cutter = LineCutter(line_bytes_max=LINE_BYTES_MAX)

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that ``data`` completes; may raise ``ProtocolError``."""
        messages = []
        for line in self._cutter.feed(data).splitlines():
            try:
                name, fields = json.loads(line)
                messages.append(msgspec.convert(fields, self._types[name], str_keys=True))
            except (msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
                raise ProtocolError(f"not a message: {line[:200]!r}: {error}") from error
        return messages


def encode(message: Command | SupervisorEvent) -> bytes:
    """Return the message as one line; raises ``ProtocolError`` if it is too long."""
    # Environment and arguments are bytes to the kernel. What is not UTF-8 in them reaches Python
    # as lone surrogates, which the standard library's JSON carries and msgspec's does not.
    fields = msgspec.to_builtins(message, str_keys=True)
    name = type(message).__name__
    line = json.dumps([name, fields], separators=(",", ":")).encode("ascii")
    if len(line) >= LINE_BYTES_MAX:
        raise ProtocolError(f"{name} takes {len(line) + 1} bytes, at most {LINE_BYTES_MAX} fit")
    return line + b"\n"
