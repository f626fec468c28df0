"""What is gathered of a run: each part by itself, within limits."""

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from drumbeat.coordinator.api.run_reader import RunReader
from drumbeat.coordinator.errors import LimitReached, UnknownRun
from drumbeat.coordinator.evidence import gathering
from drumbeat.coordinator.evidence.contents import Evidence
from drumbeat.coordinator.evidence.gathering import LOG_BYTES_MAX, LOG_RANKS_MAX, gather
from drumbeat.coordinator.shell.transport.methods import QUERY
from drumbeat.v1 import query_pb2 as pb
from drumbeat.v1 import session_pb2

PARTS = {"stacks", "logs", "status", "report", "hang", "events", "why"} | {
    "steps",
    "goodput",
    "versions",
    "settings",
}


class Reader(RunReader):
    """Answers with empty messages, or with what is given by method."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    def call(self, method: str, *, timeout_s: float = 0.0, **values: Any) -> Any:
        assert 0 < timeout_s <= 10 or method in ("ListAgents", "ListEvents")
        self.asked.append((method, values))
        about = QUERY.methods_by_name[method]
        default: Any = [] if about.server_streaming else GetMessageClass(about.output_type)()
        answer = self._answers.get(method, default)
        if isinstance(answer, Exception):
            raise answer
        return answer


def a_run(world_size: int = 2, **fields: Any) -> pb.GetOverviewResponse:
    current = pb.Round(round_id=0, world_size=world_size)
    run = pb.Run(
        run_id="mt5", generation=3, phase=pb.RUN_PHASE_RUNNING, round_id=0, round=current, **fields
    )
    return pb.GetOverviewResponse(run=run)


def gathered(reader: Reader) -> Evidence:
    evidence = Evidence("mt5", "now", "a test asked for it")
    gather(reader, evidence)
    return evidence


def test_each_part_is_there_or_has_a_reason() -> None:
    reader = Reader(
        GetOverview=a_run(),
        GetStacks=LimitReached("stack_questions_max", 4),
        GetGoodput=TimeoutError("too slow"),
        GetStepTimes=KeyError("what an agent said"),
    )
    evidence = gathered(reader)
    assert evidence.parts.keys() | evidence.notes.keys() == PARTS
    assert evidence.parts.keys() == PARTS - {"stacks", "goodput", "steps", "report", "hang"}
    assert "stack_questions_max" in evidence.notes["stacks"][0]
    assert evidence.notes["goodput"] == ["too slow"]
    assert evidence.notes["steps"] == ["KeyError: 'what an agent said'"]
    # What follows is about the same run of this id, should it be used again meanwhile.
    generations = {values["generation"] for method, values in reader.asked[1:]}
    assert generations == {3}


def test_a_run_that_is_unknown_has_no_evidence() -> None:
    with pytest.raises(UnknownRun):
        gathered(Reader(GetOverview=UnknownRun("mt5", "")))


def test_parts_are_left_out_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WITHIN_S", 0.0)
    reader = Reader(GetOverview=a_run())
    evidence = gathered(reader)
    assert evidence.parts == {}
    assert {note for notes in evidence.notes.values() for note in notes} == {"not read within 0 s"}
    assert evidence.notes.keys() == PARTS
    assert [method for method, _ in reader.asked] == ["GetOverview"]


def test_output_is_read_of_some_ranks_and_bytes() -> None:
    overview = a_run(world_size=1000)
    slow = pb.Agent(name="gpu7", local_world_size=1, seat=pb.Seat(rank_first=700))
    slow.workers.add(local_rank=0)
    overview.agents.append(slow)
    place = session_pb2.LogCursor(rank=700, stream=session_pb2.LOG_STREAM_STDERR)
    big = "x" * (LOG_BYTES_MAX // 2)
    piece = session_pb2.LogPiece(next=place, text=f"{big}\n")
    answers = [pb.WatchLogsResponse(pieces=[piece], name="gpu7") for _ in range(3)]
    reader = Reader(GetOverview=overview, WatchLogs=iter(answers))
    evidence = gathered(reader)
    ((_, asked),) = [each for each in reader.asked if each[0] == "WatchLogs"]
    assert asked["ranks"] == [700, *range(LOG_RANKS_MAX - 1)]
    assert evidence.parts["logs"] == {"rank-700-stderr": [big]}
    left_out, cut, silent = evidence.notes["logs"]
    assert silent == f"ranks 0-{LOG_RANKS_MAX - 2}: no lines came"
    assert left_out.endswith(": 63-699,701-999")
    assert cut == f"more than {LOG_BYTES_MAX} bytes; the rest is left out"


def test_ranks_without_an_answer_for_stacks_are_named() -> None:
    answer = pb.GetStacksResponse(name="a", host="a")
    answer.workers.add(rank=0, stacks="Thread 0x1:\n")
    answer.workers.add(rank=1, problem="it is stopped")
    evidence = gathered(Reader(GetOverview=a_run(world_size=4), GetStacks=[answer]))
    assert [worker.rank for worker in evidence.parts["stacks"]] == [0, 1]
    assert evidence.notes["stacks"] == [
        "ranks 1 gave no stacks; stacks.txt says why",
        "ranks 2-3 are left out: too large",
    ]
