"""The protocol as other versions have it: the one of the baseline, and one to come.

Messages are made from descriptors, so that none of the code generated today is used.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

BASELINE = Path(__file__).parents[1] / "baseline.binpb"
LATER = 1000
"""Number of what a later version adds, to every message and to some choices."""
LATER_STATE = 99

_CHOICES = {"AgentReport": "Goodbye", "Directive": "Stop", "DesiredState": "Stop"}
_Field = descriptor_pb2.FieldDescriptorProto


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the protocol. Its messages are attributes, e.g. ``version.AgentReport``."""

    pool: descriptor_pool.DescriptorPool
    is_later: bool

    def __getattr__(self, name: str) -> Any:
        return message_factory.GetMessageClass(
            self.pool.FindMessageTypeByName(f"drumbeat.v1.{name}")
        )

    def made(self, name: str, **fields: Any) -> Message:
        """Return a message; of a later version it has a field that is unknown today."""
        message: Message = getattr(self, name)(**fields)
        if self.is_later:
            message.later = "soon"  # type: ignore[attr-defined]
        return message


def version(*, is_later: bool) -> Version:
    """Return the version of the baseline, or one that adds wherever something can be added."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(BASELINE.read_bytes()).file:
        if is_later and file.package == "drumbeat.v1":
            _add(file)
        pool.Add(file)
    return Version(pool, is_later)


def _add(file: descriptor_pb2.FileDescriptorProto) -> None:
    for message in file.message_type:
        optional = _Field.LABEL_OPTIONAL
        message.field.add(name="later", number=LATER, type=_Field.TYPE_STRING, label=optional)
        if message.name in _CHOICES:
            message.field.add(
                name="later_kind",
                number=LATER + 1,
                type=_Field.TYPE_MESSAGE,
                type_name=f".drumbeat.v1.{_CHOICES[message.name]}",
                label=optional,
                oneof_index=0,
            )
    for kind in file.enum_type:
        prefix = kind.value[0].name.removesuffix("UNSPECIFIED")
        kind.value.add(name=f"{prefix}LATER", number=LATER_STATE)
