"""Pure. One rule that a value breaks: which field, what was given, what is allowed."""

from typing import NamedTuple

_SHOWN_LENGTH_MAX = 100  # a message stays one readable line, whatever a peer sends


class Violation(NamedTuple):
    """A field, as its owner calls it, whose value is not allowed; what would be, as a phrase."""

    field: str
    value: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.field}: {show_value(self.value)} is given, allowed is {self.allowed}"


class InvalidField(ValueError):
    """A field of a message is missing or out of range."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        return str(Violation(self.field, self.value, self.allowed))


def show_value(value: object) -> str:
    """``value`` as it may stand in a message: "nothing" for None, printable, bounded."""
    if value is None:
        return "nothing"
    shown = ascii(value) if isinstance(value, (str, bytes)) else str(value)
    if len(shown) > _SHOWN_LENGTH_MAX:
        return f"{shown[:_SHOWN_LENGTH_MAX]}… ({len(shown)} characters)"
    return shown
