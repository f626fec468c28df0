"""Which ranks' output is kept as a round ends, and what becomes of it."""

import os
from pathlib import Path
from typing import Any

import pytest

from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.collecting import log_tails
from drumbeat.coordinator.shell.collecting.log_tails import FILE_BYTES_LEAST, LogTails, most_telling
from drumbeat.coordinator.wire.logs import tail_messages
from drumbeat.v1 import query_pb2, session_pb2
from tests.support.world import Story, a_record, a_running_story

KIB = 1024


def keep(tails: LogTails, name: str, round_id: int, size: int, order: int) -> Path:
    path = tails._directory / f"{name}-{round_id}"
    tails._write(path, b"x" * size)
    os.utime(path, ns=(order, order))
    return path


def names(tails: LogTails) -> list[str]:
    return sorted(path.name for path in tails._directory.iterdir())


def failed(story: Story, *ranks: tuple[int, dict[str, Any]]) -> list[int]:
    state = story.state()
    assert state.round is not None
    state.failures = [a_record(rank=rank, **fields) for rank, fields in ranks]
    return most_telling(state, state.round, 4)


def test_root_causes_come_first_then_what_failed_then_rank_0() -> None:
    story = a_running_story(8)
    victim = {"is_stopped_by_agent": True, "happened_at": 0.0}
    assert failed(story, (5, victim), (3, {"happened_at": 2.0}), (6, {"happened_at": 1.0})) == [
        6,
        5,
        3,
        0,
    ]
    assert failed(story) == [0, 1, 2, 3]
    assert failed(story, (7, {"round_id": 4})) == [0, 1, 2, 3], "of another round"


def test_a_run_drops_its_oldest_rounds_and_no_other_run_does(tmp_path: Path) -> None:
    limits = Limits(log_tails_run_bytes_max=100 * KIB, log_tails_bytes_max=200 * KIB)
    tails = LogTails(tmp_path / "output", limits)
    keep(tails, "a", 0, 60 * KIB, 1)
    for round_id in range(4):
        keep(tails, "b", round_id, 40 * KIB, 2 + round_id)
    assert names(tails) == ["a-0", "b-2", "b-3"]
    assert {path.stat().st_mode & 0o777 for path in tails._directory.iterdir()} == {0o600}


def test_of_all_runs_the_oldest_go_first_and_small_files_count_too(tmp_path: Path) -> None:
    tails = LogTails(tmp_path / "output", Limits(log_tails_bytes_max=3 * FILE_BYTES_LEAST))
    for order, name in enumerate("abcd"):
        keep(tails, name, 0, 1, 1 + order)
    assert names(tails) == ["b-0", "c-0", "d-0"]


def test_one_round_that_is_too_large_is_kept_alone(tmp_path: Path) -> None:
    tails = LogTails(tmp_path / "output", Limits(log_tails_bytes_max=KIB))
    keep(tails, "a", 0, 1, 1)
    keep(tails, "b", 0, 90 * KIB, 2)
    assert names(tails) == ["b-0"]


async def test_runs_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    tails = LogTails(tmp_path / "output", Limits())
    first, second = (a_running_story(1).state() for _ in range(2))
    second.created_at = first.created_at + 1
    assert await tails.rounds(first) == []
    for round_id in (11, 2):
        keep(tails, log_tails._name(first), round_id, 1, 1)
    assert await tails.rounds(first) == [2, 11]
    assert await tails.rounds(second) == []


def tail(*pieces: tuple[int, int, str]) -> bytes:
    message = query_pb2.WatchLogsResponse(incarnation="i", name="gpu0", host="h", since_round=3)
    for rank, round_id, text in pieces:
        place = session_pb2.LogCursor(rank=rank, round_id=round_id, stream=1)  # type: ignore[arg-type]
        message.pieces.add(next=place, text=text, path=f"/logs/{rank}")
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ({"tail": 2}, ["b\nc", "d"]),
        ({"tail": 0}, ["", ""]),
        ({"tail": 9}, ["a\nb\nc", "d"]),
        ({"tail": 1, "ranks": [1]}, ["d"]),
    ],
)
def test_a_reader_gets_the_last_lines_of_its_ranks(asked: dict[str, Any], texts: list[str]) -> None:
    kept = [tail((0, 3, "a\nb\nc\n"), (1, 3, "d"), (0, 4, "of the next round\n"))]
    messages = list(tail_messages(kept, query_pb2.WatchLogsRequest(**asked), 3))
    assert [piece.text for message in messages for piece in message.pieces] == texts
    assert {message.name for message in messages if message.pieces} == {"gpu0"}


def test_ranks_that_are_not_kept_are_named() -> None:
    request = query_pb2.WatchLogsRequest(ranks=[0, 5, 900], tail=1)
    last = list(tail_messages([tail((0, 3, "a\n"))], request, 3))[-1]
    assert [piece.next.rank for piece in last.pieces] == [5, 900]
    assert "none of the ranks whose output" in last.pieces[0].problem
