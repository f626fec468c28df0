"""Tables for operators' terminals."""

from drumbeat.command.table import CELL_CHARACTERS_MAX, short, table


def test_columns_are_aligned_and_no_cell_is_empty() -> None:
    shown = table(("ID", "ROLE", "BY"), [("a", "join", ""), ("long", "", "op")])
    assert shown.splitlines() == ["ID    ROLE  BY", "a     join  -", "long  -     op"]


def test_without_rows_the_heads_are_shown() -> None:
    assert table(("ID", "ROLE"), []) == "ID  ROLE"


def test_foreign_text_stays_one_short_printable_line() -> None:
    shown = table(("BY",), [("a\nb\x1b[2J" + "x" * 1000,)])
    head, row = shown.splitlines()
    assert head == "BY"
    assert row.isprintable()
    assert len(row) <= CELL_CHARACTERS_MAX


def test_durations_have_no_spaces() -> None:
    assert [short(seconds) for seconds in (0.25, 90, 5400, 273600)] == [
        "250ms",
        "1m30s",
        "1h30m",
        "3d4h",
    ]
