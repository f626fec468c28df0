"""Pure. Counts and foreign text as they may stand in a line of a log or report."""

import re
from collections.abc import Iterable

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters but tab and newline, what breaks lines elsewhere, what turns the direction
# of text around, and halves of characters that no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)


def count(number: int, noun: str) -> str:
    """Return "1 agent", "2 agents"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_pace(per_second: float) -> str:
    """Return "3.1 steps/s", "12 s a step"."""
    return f"{per_second:.3g} steps/s" if per_second >= 0.1 else f"{1 / per_second:.3g} s a step"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the drumbeat that is installed, which pip keeps."""
    return f"pip install 'drumbeat[{extra}]'"


def are(number: int) -> str:
    """Return the verb that goes with so many."""
    return "is" if number == 1 else "are"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first of some names, each once, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = [f"{len(distinct) - most} more"] * (len(distinct) > most)
    *head, last = *distinct[:most], *more
    return f"{', '.join(head)} and {last}" if head else last


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in short: "0-3,7"."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def format_size(size_bytes: int) -> str:
    """Return "1.5 GiB", "300.0 MiB"."""
    gib, mib = 2**30, 2**20
    return f"{size_bytes / gib:.1f} GiB" if size_bytes >= gib else f"{size_bytes / mib:.1f} MiB"


def printable(text: str) -> str:
    """Return foreign text with what would act on a terminal written out, as in a literal.

    Lines and tabs stay, colours are left out.
    """
    return _UNSAFE.sub(_escaped, _COLOUR.sub("", text))


def one_line(text: str, characters_max: int = 300) -> str:
    """Return foreign text as one printable line, cut if it is longer."""
    line = printable(text.strip()).replace("\n", "\\n").replace("\t", " ")
    return line if len(line) <= characters_max else f"{line[: characters_max - 1]}…"


def describe(error: BaseException) -> str:
    """Return an exception of foreign code as one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
