"""Messages of a later version of the protocol: what is new in them has to be passed over."""

from typing import TypeVar

from google.protobuf.message import Message

from drumbeat.v1 import session_pb2

M = TypeVar("M", bound="Message")

# Field 2000, two bytes long: no version has it yet.
_FIELD_OF_THE_FUTURE = b"\x82\x7d\x02hi"


def newer(message: M) -> M:
    """Return a message as a later version may send it."""
    message.MergeFromString(_FIELD_OF_THE_FUTURE)
    return message


def unknown() -> session_pb2.Directive:
    """Return a directive that this version does not know."""
    return newer(session_pb2.Directive())
