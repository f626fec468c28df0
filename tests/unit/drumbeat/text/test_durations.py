"""Durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.text.durations import ALLOWED, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("30s", 30.0),
        ("30 s", 30.0),
        (" 30s ", 30.0),
        ("0", 0.0),
        ("1.5m", 90.0),
        (".5s", 0.5),
        ("5.", 5.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("500ms", 0.5),
        ("0.25ms", 0.00025),
    ],
)
def test_duration_is_read_with_and_without_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "-1s",
        "+1",
        "nan",
        "inf",
        "1e3",
        "1d",
        "s",
        ".",
        "1.2.3",
        "1m30s",
        "3 0",
        "٣s",
    ],
)
def test_anything_else_is_refused_and_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)
    assert ALLOWED in str(caught.value)


def test_an_endless_text_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration("9" * 100_000)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0002, "0.2 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (9.97, "10 s"),
        (42.0, "42 s"),
        (42.4, "42 s"),
        (59.6, "1 min"),
        (90.0, "1 min 30 s"),
        (3599.7, "1 h"),
        (7500.0, "2 h 5 min"),
        (86_399.0, "1 d"),
        (100_000.0, "1 d 4 h"),
        (-90.0, "-1 min 30 s"),
        (float("inf"), "inf s"),
        (float("nan"), "nan s"),
    ],
)
def test_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["ms", "s", "m", "h", ""]))
def test_every_whole_number_with_a_unit_is_read(number: int, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}[unit]
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * factor)


@given(st.floats(min_value=0, max_value=1e9))
def test_no_unit_is_written_with_a_whole_larger_one_in_it(seconds: float) -> None:
    words = format_duration(seconds).split()
    bounds = {"ms": 1000, "s": 60, "min": 60, "h": 24, "d": float("inf")}
    for number, unit in zip(words[::2], words[1::2], strict=True):
        assert float(number) < bounds[unit]
