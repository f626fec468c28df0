"""How output is cut into the lines that patterns are looked for in."""

import pytest

from drumbeat.agent.workers.output.lines import RULE_LINE_BYTES_MAX, RuleLines

BAR = b"\r 10%|#    | 1/10\r 20%|##   | 2/10\r"


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nt", b"wo", b"\n"], ["one", "two"]),
        ([b"one\r", b"\ntwo\r\n\r\n"], ["one", "two"]),
        ([b"unfinished"], []),
        ([BAR, b" 30%"], [" 10%|#    | 1/10", " 20%|##   | 2/10"]),
        ([b"\x1b[32mstep\x1b[0m \x1b[1;31m5\x1b[0m\x1b[K\n\x1b[Adone\n"], ["step 5", "done"]),
        ([b"\x1b[3", b"2mstep\n"], ["step"]),
        ([b"\xff\xc3", b"\xbc\n"], ["\ufffdü"]),
        ([b"\n\n\r\r"], []),
    ],
)
def test_lines_are_cut_at_every_line_end(chunks: list[bytes], lines: list[str]) -> None:
    cutter = RuleLines()
    assert [line for chunk in chunks for line in cutter.feed(chunk)] == lines


@pytest.mark.parametrize("size", [1, 7, 4096, 1_000_000])
def test_the_end_of_a_long_line_is_left_out_however_it_comes(size: int) -> None:
    data = b"x" * (3 * RULE_LINE_BYTES_MAX) + b"CUDA error\nnext\n"
    cutter, found = RuleLines(), list[str]()
    for at in range(0, len(data), size):
        found += cutter.feed(data[at : at + size])
    assert found == ["x" * RULE_LINE_BYTES_MAX, "next"]


def test_what_remains_of_a_line_whose_beginning_is_missing_is_no_line() -> None:
    cutter = RuleLines()
    assert cutter.feed(b"no CUDA ") == []
    assert cutter.feed(b"error: ", is_cut=True) == []
    assert cutter.feed(b"none\nnext\n") == ["next"]
