"""Bytes of HTTP/2 as no library would send them."""

from __future__ import annotations

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES_MAX = 16 * 1024
END_STREAM, END_HEADERS = 0x1, 0x4
_LITERAL = b"\0"  # neither name nor value is in a table
_PREFIX_7_MAX = 127


class Kind(IntEnum):
    """Of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9
    UNKNOWN = 0x77


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return one frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


HELLO = PREFACE + frame(Kind.SETTINGS)


def field(name: bytes, value: bytes) -> bytes:
    """Return one header field."""
    return _LITERAL + _string(name) + _string(value)


def call(method: str, stream: int, *more: tuple[bytes, bytes]) -> bytes:
    """Return the frame that begins a call of gRPC, and no message."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", method.encode()),
        (b":authority", b"coordinator"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]
    block = b"".join(field(name, value) for name, value in fields)
    return frame(Kind.HEADERS, block, flags=END_HEADERS, stream=stream)


def reset(stream: int) -> bytes:
    """Return the frame that takes a call back."""
    return frame(Kind.RST_STREAM, (8).to_bytes(4, "big"), stream=stream)


def _string(text: bytes) -> bytes:
    """Write a length as HPACK does (RFC 7541, 5.1), and the text."""
    size = len(text)
    if size < _PREFIX_7_MAX:
        return bytes([size]) + text
    head, size = bytearray([_PREFIX_7_MAX]), size - _PREFIX_7_MAX
    while size >= 0x80:
        head.append(size % 0x80 + 0x80)
        size //= 0x80
    head.append(size)
    return bytes(head) + text
