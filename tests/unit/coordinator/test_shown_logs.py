"""Output of workers as it is shown, and from where a reader goes on."""

from drumbeat.coordinator.api.documents import log_documents
from drumbeat.coordinator.command.looking import logs
from drumbeat.v1 import query_pb2, session_pb2


def piece(rank: int, text: str = "", **more: object) -> session_pb2.LogPiece:
    place = {"round_id": more.pop("round_id", 2), "stream": more.pop("stream", 1)}
    cursor = session_pb2.LogCursor(rank=rank, offset=10 + rank, **place)  # type: ignore[arg-type]
    return session_pb2.LogPiece(next=cursor, text=text, **more)  # type: ignore[arg-type]


def response(*pieces: session_pb2.LogPiece) -> query_pb2.WatchLogsResponse:
    return query_pb2.WatchLogsResponse(incarnation="i", name="gpu3", host="h", pieces=pieces)


def prefix(document: dict[str, object]) -> str:
    return f"[rank{document['rank']}]: "


def test_each_line_stands_behind_its_rank_and_nothing_acts_on_a_terminal() -> None:
    told = logs.text_of(
        log_documents(response(piece(0, "one\ntwo\n"), piece(17, "10%\r20%\r\n\x1b[2Jx"))), prefix
    )
    assert told.lines == ["[rank0]: one", "[rank0]: two", "[rank17]: 20%", r"[rank17]: \x1b[2Jx"]
    assert told.notes == []


def test_lost_lines_are_counted_and_silent_ranks_named_together() -> None:
    why = "its stdout goes\nelsewhere"
    pieces = piece(3, "x\n", missed=7), piece(2, problem=why), piece(1, problem=why)
    told = logs.text_of(log_documents(response(*pieces)), prefix)
    assert told.lines == ["[rank3]: x"]
    assert told.notes == [
        "rank 3: 7 lines of its stdout not shown: they came faster than they were read",
        r"ranks 1,2 on gpu3: no output: its stdout goes\nelsewhere",
    ]


def test_a_document_a_line() -> None:
    (missed, line, silent) = log_documents(
        response(piece(3, "\x1b\n", missed=7, stream=2), piece(4, problem="no", stream=0))
    )
    of = {"round_id": 2, "name": "gpu3", "host": "h"}
    assert missed == {**of, "rank": 3, "stream": "stderr", "missed": 7}
    assert line == {**of, "rank": 3, "stream": "stderr", "line": "\x1b", "age_s": None}
    assert silent == {**of, "rank": 4, "stream": None, "problem": "no"}


def test_a_reader_goes_on_behind_what_it_saw_of_rounds_that_agents_keep() -> None:
    cursors = logs.Cursors()
    for round_id in (1, 2, 3):
        cursors.move(response(piece(0, "x\n", round_id=round_id), piece(1, round_id=round_id)))
    cursors.move(response(piece(5, problem="why", stream=0)))
    (told,) = cursors
    assert told[0] == "i"
    assert [(each.round_id, each.rank) for each in told[1]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
