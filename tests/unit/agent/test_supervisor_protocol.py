"""The messages between agent and supervisor: what is written is read, nonsense is refused."""

import pytest

from drumbeat.agent.model.messages import (
    Command,
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    SupervisorEvent,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
    WorkersUnkilled,
)
from drumbeat.agent.workers.supervisor.protocol import (
    LINE_BYTES_MAX,
    Decoder,
    ProtocolError,
    encode,
)

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
    StopWorkers(round_id=1, signum=15, timeout_s=0.5),
    KillWorkers(),
    SignalWorkers(round_id=1, signum=10),
    SignalWorkers(round_id=1, local_rank=0, signum=9, is_for_group=True),
]
EVENTS: list[SupervisorEvent] = [
    WorkersStarted(round_id=1, pids={0: 10, 1: 11}),
    WorkerStartFailed(round_id=1, local_rank=1, errno=2, message=f"cannot start {UNDECODABLE}"),
    WorkerExited(round_id=1, local_rank=1, pid=11, exit_code=-9, is_stopped=True, ended_at=1.5),
    WorkersStopped(round_id=1, stuck_pids=(10,)),
    WorkersUnkilled(round_id=1, pids=(10,), after_s=15.0),
]


@pytest.mark.parametrize("message", [*COMMANDS, *EVENTS])
def test_messages_survive_the_wire(message: Command | SupervisorEvent) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    kinds = Command if message in COMMANDS else SupervisorEvent
    assert Decoder[Command | SupervisorEvent](kinds).feed(line) == [message]


def test_messages_are_read_wherever_the_pieces_begin_and_end() -> None:
    stream = b"".join(map(encode, COMMANDS))
    for size in (1, 2, 3, 7, 100, len(stream)):
        decoder: Decoder[Command] = Decoder(Command)
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [each for piece in pieces for each in decoder.feed(piece)] == COMMANDS


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"{}",
        b'["WorkersStopped",{"round_id":1}]',
        b'["StopWorkers",{"round_id":"1","signum":15,"timeout_s":1}]',
        b'["StopWorkers",{"round_id":1,"signum":99,"timeout_s":1}]',
        b'["StopWorkers",{"round_id":1,"signum":15,"timeout_s":-1}]',
        b'["SignalWorkers",{"round_id":1,"signum":0}]',
        b'["StartWorkers",{"round_id":1,"argv":["\\udcff"],"env":{},"workers":[]}]',
    ],
)
def test_nonsense_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        Decoder(Command).feed(line + b"\n")


def test_impossible_commands_cannot_be_made() -> None:
    worker = WorkerStart(local_rank=0, env={})
    with pytest.raises(ValueError, match="argv"):
        StartWorkers(round_id=0, argv=(), env={}, workers=(worker,))
    with pytest.raises(ValueError, match="workers: is empty"):
        StartWorkers(round_id=0, argv=("x",), env={}, workers=())
    with pytest.raises(ValueError, match="not distinct"):
        StartWorkers(round_id=0, argv=("x",), env={}, workers=(worker, worker))
    with pytest.raises(ValueError, match="timeout_s: inf"):
        StopWorkers(round_id=0, signum=15, timeout_s=float("inf"))
    with pytest.raises(ValueError, match="signum: 0"):
        SignalWorkers(round_id=0, signum=0)


def test_message_beyond_the_limit_is_not_sent() -> None:
    event = WorkerStartFailed(round_id=0, local_rank=0, errno=0, message="")
    room = LINE_BYTES_MAX - len(encode(event))

    def of_length(length: int) -> WorkerStartFailed:
        return WorkerStartFailed(round_id=0, local_rank=0, errno=0, message="x" * length)

    assert len(encode(of_length(room))) == LINE_BYTES_MAX
    with pytest.raises(ProtocolError, match=f"WorkerStartFailed takes {LINE_BYTES_MAX + 1} bytes"):
        encode(of_length(room + 1))


def test_line_beyond_the_limit_is_refused_before_it_is_complete() -> None:
    decoder = Decoder[Command](Command)
    decoder.feed(b"x" * LINE_BYTES_MAX)
    with pytest.raises(ProtocolError, match="not a message"):
        decoder.feed(b"x")
