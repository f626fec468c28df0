"""The end of a stream, read from place to place: nothing twice, and what is lost is counted."""

import pytest

from drumbeat.agent.workers.output.ring import (
    PIECE_BYTES_MAX,
    Piece,
    Place,
    Ring,
    tail_at,
    whole_lines,
)


def ring(*chunks: bytes, bytes_max: int = 20) -> Ring:
    found = Ring(bytes_max)
    for chunk in chunks:
        found.add(chunk)
    return found


def test_whole_lines_are_read_and_the_rest_later() -> None:
    stream = ring(b"one\ntwo\nthr")
    piece = stream.read(Place(), is_last=False)
    assert piece == Piece(Place(8, 2), b"one\ntwo\n")
    assert stream.read(piece.next, is_last=False) == Piece(Place(8, 2))
    stream.add(b"ee\n")
    piece = stream.read(piece.next, is_last=False)
    assert piece == Piece(Place(14, 3), b"three\n")


def test_a_line_that_is_not_finished_is_read_at_the_end() -> None:
    assert ring(b"one\nend").read(Place(4, 1), is_last=True) == Piece(Place(7, 1), b"end")


def test_what_is_read_too_late_is_counted() -> None:
    stream = ring(*(b"line %d\n" % number for number in range(10)))
    # 20 bytes are kept: the end of a line, and the last two.
    piece = stream.read(Place(7, 1), is_last=False)
    assert piece == Piece(Place(70, 10), b"line 8\nline 9\n", missed=7)


def test_a_line_longer_than_all_that_is_kept_is_lost_but_for_its_end() -> None:
    stream = ring(b"one\n", b"x" * 50)
    piece = stream.read(Place(), is_last=True)
    assert piece == Piece(Place(54, 1), b"x" * 20, missed=1)


def test_reading_in_pieces_loses_nothing() -> None:
    text = b"".join(b"%d\n" % number for number in range(30_000))
    stream, place, read = ring(text, bytes_max=len(text)), Place(), b""
    while (piece := stream.read(place, is_last=True)).data:
        assert len(piece.data) <= PIECE_BYTES_MAX
        place, read = piece.next, read + piece.data
    assert read == text
    assert place == Place(len(text), 30_000)


@pytest.mark.parametrize(
    ("data", "lines", "tail"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"a\nb", 0, b"b"),
        (b"", 3, b""),
    ],
)
def test_the_last_lines(data: bytes, lines: int, tail: bytes) -> None:
    assert data[tail_at(data, lines) :] == tail
    assert ring(data).tail(lines).offset == len(data) - len(tail)


@pytest.mark.parametrize(
    ("chunk", "whole"),
    [
        (b"10%\r20%\r30", b"10%\r20%\r"),
        (b"a\r", b""),  # it may be the first half of a line end
        (b"a\r\nb", b"a\r\n"),
        (b"x" * PIECE_BYTES_MAX, b"x" * PIECE_BYTES_MAX),
    ],
)
def test_where_lines_end(chunk: bytes, whole: bytes) -> None:
    assert whole_lines(chunk, is_last=False) == whole
