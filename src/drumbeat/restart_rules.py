"""Pure. Restart rules: which root cause of a failure leads to which action.

One rule is a text ``WHEN:ACTION``; agents and the coordinator read it here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from signal import Signals

from msgspec import Struct

RULES_MAX = 64
RULE_CHARACTERS_MAX = 512
FILE_CHARACTERS_MAX = 64 * 1024
# With `--restart-window` so many restarts may be allowed: the instant of each is kept.
WINDOWED_RESTARTS_MAX = 10_000
ALLOWED = (
    "WHEN:ACTION, with WHEN one of exit=42,50-59 signal=SIGKILL error=REGEX hang oom "
    "host=LABEL=VALUE, and ACTION one of restart restart-free fail exclude"
)

_CODES = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._:/-]{0,63}", re.ASCII)
_CODE_MAX = 255


class RestartAction(StrEnum):
    """What follows from a failure."""

    RESTART = "restart"  # charged to the restart budget
    RESTART_FREE = "restart-free"  # not charged, up to a limit
    FAIL = "fail"  # the run ends
    EXCLUDE = "exclude"  # restart without the host of the root cause


class RootCause(Struct, frozen=True, kw_only=True):
    """What rules look at. ``matched_rules`` are the numbers of the rules whose pattern matches."""

    exit_code: int = 0
    signal_name: str = ""
    is_hang: bool = False
    is_out_of_memory: bool = False
    matched_rules: tuple[int, ...] = ()
    labels: Mapping[str, str] = {}


class RestartRule(Struct, frozen=True, kw_only=True):
    """One rule; ``number`` counts the rules of a run from 1, ``regex`` is that of ``error=``."""

    number: int
    text: str
    action: RestartAction
    matches: Callable[[RootCause], bool]
    regex: str = ""

    def __str__(self) -> str:
        return f"restart rule {self.number} ({self.text})"


def parse_rule(text: str, number: int = 1) -> RestartRule:
    """Read one rule. Raises ``ValueError``, which names the part that is wrong."""
    if not 1 <= len(text) <= RULE_CHARACTERS_MAX or not text.isprintable():
        raise ValueError(f"a rule has 1 to {RULE_CHARACTERS_MAX} printable characters")
    when, colon, action = text.rpartition(":")
    if not colon:
        raise ValueError("it has no :ACTION")
    if action not in list(RestartAction):
        raise ValueError(f"unknown action '{action}'; allowed is {' '.join(RestartAction)}")
    kind, _, value = when.partition("=")
    if kind in ("exit", "signal", "error", "host") and not value:
        raise ValueError(f"'{kind}=' has no value")
    return RestartRule(
        number=number,
        text=text,
        action=RestartAction(action),
        matches=_condition(when, kind, value, number),
        regex=value if kind == "error" else "",
    )


def _condition(when: str, kind: str, value: str, number: int) -> Callable[[RootCause], bool]:
    """Return what tells whether a rule applies. A worker that hung was ended by its agent."""
    match kind:
        case "exit":
            codes = {code for part in value.split(",") for code in _codes(part)}
            return lambda cause: not cause.is_hang and cause.exit_code in codes
        case "signal":
            names = {_signal(part) for part in value.split(",")}
            return lambda cause: not cause.is_hang and cause.signal_name in names
        case "error":
            return lambda cause: number in cause.matched_rules
        case "host":
            if not _LABEL.fullmatch(value):
                raise ValueError(f"'{value}' is not LABEL=VALUE, as in host=rack=b7")
            label, _, wanted = value.partition("=")
            return lambda cause: cause.labels.get(label) == wanted
    if when == "hang":
        return lambda cause: cause.is_hang
    if when == "oom":
        return lambda cause: cause.is_out_of_memory
    raise ValueError(f"unknown condition '{when}'; allowed is exit= signal= error= hang oom host=")


def _codes(part: str) -> range:
    match = _CODES.fullmatch(part.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= _CODE_MAX:
        raise ValueError(f"'{part}' is no exit code or range from 1 to {_CODE_MAX}, as in 50-59")
    return range(low, high + 1)


def _signal(part: str) -> str:
    name = f"SIG{part.strip().upper().removeprefix('SIG')}"
    if name not in Signals.__members__:
        raise ValueError(f"'{part}' is no name of a signal, as in SIGKILL or KILL")
    return Signals[name].name  # of names for one signal the usual one


def parse_rules(texts: tuple[str, ...]) -> tuple[RestartRule, ...]:
    """Read the rules of a run, in their order. Raises ``ValueError``."""
    if len(texts) > RULES_MAX:
        raise ValueError(f"{len(texts)} rules; allowed are {RULES_MAX}")
    return tuple(parse_rule(text, number) for number, text in enumerate(texts, 1))


def rules_of_file(
    content: str, name: str, check: Callable[[str], object] = parse_rule
) -> tuple[str, ...]:
    """Return the rules of a file: one in each line; # begins a comment.

    ``check`` raises ``ValueError`` for one that is wrong, which this does with file and line.
    """
    rules: list[str] = []
    for number, line in enumerate(map(str.strip, content.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        try:
            if len(rules) == RULES_MAX:
                raise ValueError(f"more than {RULES_MAX} rules")  # noqa: TRY301 - one place
            check(line)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None
        rules.append(line)
    return tuple(rules)
