"""How a broken rule reads."""

import pytest

from drumbeat.violation import Violation, check_range, show_value


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


@pytest.mark.parametrize("value", [1, 5.5, 10])
def test_range_includes_its_bounds(value: float) -> None:
    assert check_range("n", value, 1, 10, "agents") == []


@pytest.mark.parametrize("value", [0, 10.1, float("nan"), float("inf")])
def test_a_value_out_of_range_is_a_violation(value: float) -> None:
    assert check_range("n", value, 1, 1_000_000 if value == 0 else 10, "agents")[0].field == "n"


def test_range_reads_as_plain_numbers() -> None:
    (found,) = check_range("n", 0, 1, 1_000_000, "agents")
    assert found.allowed == "1 to 1000000 agents"
    (found,) = check_range("n", -1, 0, 65535, "")
    assert found.allowed == "0 to 65535"
