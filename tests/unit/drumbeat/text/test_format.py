"""Counts and foreign text in lines for people."""

import pytest

from drumbeat.text.format import count, one_line, printable


@pytest.mark.parametrize(("number", "text"), [(0, "0 agents"), (1, "1 agent"), (2, "2 agents")])
def test_one_has_no_plural(number: int, text: str) -> None:
    assert count(number, "agent") == text


def test_control_characters_are_written_out_and_colours_left_out() -> None:
    assert printable("\x1b[1;31mred\x1b[0m\ttab\nline") == "red\ttab\nline"
    assert printable("\x1b[2J\x07\r\x9b\x7f") == "\\x1b[2J\\x07\\x0d\\x9b\\x7f"
    assert printable("a\u202eb\ud800") == "a\\u202eb\\ud800"
    assert printable("Größe 🙂") == "Größe 🙂"


def test_a_line_is_one_and_bounded() -> None:
    assert one_line(" a\nb ", 10) == "a\\nb"
    assert one_line("x" * 20, 10) == "x" * 9 + "…"
