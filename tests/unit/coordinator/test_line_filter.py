"""Which lines of workers' output a reader wants."""

import pytest

from drumbeat.coordinator.api.log_lines import LEVELS, LineFilter, level_of


def line(text: str, rank: int = 0, stream: str = "stdout") -> dict[str, object]:
    return {"rank": rank, "stream": stream, "line": text}


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-01-01 12:00:00,123 - train - WARNING - low", "warning"),
        ("WARN: low", "warning"),
        ("[rank0]:[E101 12:00:00 ProcessGroupNCCL.cpp:616] ERROR", "error"),
        ('{"level": "error", "msg": "x"}', "error"),
        ("time=12 level=debug msg=x", "debug"),
        ("[2026-01-01][info] started", "info"),
        ("E0101 12:00:00.000 1 file.cc:1] bad", "error"),
        ("F0101 12:00:00.000 1 file.cc:1] bad", "critical"),
        ("FATAL out of memory", "critical"),
        ("CRITICAL out of memory", "critical"),
        ("step 3 error 0.01", None),
        ("ValueError: no labels", None),
        ("Everything is fine", None),
        ("x" * 300 + " ERROR", None),
    ],
)
def test_a_level_is_known_by_how_programs_write_it(text: str, level: str | None) -> None:
    assert level_of(text) == (None if level is None else LEVELS.index(level))


def test_lines_behind_a_record_have_its_level_in_each_stream() -> None:
    lines = [
        line("Traceback before any record"),
        line("INFO begin"),
        line("  detail"),
        line("ERROR it failed", stream="stderr"),
        line("more of the beginning"),
        line("Traceback", stream="stderr"),
        line("ERROR of another rank", rank=1),
        line("INFO again", stream="stderr"),
    ]
    shown = [of["line"] for of in LineFilter(level="warning")(lines)]
    assert shown == ["ERROR it failed", "Traceback", "ERROR of another rank"]


def test_a_text_is_found_in_any_case_and_notes_are_always_shown() -> None:
    notes: list[dict[str, object]] = [
        {"rank": 1, "stream": None, "problem": "away"},
        {"rank": 1, "missed": 3},
    ]
    lines = [line("NCCL warn"), line("other"), *notes]
    assert list(LineFilter("nccl")(lines)) == [lines[0], *notes]
    assert list(LineFilter("nccl", "error")(lines)) == notes
    assert list(LineFilter()(lines)) == lines
