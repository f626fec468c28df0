"""Pure. Declarations of settings: each stands once, as a field of a dataclass. See ADR 28."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drumbeat.text import addresses
from drumbeat.text.durations import DURATION_MAX_S, parse_duration, short_duration
from drumbeat.text.violation import Violation

# What can be the least that is logged, with the numbers of Python's ``logging``.
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OTHER_LEVELS = {"notset": "debug", "warn": "warning", "critical": "error", "fatal": "error"}
_COUNT = re.compile(" *-?[0-9]{1,12} *", re.ASCII)


class Kind(NamedTuple):
    """The values that a setting takes."""

    allowed: str
    read: Callable[[Any], Any]
    """Returns a program's value in its one form; ``ValueError`` or ``TypeError`` for any other."""
    convert: Callable[[str], Any] = str
    """Returns the value of a text; ``ValueError`` for any other, with a message if need be."""
    text: Callable[[Any], str] = str  # returns the text of a value
    metavar: str = "TEXT"
    allowed_text: str = ""  # what a text may be, where that differs
    is_secret: bool = False  # no message has a value, be it allowed or not
    is_repeated: bool = False  # an option for each of several texts; in a variable a line for each

    def parse(self, given: str) -> Any:
        """Return the value of a text. Raises ``ValueError``, which says what is allowed."""
        try:
            return self.convert(given)
        except ValueError as error:
            allowed = self.allowed_text or self.allowed
            problem = str(error) or f"{given!r} is given, allowed is {allowed}"
            raise ValueError(problem) from None


class Setting(NamedTuple):
    """One setting."""

    default: Any
    kind: Kind
    section: str  # of the help; empty if its flag is that of an option which sets more
    help: str
    flags: tuple[str, ...] = ()  # with dashes; by default the name of the field
    variables: tuple[str, ...] = ()  # of torchrun, read in this order after ``DRUMBEAT_<OPTION>``
    shown_default: str = ""
    is_required: bool = False
    is_hidden: bool = False  # in the help
    has_variable: bool = True  # in the environment
    bare: str = ""  # the text that it has where its option stands without one; empty: it can't

    @property
    def option(self) -> str:
        """The long spelling, by which messages name it."""
        return next(flag for flag in self.flags if flag.startswith("--"))

    @property
    def variable(self) -> str:
        """Its variable in the environment."""
        return f"DRUMBEAT_{self.option[2:].replace('-', '_').upper()}"

    @property
    def default_text(self) -> str:
        """The default as the command line has it, empty if there is none to show."""
        if self.shown_default or self.default is None or self.kind is FLAG:
            return ""
        return self.kind.text(self.default)


def setting(default: Any, kind: Kind, section: str, about: str, **more: Any) -> Any:
    """Declare a field of a dataclass; ``more`` as in ``Setting``."""
    return declare(Setting(default, kind, section, about, **more))


def declare(declared: Setting) -> Any:
    """Return the field of a dataclass that is this setting."""
    return dataclasses.field(default=declared.default, metadata={"setting": declared})


def named(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Give settings the flags of their names, unless they have others."""
    return {
        name: declared._replace(flags=declared.flags or (f"--{name.replace('_', '-')}",))
        for name, declared in settings.items()
    }


def settings_of(owner: Any) -> dict[str, Setting]:
    """Return what a dataclass declares, by field."""
    fields = dataclasses.fields(owner)
    return named(
        {field.name: field.metadata["setting"] for field in fields if "setting" in field.metadata}
    )


def read_settings(owner: Any) -> tuple[dict[str, Any], list[Violation]]:
    """Return the values of all settings in their one form, and which are not allowed."""
    values: dict[str, Any] = {}
    violations: list[Violation] = []
    for name, declared in settings_of(owner).items():
        value = getattr(owner, name)
        try:
            is_unset = value is None and declared.default is None
            values[name] = None if is_unset else declared.kind.read(value)
        except (TypeError, ValueError) as error:
            allowed = declared.kind.allowed
            if declared.kind.is_secret:
                value, allowed = _Withheld(), "; ".join(filter(None, (allowed, str(error))))
            violations.append(Violation(name, value, allowed))
    return values, violations


class _Withheld:
    """Stands where a secret was given."""

    def __str__(self) -> str:
        return "a text that is not shown"


def by_option(violations: Iterable[Violation], owner: Any) -> tuple[Violation, ...]:
    """Name fields as the command line does."""
    options = {name: declared.option for name, declared in settings_of(owner).items()}
    return tuple(rule._replace(field=options.get(rule.field, rule.field)) for rule in violations)


def _kind(
    allowed: str,
    types: type | tuple[type, ...],
    is_allowed: Callable[[Any], Any],
    convert: Callable[[str], Any] = str,
    text: Callable[[Any], str] = str,
    metavar: str = "TEXT",
) -> Kind:
    """Values of some types that a function accepts; ``convert`` makes one of a text."""

    def read(value: Any) -> Any:
        is_of_type = isinstance(value, types) and isinstance(value, bool) == (types is bool)
        if not is_of_type or not is_allowed(value):
            raise ValueError
        return value

    return Kind(allowed, read, lambda given: read(convert(given)), text, metavar)


def text(allowed: str, is_allowed: Callable[[str], Any], *, metavar: str = "NAME") -> Kind:
    """Texts that a function accepts. Those of a command line are read later, with all others."""
    return _kind(allowed, str, is_allowed, metavar=metavar)._replace(convert=str)


def printable(length_max: int, *, is_optional: bool = False) -> Kind:
    """Texts without control characters."""
    low = 0 if is_optional else 1
    allowed = f"{low} to {length_max} printable characters"
    return text(allowed, lambda value: low <= len(value) <= length_max and value.isprintable())


def one_of(words: Sequence[str]) -> Kind:
    """One of some words."""
    allowed = f"one of {', '.join(words)}"
    return _kind(allowed, str, words.__contains__, metavar=f"[{'|'.join(words)}]")


def number(low: int, high: int, *, metavar: str = "N") -> Kind:
    """Whole numbers, in plain decimal digits."""
    return _kind(
        f"a whole number from {low} to {high}",
        int,
        lambda value: low <= value <= high,
        lambda given: int(given) if _COUNT.fullmatch(given) else None,
        metavar=metavar,
    )


def seconds(low: float = 0.0, high: float = DURATION_MAX_S) -> Kind:
    """Durations."""
    return _kind(
        f"{low:.10g} to {high:.10g} seconds",
        (int, float),
        lambda value: low <= value <= high,
        parse_duration,
        short_duration,
        "DURATION",
    )


def limit(*keywords: str) -> Kind:
    """Durations, None or 0 for no limit, or one of these words. Below 0.1 s it is a slip."""
    duration = seconds(0.1)
    words = ("none", *keywords)

    def read(value: Any) -> Any:
        if value in (None, 0) and value is not False:
            return None
        return value if value in words[1:] else duration.read(value)

    def text_of(value: Any) -> str:
        return value if isinstance(value, str) else short_duration(value or 0)

    def parse(given: str) -> Any:
        word = given.strip().lower()
        if word in (*words, "off", "0"):
            return word if word in words[1:] else None
        try:
            return duration.parse(given)
        except ValueError as error:
            *some, last = words
            allowed = f"{', '.join(some)} or {last}" if some else last
            raise ValueError(f"{error}; also allowed: 0, {allowed}") from None

    allowed = ", ".join((duration.allowed, *(f'"{word}"' for word in keywords), "0 or None"))
    metavar = "|".join(("DURATION", *reversed(words)))
    return Kind(allowed, read, parse, text_of, metavar)


FLAG = _kind("True or False", bool, lambda _: True, metavar="")
"""Options without a value."""


def switch(on: str, off: str) -> Kind:
    """Two words, for True and False."""
    words = one_of((on, off))
    return FLAG._replace(
        convert=lambda given: words.convert(given) == on,
        text=lambda value: on if value else off,
        metavar=words.metavar,
        allowed_text=words.allowed,
    )


_LEVELS = one_of(tuple(LOG_LEVELS))


def _level(given: str) -> Any:
    """Read a level, also by its names and numbers in Python's ``logging``."""
    word = given.strip().lower()
    if word.isdecimal() and len(word) < 4:
        return next((name for name, top in LOG_LEVELS.items() if int(word) <= top), "error")
    return _LEVELS.convert(_OTHER_LEVELS.get(word, word))


PORT = number(0, 65535, metavar="PORT")


def _cluster(given: str) -> str:
    return ",".join(addresses.parse_addresses(given))


ADDRESSES = Kind(
    f"{addresses.ALLOWED}; of a cluster up to {addresses.COORDINATORS_MAX}, separated by commas, "
    "each once",
    _cluster,
    _cluster,
    metavar="HOST[:PORT],...",
)
"""The address of a coordinator, or of all of a cluster, with commas between them."""

USE_PROXY = Setting(
    False,
    FLAG,
    "Options",
    "Use the proxy of http_proxy, https_proxy or grpc_proxy, which is ignored otherwise.",
)
LOG_FORMAT = Setting(
    "auto",
    one_of(("auto", "console", "json")),
    "Log",
    "auto, console: one line per event; json: one JSON object per event.",
)
LOG_LEVEL = Setting(
    "info",
    _LEVELS._replace(convert=_level),
    "Log",
    "Least severe level to log; debug also shows the details of each event.",
    variables=("LOGLEVEL",),
)
QUIET = Setting(
    False,
    FLAG,
    "Log",
    "Log only warnings and errors; reports are still shown.",
    flags=("-q", "--quiet"),
)
