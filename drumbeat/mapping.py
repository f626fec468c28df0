"""Shell. Messages of the protocol and values of the cores, one table for each pair.

A value is a dataclass whose fields have the names of the message's; a duration's ends in
``_s``. What a message has and the value has not is passed over: a later version sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from drumbeat.violation import InvalidField

V = TypeVar("V")
E = TypeVar("E", bound=StrEnum)
Check = Callable[[str, Any], Any]
"""Takes the path of a field and what it holds; returns what to use. Raises ``InvalidField``."""
OnProblem = Callable[[InvalidField], None]

DURATION_MAX_S = 1e9
"""Far beyond any run or host, and well within what messages and clocks can hold."""


def refuse(problem: InvalidField) -> None:
    """Take nothing from a message that has a problem."""
    raise problem


def duration(seconds: float) -> Duration:
    """Write a duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def seconds_of(message: Duration) -> float:
    """Read a duration."""
    return message.seconds + message.nanos / 1e9


def between(least: float, most: float, unit: str = "") -> Check:
    """Return a check for numbers."""

    def check(path: str, value: float) -> float:
        if not least <= value <= most:
            raise InvalidField(path, value, f"{least:.17g} to {most:.17g} {unit}".rstrip())
        return value

    return check


def text(least: int, most: int) -> Check:
    """Return a check for the number of characters of a text."""

    def check(path: str, value: str) -> str:
        if not least <= len(value) <= most:
            raise InvalidField(path, value, f"{least} to {most} characters")
        return value

    return check


def cut(most: int) -> Check:
    """Return what shortens a text to so many characters."""
    return lambda _, value: value[:most]


def cut_bytes(most: int) -> Check:
    """Return what shortens a text to so many bytes of UTF-8, at a whole character."""
    return lambda _, value: value.encode()[:most].decode(errors="ignore") if value else value


def few(most: int) -> Check:
    """Return a check for the number of elements."""

    def check(path: str, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(value) > most:
            raise InvalidField(path, len(value), f"at most {most}")
        return value

    return check


DURATION = between(0, DURATION_MAX_S, "seconds")


def enum_table(kind: Any, of: type[E]) -> dict[int, E]:
    """Return the members of ``of`` by their numbers in the protocol's enum ``kind``."""
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {kind.values_by_name[f"{prefix}{member}"].number: member for member in of}


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field goes both ways."""

    name: str
    read: Callable[[Any, str, OnProblem], Any]
    write: Callable[[Any], Any] | None
    check: Check | None
    is_repeated: bool


class MessageMapping(Generic[V]):
    """Reads and writes messages of one type as values of one type.

    ``parts`` has the mapping of each nested value and the class of each enum, ``checks`` what
    is allowed. Fields in ``given`` are not the message's: the caller of ``read`` knows them.
    """

    def __init__(
        self,
        value: Callable[..., V],
        message: type[Message],
        *,
        parts: Mapping[str, MessageMapping[Any] | type[StrEnum]] | None = None,
        checks: Mapping[str, Check] | None = None,
        given: Collection[str] = (),
    ) -> None:
        parts, checks = parts or {}, checks or {}
        self._value, self._message = value, message
        self._fields: dict[str, _Field] = {}
        self._absent: dict[str, Any] = {}
        self._checked: list[tuple[str, str, Check]] = []  # even if they are absent
        described = message.DESCRIPTOR.fields_by_name
        for field in fields(value):  # type: ignore[arg-type]
            if field.name in given:
                continue
            name = field.name if field.name in described else field.name.removesuffix("_s")
            part, check = parts.get(field.name), checks.get(field.name)
            self._fields[name] = _field(field.name, described[name], part, check)
            self._absent[field.name] = _absent(field, described[name], part)
            if check is not None and self._absent[field.name] is not None:
                self._checked.append((name, field.name, check))

    def read(self, message: Any, path: str = "", on_problem: OnProblem = refuse, **given: Any) -> V:
        """Return the value of a message.

        A field with a problem is as if it were absent, once ``on_problem`` has returned; the
        ``given`` ones are not looked at. Raises ``InvalidField`` for one that has to be there.
        """
        found = {**self._absent, **given}
        prefix = f"{path}." if path else ""
        for descriptor, raw in message.ListFields():
            field = self._fields.get(descriptor.name)
            if field is None or field.name in given:
                continue
            if field.read is _as_it_is and field.check is None:
                found[field.name] = raw
                continue
            try:
                what = field.read(raw, prefix + descriptor.name, on_problem)
                if field.check is not None:
                    what = field.check(prefix + descriptor.name, what)
                found[field.name] = what
            except InvalidField as problem:
                if isinstance(self._absent[field.name], float):
                    raise  # a duration that has to be known
                on_problem(problem)
        for name, attribute, check in self._checked:
            if found[attribute] is self._absent[attribute]:
                check(prefix + name, found[attribute])
        for name, field in self._fields.items():
            if found[field.name] is MISSING:
                raise InvalidField(prefix + name, None, "a value that is known here")
        return self._value(**found)

    def empty(self) -> V:
        """Return the value of a message that says nothing."""
        return self._value(**self._absent)

    def write(self, value: V, **given: Any) -> Any:
        """Return the message of a value, with the fields ``given`` beside those of the value."""
        for name, field in self._fields.items():
            what = getattr(value, field.name)
            if what is None or name in given:
                continue
            if field.write is not None:
                what = [field.write(e) for e in what] if field.is_repeated else field.write(what)
            given[name] = what
        return self._message(**given)


def _as_it_is(raw: Any, _path: str, _on_problem: OnProblem) -> Any:
    return raw


def _field(
    name: str,
    described: Any,
    part: MessageMapping[Any] | type[StrEnum] | None,
    check: Check | None,
) -> _Field:
    read: Callable[[Any, str, OnProblem], Any] = _as_it_is
    write: Callable[[Any], Any] | None = None
    if isinstance(part, MessageMapping):
        read, write = part.read, part.write
    elif part is not None:
        members = enum_table(described.enum_type, part)
        numbers = {member: number for number, member in members.items()}
        allowed = " ".join(part)

        def read_member(raw: int, path: str, _on_problem: OnProblem) -> StrEnum:
            if raw not in members:
                raise InvalidField(path, raw, allowed)
            return members[raw]

        read, write = read_member, numbers.__getitem__
    elif described.message_type is not None and described.message_type.name == "Duration":
        write = duration

        def read_duration(raw: Duration, path: str, _on_problem: OnProblem) -> Any:
            return DURATION(path, seconds_of(raw))

        read = read_duration
    is_repeated = described.default_value == []
    return _Field(name, _each(read) if is_repeated else read, write, check, is_repeated)


def _each(read: Callable[[Any, str, OnProblem], Any]) -> Callable[[Any, str, OnProblem], Any]:
    """Read all elements; one with a problem is left out, once ``on_problem`` has returned."""

    def read_all(raw: Any, path: str, on_problem: OnProblem) -> tuple[Any, ...]:
        found = []
        for index, element in enumerate(raw):
            try:
                found.append(read(element, f"{path}[{index}]", on_problem))
            except InvalidField as problem:
                on_problem(problem)
        return tuple(found)

    return read_all


def _absent(
    field: Field[Any], described: Any, part: MessageMapping[Any] | type[StrEnum] | None
) -> Any:
    """Return what a value has for a field that its message lacks."""
    if described.default_value == []:
        return ()
    if "None" in str(field.type):
        return None
    if described.message_type is not None and described.message_type.name == "Duration":
        return 0.0
    if isinstance(part, MessageMapping):
        return part.empty()
    if described.message_type is None and described.enum_type is None:
        return described.default_value
    return field.default
