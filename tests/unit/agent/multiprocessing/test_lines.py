import random

import pytest

from drumbeat.agent.workers.output.lines import LineCutter, matching, prefixed


def feed(*chunks: bytes, line_bytes_max: int = 1000) -> list[bytes]:
    cutter = LineCutter(line_bytes_max=line_bytes_max)
    return [*(cutter.feed(chunk) for chunk in chunks), cutter.end()]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a\nb\n", b""]),
        ([b"a\nb"], [b"a\n", b"b\n"]),
        ([b"a", b"b", b"\nc\n"], [b"", b"", b"ab\nc\n", b""]),
        ([b"\n\n"], [b"\n\n", b""]),
        ([b"1%\r2%\r3%"], [b"1%\r2%\r", b"3%\n"]),
        ([b"1%\r", b"2%\r", b"done\n"], [b"", b"1%\r", b"2%\rdone\n", b""]),
        ([b"a\r", b"\nb\n"], [b"", b"a\r\nb\n", b""]),
        ([b"a\r"], [b"", b"a\r"]),
        ([b""], [b"", b""]),
    ],
)
def test_blocks_hold_whole_lines(chunks: list[bytes], expected: list[bytes]) -> None:
    assert feed(*chunks) == expected


def test_an_overlong_line_comes_in_parts() -> None:
    cutter = LineCutter(line_bytes_max=10)
    parts = []
    for _ in range(100):
        parts.append(cutter.feed(b"x" * 7))
        assert len(cutter._rest) <= 10
    text = b"".join([*parts, cutter.end()])
    assert text.replace(b"\n", b"") == b"x" * 700
    assert max(len(line) for line in text.split(b"\n")) == 10


def test_a_part_ends_between_characters() -> None:
    text = b"".join(feed("€".encode() * 40, line_bytes_max=10))
    assert {len(line) for line in text.decode().split()} == {1, 3}
    assert text.replace(b"\n", b"").decode() == "€" * 40


def test_what_is_not_text_comes_in_parts_too() -> None:
    assert b"".join(feed(b"\x80" * 40, line_bytes_max=10)).count(b"\x80") == 40


def test_nothing_is_lost_wherever_the_cuts_are() -> None:
    rng = random.Random(0)
    for _ in range(300):
        data = bytes(rng.choices(b"ab\r\n", k=rng.randrange(60)))
        chunks, rest = [], data
        while rest:
            size = rng.randrange(1, 9)
            chunks.append(rest[:size])
            rest = rest[size:]
        blocks = feed(*chunks)
        assert all(not block or block.endswith((b"\n", b"\r")) for block in blocks)
        joined = b"".join(blocks)
        assert joined in (data, data + b"\n")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"a\nb\n", b"[0]:a\n[0]:b\n"),
        (b"\n", b"[0]:\n"),
        (b"\n\n", b"[0]:\n[0]:\n"),
        (b"", b""),
        (b"1\r2\r", b"[0]:1\r[0]:2\r"),
        (b"a\r\nb\n", b"[0]:a\r\n[0]:b\n"),
        (b"\xff\x00\n", b"[0]:\xff\x00\n"),
    ],
)
def test_each_line_gets_the_prefix(block: bytes, expected: bytes) -> None:
    assert prefixed(block, b"[0]:") == expected
    assert prefixed(block, b"") == block


def test_lines_with_any_of_the_needles_are_chosen() -> None:
    block = b"loss 1\nacc 2\nlr 3\rloss 4\r\nend\n"
    assert matching(block, [b"loss", b"acc"]) == b"loss 1\nacc 2\nloss 4\r\n"
    assert matching(block, [b"end\n"]) == b"end\n"
    assert matching(block, [b"none"]) == b""
    assert matching(block, []) == b""
