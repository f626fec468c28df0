"""Output of workers as an agent reads it for one request: files, pipes and rounds."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from drumbeat.agent.session.log_answers import LogReading, News
from drumbeat.agent.workers.output import kept as kept_output
from drumbeat.agent.workers.output.kept import (
    STDERR,
    STDOUT,
    KeptFile,
    KeptOutput,
    NotKept,
    StreamKey,
)
from drumbeat.agent.workers.output.ring import Place
from drumbeat.v1 import session_pb2
from tests.support.waiting import MS


def reading(
    kept: KeptOutput, *cursors: session_pb2.LogCursor, ranks: Iterable[int] = (), tail: int = 2
) -> LogReading:
    request = session_pb2.LogRequest(ranks=ranks, since_round=3, tail=tail, follow=True)
    return LogReading(request, kept, lambda text: text.replace("secret", "***"), cursors)


def texts(pieces: Iterable[session_pb2.LogPiece]) -> list[tuple[int, int, str]]:
    return [(each.next.round_id, each.next.rank, each.text) for each in pieces if each.text]


def test_a_file_is_read_from_its_last_lines_on_and_from_a_cursor(tmp_path: Path) -> None:
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("one\ntwo\nsecret three\nfo")
    kept.begin(3, {StreamKey(3, 0, STDOUT): KeptFile(str(path))})
    first = reading(kept)
    pieces = first.batch(None, is_last=False)
    assert texts(pieces) == [(3, 0, "*** three\n")]
    assert first.batch(None, is_last=False) == []
    with path.open("a") as file:
        file.write("ur\nfive\n")
    assert texts(first.batch(None, is_last=False)) == [(3, 0, "four\nfive\n")]
    assert texts(reading(kept, pieces[0].next).batch(None, is_last=False)) == [
        (3, 0, "four\nfive\n")
    ]


def test_the_first_piece_names_the_file_and_only_what_is_new_has_an_age(tmp_path: Path) -> None:
    path, kept = tmp_path / "attempt_3" / "0" / "out", KeptOutput()
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    kept.begin(
        3, {StreamKey(3, 0, STDOUT): KeptFile(str(path)), StreamKey(3, 1, STDOUT): NotKept("")}
    )
    assert kept.directory == str(path.parent)
    kept.begin(4, {StreamKey(4, 0, STDOUT): NotKept("it goes nowhere")})
    assert kept.directory == ""
    one = reading(kept, ranks=[0])
    pieces = [piece for piece in one.batch(None, is_last=False) if piece.text]
    one.batch(None, is_last=False)
    with path.open("a") as file:
        file.write("two\n")
    pieces += one.batch(None, is_last=False)
    told = [(piece.text, piece.path, piece.HasField("age")) for piece in pieces]
    assert told == [("one\n", str(path), False), ("two\n", "", True)]


def test_no_more_bytes_are_read_than_asked_for_and_no_half_line_with_half_a_secret(
    tmp_path: Path,
) -> None:
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("a secret line\n" * 3)
    kept.begin(3, {StreamKey(3, 0, STDOUT): KeptFile(str(path))})
    for most, lines in ((20, 1), (14, 0), (28, 2), (1_000, 2)):  # of 14 bytes each
        request = session_pb2.LogRequest(since_round=3, tail=2, tail_bytes=most)
        one = LogReading(request, kept, lambda text: text.replace("secret", "***"), ())
        (piece,) = one.batch(None, is_last=True)
        assert piece.text == "a *** line\n" * lines


def test_rounds_before_are_read_to_their_end_and_new_ones_from_their_beginning(
    tmp_path: Path,
) -> None:
    kept = KeptOutput()
    for round_id in (2, 3, 4):
        (tmp_path / str(round_id)).write_text(f"a\nb\nend of {round_id}")
    for round_id in (2, 3):
        kept.begin(round_id, {StreamKey(round_id, 0, STDOUT): KeptFile(f"{tmp_path}/{round_id}")})
    one = reading(kept)
    assert texts(one.batch(None, is_last=False)) == [(3, 0, "b\n")]
    kept.ended()
    kept.begin(4, {StreamKey(4, 1, STDOUT): KeptFile(f"{tmp_path}/4")})
    assert texts(one.batch(None, is_last=False)) == [(3, 0, "end of 3"), (4, 1, "a\nb\n")]


def test_a_file_that_was_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("new\n")
    assert KeptFile(str(path)).read(Place(100, 9), is_last=False) == (Place(4, 1), b"new\n", 0)


def test_who_is_far_behind_in_a_file_goes_on_near_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_output, "BEHIND_BYTES_MAX", 100)
    monkeypatch.setattr(kept_output, "TAIL_BYTES_MAX", 40)
    path = tmp_path / "out"
    path.write_text("".join(f"line {number}\n" for number in range(30)))
    file, place, missed, read = KeptFile(str(path)), Place(), 0, b""
    while (piece := file.read(place, is_last=True)).next != place:
        place, missed, read = piece.next, missed + piece.missed, read + piece.data
    assert read.splitlines()[-1] == b"line 29"
    assert missed + len(read.splitlines()) == 30


def test_ranks_that_were_not_asked_for_are_left_out_and_those_without_output_named() -> None:
    kept, why = KeptOutput(), NotKept("its stdout goes elsewhere")
    kept.begin(3, {StreamKey(3, rank, STDOUT): why for rank in range(3)})
    one = reading(kept, ranks=[1])
    (piece,) = one.batch(None, is_last=False)
    assert (piece.next.rank, piece.problem) == (1, why)
    assert one.batch(None, is_last=False) == []


def test_a_file_that_is_gone_is_told_once(tmp_path: Path) -> None:
    kept = KeptOutput()
    kept.begin(3, {StreamKey(3, 0, STDERR): KeptFile(str(tmp_path / "none"))})
    one = reading(kept)
    (piece,) = one.batch(None, is_last=False)
    assert piece.problem == "its file can't be read: No such file or directory"
    assert one.batch(None, is_last=False) == []


async def test_a_write_to_a_file_and_a_new_round_are_news(tmp_path: Path) -> None:
    path, kept = tmp_path / "out", KeptOutput()
    path.write_text("one\n")
    news = News(kept)
    try:
        news.expect()
        news.watch(str(path))
        with path.open("a") as file:
            file.write("two\n")
        async with asyncio.timeout(5_000 * MS):
            await news.wait()
        news.expect()
        await asyncio.to_thread(kept.begin, 4, {})
        async with asyncio.timeout(5_000 * MS):
            await news.wait()
    finally:
        news.close()
    news.watch(str(path))  # a thread that comes late changes nothing
