"""Shell. Messages of the protocol and values of the cores, one table for each pair.

A value is a class whose fields have the names of the message's; a duration's ends in ``_s``.
What a message has and the value has not is passed over: a later version sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING
from enum import StrEnum
from functools import partial
from inspect import get_annotations
from math import isfinite
from typing import Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from drumbeat.model import DURATION_MAX_S
from drumbeat.text.violation import InvalidField

# Trailing metadata of a refused call: an encoded `drumbeat.v1.ErrorDetail`.
ERROR_KEY = "drumbeat-error-bin"
# Metadata of a call whose client comes because it has lost the coordinator of this term.
LOST_TERM_KEY = "drumbeat-lost-term"
# Initial metadata of a call that was let in: the coordinator's release, and its clock (Unix time).
VERSION_KEY, CLOCK_KEY = "drumbeat-version", "drumbeat-clock"


def clock_difference_s(metadata: Mapping[str, Any], began: float, ended: float) -> float:
    """Return how far a coordinator's clock is off at least; 0 if it sent none that can be read.

    ``began`` and ``ended`` are this host's clock before the call and after its first answer.
    """
    with suppress(KeyError, TypeError, ValueError):
        if isfinite(clock := float(metadata[CLOCK_KEY])):
            return max(0.0, began - clock, clock - ended)
    return 0.0


V = TypeVar("V")
E = TypeVar("E", bound=StrEnum)
# Takes the path of a field and what it holds; returns what to use. Raises ``InvalidField``.
Check = Callable[[str, Any], Any]
OnProblem = Callable[[InvalidField], None]
Kinds = dict[str, "MessageMapping[Any]"]


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


def between(
    least: float, most: float, unit: str = "", measure: Callable[[Any], float] | None = None
) -> Check:
    """Return a check for numbers, or for what is measured of a value."""

    def check(path: str, value: Any) -> Any:
        if not least <= (value if measure is None else measure(value)) <= most:
            raise InvalidField(path, value, f"{least:.17g} to {most:.17g} {unit}".rstrip())
        return value

    return check


def text(least: int, most: int) -> Check:
    """Return a check for the number of characters of a text."""
    return between(least, most, "characters", len)


def cut(most: int) -> Check:
    """Return what shortens a text to so many characters."""
    return lambda _, value: value[:most]


def cut_bytes(most: int) -> Check:
    """Return what shortens a text to so many bytes of UTF-8, at a whole character."""
    return lambda _, value: value.encode()[:most].decode(errors="ignore") if value else value


def enum_table(kind: Any, of: type[E]) -> dict[int, E]:
    """Return the members of ``of`` by their numbers in the protocol's enum ``kind``.

    A member ``OTHER`` stands for the number 0, and for those of a later version.
    """
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = {member: "UNSPECIFIED" if member == "OTHER" else member for member in of}
    return {kind.values_by_name[f"{prefix}{name}"].number: member for member, name in names.items()}


class MessageMapping(Generic[V]):
    """Reads and writes messages of one type as values of one type.

    ``parts`` has the mapping of each nested value and the class of each enum; of a ``oneof`` the
    mapping of each kind, by name. ``checks`` is what is allowed of numbers and texts. Fields in
    ``given`` are not the message's: the caller of ``read`` knows them.
    """

    def __init__(
        self,
        value: type[V],
        message: type[Message],
        *,
        parts: Mapping[str, MessageMapping[Any] | type[StrEnum] | Kinds] = {},
        checks: Mapping[str, Check] = {},
        given: Collection[str] = (),
    ) -> None:
        self.value, self._message = value, message
        self._plain: list[str] = []  # numbers and texts that are taken as they are
        # Name, attribute, whether it may be unset, two ways to read it, what it is if absent.
        self._reads: list[tuple[str, str, bool, Check | None, Any, Any]] = []
        self._writes: list[tuple[str, str, Callable[[Any], Any] | None]] = []
        described = message.DESCRIPTOR.fields_by_name
        self._kinds: list[tuple[str, Kinds, dict[type, tuple[str, Any]]]] = []
        for attribute, kind in _declared(value).items():
            if attribute in given:
                continue
            part = parts.get(attribute)
            if isinstance(part, dict):
                by_type = {mapping.value: (name, mapping.write) for name, mapping in part.items()}
                self._kinds.append((attribute, part, by_type))
                continue
            name = attribute if attribute in described else attribute.removesuffix("_s")
            read, field = checks.get(attribute), described[name]
            is_optional = "None" in str(kind)
            read_part: Any = None
            write: Any = None
            absent: Any = None if is_optional else MISSING
            if isinstance(part, MessageMapping):
                read_part, write = part.read, part.write
                if field.default_value == []:
                    # Of a named tuple a dictionary is enough, and written in half the time.
                    write = getattr(part.value, "_asdict", part.write)
                    read_part, write, absent = part.read_all, partial(map, write), ()
            elif part is not None:
                members: dict[int, Any] = enum_table(field.enum_type, part)
                write = {member: number for number, member in members.items()}.__getitem__
                read = partial(_read_member, {0: None, **members} if is_optional else members)
            elif field.message_type is not None:
                read, write = _read_duration, duration
            elif field.default_value == []:
                read = read or _read_repeated
            elif not is_optional:
                with suppress(InvalidField):
                    absent = read(name, field.default_value) if read else field.default_value
            has_presence = is_optional and field.has_presence
            if read or read_part or has_presence:
                self._reads.append((name, attribute, has_presence, read, read_part, absent))
                self._writes.append((name, attribute, write))
            else:
                self._plain.append(name)

    def read(self, message: Any, path: str = "", on_problem: OnProblem = refuse, **given: Any) -> V:
        """Return the value of a message.

        A field with a problem is as if it were absent, once ``on_problem`` has returned.
        Raises ``InvalidField`` for one that has to be there.
        """
        for name in self._plain:
            given[name] = getattr(message, name)
        for name, attribute, has_presence, read, read_part, absent in self._reads:
            if has_presence and not message.HasField(name):
                given[attribute] = None
                continue
            what = getattr(message, name)
            if read is _read_duration:  # without a call: nothing is read as often
                seconds = what.seconds + what.nanos / 1e9
                if 0 <= seconds <= DURATION_MAX_S:
                    given[attribute] = seconds
                    continue
            try:
                if read is not None:
                    what = read(name, what)
                elif read_part is not None:
                    what = read_part(what, f"{path}.{name}" if path else name, on_problem)
            except InvalidField as problem:
                if read is not None and path:
                    problem.field = f"{path}.{name}"
                if absent is MISSING:
                    raise
                on_problem(problem)
                what = absent
            given[attribute] = what
        for attribute, kinds, _ in self._kinds:
            given[attribute] = _read_kind(kinds, attribute, message, path, on_problem)
        return self.value(**given)

    def read_all(self, messages: Iterable[Any], path: str, on_problem: OnProblem) -> tuple[V, ...]:
        """Read a list; an element with a problem is left out, once ``on_problem`` has returned."""
        values = []
        for index, message in enumerate(messages):
            try:
                values.append(self.read(message, f"{path}[{index}]", on_problem))
            except InvalidField as problem:
                on_problem(problem)
        return tuple(values)

    def write(self, value: V, **given: Any) -> Any:
        """Return the message of a value, with the fields ``given`` beside those of the value."""
        for name in self._plain:
            given[name] = getattr(value, name)
        for name, attribute, write in self._writes:
            what = getattr(value, attribute)
            given[name] = what if write is None or what is None else write(what)
        for attribute, _, by_type in self._kinds:
            what = getattr(value, attribute)
            name, write_kind = by_type[type(what)]
            given[name] = write_kind(what)
        return self._message(**given)


def _declared(value: type) -> dict[str, Any]:
    """Return the fields of a value with their types, as they are written; those of bases first."""
    classes = reversed(value.__mro__)
    return {name: kind for base in classes for name, kind in get_annotations(base).items()}


def _read_member(members: dict[int, Any], path: str, raw: int) -> Any:
    if raw in members:
        return members[raw]
    if (other := members.get(0)) is not None:
        return other
    raise InvalidField(path, raw, " ".join(filter(None, members.values())))


def _read_kind(kinds: Kinds, name: str, message: Any, path: str, on_problem: OnProblem) -> Any:
    if (kind := message.WhichOneof(name)) is None:
        raise InvalidField(f"{path}.{name}" if path else name, "unknown", " ".join(kinds))
    return kinds[kind].read(getattr(message, kind), path, on_problem)


def _read_repeated(_path: str, raw: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(raw)


def _read_duration(path: str, raw: Duration) -> float:
    seconds = seconds_of(raw)
    between(0, DURATION_MAX_S, "seconds")(path, seconds)
    return seconds
