"""How a broken rule reads."""

import pytest

from drumbeat.text.violation import Violation, show_value


def test_violation_names_field_value_and_what_is_allowed() -> None:
    assert str(Violation("port", 70000, "0 to 65535")) == (
        "port: 70000 is given, allowed is 0 to 65535"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "nothing"), ("a", "'a'"), ("", "''"), (3, "3"), ("\x1b[2J\n", r"'\x1b[2J\n'")],
)
def test_value_is_shown_printable(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_a_long_value_is_cut() -> None:
    assert show_value("x" * 5000) == "'" + "x" * 99 + "… (5002 characters)"
