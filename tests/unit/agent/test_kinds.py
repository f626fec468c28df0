"""What is said of the output of workers, read and written down."""

from __future__ import annotations

import pytest

from drumbeat.agent.settings.kinds import FILTERS, METRICS_PORT, RANKS
from drumbeat.agent.workers.output.lines import LAST_BYTES_MAX, LAST_LINES_MAX, last_lines


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("", ()),
        ("apple", ("apple",)),
        ("apple,orange", ("apple", "orange")),
        ("a,,b,c", ("a,b", "c")),
        ("a,,,b", ("a,", "b")),
        (",a,", ("a",)),
        (" a , b", (" a ", " b")),
    ],
)
def test_filters_are_texts_between_commas(text: str, filters: tuple[str, ...]) -> None:
    assert FILTERS.parse(text) == filters


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("29490", "127.0.0.1:29490"),
        (29490, "127.0.0.1:29490"),
        (" 0 ", "127.0.0.1:0"),
        ("0.0.0.0:9", "0.0.0.0:9"),
        ("[::]:9", "[::]:9"),
        ("node-1:0", "node-1:0"),
    ],
)
def test_metrics_are_at_a_port_of_the_loopback_address_unless_it_says_another(
    given: str | int, address: str
) -> None:
    assert METRICS_PORT.read(given) == address
    assert METRICS_PORT.parse(str(given)) == address


@pytest.mark.parametrize("text", ["", "x", "70000", "-1", "host:", "::1:9", "a b:9", "host:9:9"])
def test_another_place_for_metrics_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        METRICS_PORT.parse(text)


@pytest.mark.parametrize(
    ("text", "ranks"), [("", None), ("3", {3}), ("0,2,0", {0, 2}), ("0, 2", {0, 2})]
)
def test_ranks_are_numbers_between_commas(text: str, ranks: set[int] | None) -> None:
    assert RANKS.parse(text) == ranks


@pytest.mark.parametrize("text", ["a", "0,", ",", "-1", "0:1", "1.5", "٣"])
def test_other_ranks_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="separated by commas: 0,2"):
        RANKS.parse(text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"one\r\ntwo", "one\ntwo"),
        (b"\n\nend\n", "\n\nend"),
        (b"start\n 1%\r 2%\r 3%\rboom\n", "start\nboom"),
        (b" 1%\r 2%\r", " 2%"),
        (b"\xff\n\xc3\xbc\n", "\ufffd\nü"),
    ],
)
def test_last_lines_are_what_a_terminal_leaves(data: bytes, text: str) -> None:
    assert last_lines(data) == text


def test_last_lines_have_a_limit() -> None:
    lines = [f"line {number}" for number in range(LAST_LINES_MAX + 3)]
    assert last_lines("\n".join(lines).encode()) == "\n".join(lines[3:])
    assert last_lines(b"x" * LAST_BYTES_MAX + b"end") == "x" * (LAST_BYTES_MAX - 3) + "end"
