"""The messages between agent and supervisor: what is written is read, nonsense is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.workers.supervisor.protocol import (
    LINE_BYTES_MAX,
    KillWorkers,
    LineSplitter,
    ProtocolError,
    SignalFailed,
    SignalWorker,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
    decode_command,
    decode_event,
    encode,
)

if TYPE_CHECKING:
    from agent.workers.supervisor.protocol import Command, SupervisorEvent

UNDECODABLE = "\udcff\udcfe"
START = StartWorkers(
    round_id=1,
    argv=("python", "train.py", "--name=a\nb"),
    env={"A": "é", "B": ""},
    workers=(WorkerStart(local_rank=0, env={"RANK": "0"}), WorkerStart(local_rank=1, env={})),
)
COMMANDS: list[Command] = [
    START,
    StartWorkers(
        round_id=1,
        argv=(UNDECODABLE,),
        env={"A": UNDECODABLE},
        workers=(WorkerStart(local_rank=0, env={UNDECODABLE: "x"}),),
    ),
    StopWorkers(round_id=1, signal=15, timeout_s=0.5),
    KillWorkers(),
    SignalWorkers(round_id=1, signal=10),
    SignalWorker(round_id=1, local_rank=0, signal=9, is_for_group=True),
]
EVENTS: list[SupervisorEvent] = [
    WorkersStarted(round_id=1, pids={0: 10, 1: 11}),
    WorkerStartFailed(round_id=1, local_rank=1, errno=2, message=f"cannot start {UNDECODABLE}"),
    WorkerExited(round_id=1, local_rank=1, pid=11, exit_code=-9, is_stopped=True, ended_at=1.5),
    WorkersStopped(round_id=1, stuck_pids=(10,)),
    SignalFailed(round_id=1, local_rank=1, reason="Operation not permitted"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_survive_the_wire(command: Command) -> None:
    line = encode(command)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_command(line[:-1]) == command


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_the_wire(event: SupervisorEvent) -> None:
    line = encode(event)
    assert line.count(b"\n") == 1
    assert decode_event(line[:-1]) == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"{}",
        b'{"type":"WorkersStopped","round_id":1}',
        b'{"type":"StopWorkers","round_id":"1","signal":15,"timeout_s":1}',
        b'{"type":"StopWorkers","round_id":1,"signal":99,"timeout_s":1}',
        b'{"type":"StopWorkers","round_id":1,"signal":15,"timeout_s":-1}',
        b'{"type":"SignalWorkers","round_id":1,"signal":0}',
        b'{"type":"SignalWorker","round_id":1,"local_rank":0,"signal":0,"is_for_group":true}',
        b'{"type":"StartWorkers","round_id":1,"argv":["\\udcff"],"env":{},"workers":[]}',
    ],
)
def test_nonsense_from_the_agent_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a command of an agent"):
        decode_command(line)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"type":"KillWorkers"}', b'{"a":"\\udcff"}'])
def test_nonsense_from_the_supervisor_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an event of a supervisor"):
        decode_event(line)


def test_impossible_commands_cannot_be_made() -> None:
    worker = WorkerStart(local_rank=0, env={})
    with pytest.raises(ValueError, match="argv"):
        StartWorkers(round_id=0, argv=(), env={}, workers=(worker,))
    with pytest.raises(ValueError, match="workers: is empty"):
        StartWorkers(round_id=0, argv=("x",), env={}, workers=())
    with pytest.raises(ValueError, match="not distinct"):
        StartWorkers(round_id=0, argv=("x",), env={}, workers=(worker, worker))
    with pytest.raises(ValueError, match="timeout_s: inf"):
        StopWorkers(round_id=0, signal=15, timeout_s=float("inf"))
    with pytest.raises(ValueError, match="signal: 0"):
        SignalWorkers(round_id=0, signal=0)


def test_message_beyond_the_limit_is_not_sent() -> None:
    event = WorkerStartFailed(round_id=0, local_rank=0, errno=0, message="")
    room = LINE_BYTES_MAX - len(encode(event))

    def of_length(length: int) -> WorkerStartFailed:
        return WorkerStartFailed(round_id=0, local_rank=0, errno=0, message="x" * length)

    assert len(encode(of_length(room))) == LINE_BYTES_MAX
    with pytest.raises(ProtocolError, match=f"WorkerStartFailed takes {LINE_BYTES_MAX + 1} bytes"):
        encode(of_length(room + 1))


def test_lines_are_cut_wherever_the_pieces_begin_and_end() -> None:
    stream = b"one\n\ntwo\nthree\n"
    for size in range(1, len(stream) + 1):
        splitter = LineSplitter(line_bytes_max=6)
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        lines = [line for piece in pieces for line in splitter.feed(piece)]
        assert lines == [b"one", b"", b"two", b"three"]


@pytest.mark.parametrize("begin", [b"", b"123", b"123\n"])
def test_line_beyond_the_limit_is_refused_before_it_is_complete(begin: bytes) -> None:
    splitter = LineSplitter(line_bytes_max=6)
    splitter.feed(begin)
    with pytest.raises(ProtocolError, match="limit of 6"):
        splitter.feed(b"123456")


def test_complete_line_beyond_the_limit_is_refused() -> None:
    splitter = LineSplitter(line_bytes_max=6)
    assert splitter.feed(b"12345\n") == [b"12345"]
    with pytest.raises(ProtocolError, match="limit of 6"):
        splitter.feed(b"123456\n")
