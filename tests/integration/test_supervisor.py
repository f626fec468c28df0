"""The supervisor and its client with real processes."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from drumbeat.agent.model.messages import (
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
    WorkerStartFailed,
)
from tests.support.supervision import (
    Mailbox,
    running,
    start,
)


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterable[Mailbox]:
    with Mailbox(tmp_path) as box:
        yield box


async def test_workers_report_their_pids_exit_codes_and_signals() -> None:
    script = 'if [ "$LOCAL_RANK" = 2 ]; then kill -SEGV $$; fi; exit $LOCAL_RANK'
    before = time.monotonic()
    async with running() as harness:
        harness.start("sh", "-c", script, count=3)
        exits = await harness.expect(WorkerExited, 3)
        [started] = harness.of(WorkersStarted)
        assert isinstance(harness.events[0], WorkersStarted)
        assert {e.local_rank: e.exit_code for e in exits} == {0: 0, 1: 1, 2: -signal.SIGSEGV}
        assert {e.local_rank: e.pid for e in exits} == started.pids
        assert not any(e.is_stopped for e in exits)
        assert all(before <= e.ended_at <= time.monotonic() for e in exits)


async def test_a_stop_lets_workers_end_in_their_own_way(mailbox: Mailbox) -> None:
    script = f"trap 'exit 3' TERM; echo up > {mailbox.path}; sleep 1000 & wait"
    async with running() as harness:
        harness.start("sh", "-c", script, count=2)
        await mailbox.read(2)
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=60))
        assert await harness.expect(WorkersStopped) == [WorkersStopped(round_id=0)]
        exits = harness.of(WorkerExited)
        assert [(e.exit_code, e.is_stopped) for e in exits] == [(3, True)] * 2
        assert isinstance(harness.events[-1], WorkersStopped)


async def test_a_worker_that_ignores_the_signal_is_killed_after_the_timeout(
    mailbox: Mailbox,
) -> None:
    script = f"trap '' TERM; echo up > {mailbox.path}; exec sleep 1000"
    async with running() as harness:
        harness.start("sh", "-c", script)
        await mailbox.read(1)
        before = time.monotonic()
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=0.2))
        await harness.expect(WorkersStopped)
        [exited] = harness.of(WorkerExited)
        assert (exited.exit_code, exited.is_stopped) == (-signal.SIGKILL, True)
        assert exited.ended_at >= before + 0.2


async def test_a_stop_may_have_endless_patience_and_be_shortened(mailbox: Mailbox) -> None:
    script = (
        f"trap 'echo got > {mailbox.path}' TERM; sleep 1000 & echo up > {mailbox.path}; "
        "while :; do wait; sleep 1000 & done"
    )
    async with running() as harness:
        harness.start("sh", "-c", script)
        await mailbox.read(1)
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=1e12))
        assert await mailbox.read(1) == ["got"]
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=0))
        await harness.expect(WorkersStopped)
        assert [e.exit_code for e in harness.of(WorkerExited)] == [-signal.SIGKILL]
        assert harness.deaths == []


async def test_daemons_of_workers_die_on_stop(mailbox: Mailbox) -> None:
    """Goal: no descendant escapes. Method: one in its own session, one forked twice."""
    sleeper = f"'echo $$ > {mailbox.path}; exec sleep 1000'"
    script = f"setsid sh -c {sleeper} & (setsid sh -c {sleeper} &); exec sh -c {sleeper}"
    async with running() as harness:
        harness.start("sh", "-c", script)
        pids = [int(line) for line in await mailbox.read(3)]
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=60))
        await harness.expect(WorkersStopped)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_leftovers_of_successful_workers_live_until_the_stop(mailbox: Mailbox) -> None:
    script = f"setsid sh -c 'echo $$ > {mailbox.path}; exec sleep 1000' & exit 0"
    async with running() as harness:
        harness.start("sh", "-c", script)
        [leftover] = [int(line) for line in await mailbox.read(1)]
        [exited] = await harness.expect(WorkerExited)
        assert (exited.exit_code, exited.is_stopped) == (0, False)
        assert psutil.Process(leftover).status() != psutil.STATUS_ZOMBIE
        assert psutil.Process(leftover).ppid() == harness.pid
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=60))
        await harness.expect(WorkersStopped)
        assert not psutil.pid_exists(leftover)


async def test_a_worker_that_forks_while_it_is_killed_leaves_nothing(mailbox: Mailbox) -> None:
    script = (
        "i=0; while [ $i -lt 150 ]; do setsid sleep 1000 & i=$((i+1)); "
        f"[ $i -eq 10 ] && echo up > {mailbox.path}; done; wait"
    )
    async with running() as harness:
        harness.start("sh", "-c", script)
        await mailbox.read(1)
        harness.client.send(KillWorkers())
        await harness.expect(WorkersStopped)
        assert psutil.Process(harness.pid).children(recursive=True) == []


async def test_kill_ends_everything_at_once(mailbox: Mailbox) -> None:
    script = f"trap '' TERM; echo up > {mailbox.path}; sleep 1000 & wait"
    async with running() as harness:
        harness.start("sh", "-c", script, count=2, round_id=5)
        await mailbox.read(2)
        harness.client.send(KillWorkers())
        assert await harness.expect(WorkersStopped) == [WorkersStopped(round_id=5)]
        exits = harness.of(WorkerExited)
        assert [(e.exit_code, e.is_stopped) for e in exits] == [(-signal.SIGKILL, True)] * 2


async def test_a_forwarded_signal_reaches_only_the_worker_itself(mailbox: Mailbox) -> None:
    child = "trap 'exit 4' USR1; echo up > $BOX; while :; do sleep 1000 & wait $!; done"
    script = f'trap "echo got > {mailbox.path}" USR1; sh -c "$CHILD" & wait; wait; exit 9'
    async with running() as harness:
        harness.start("sh", "-c", script, env={"CHILD": child, "BOX": str(mailbox.path)})
        assert await mailbox.read(1) == ["up"]
        harness.client.send(SignalWorkers(round_id=0, signum=signal.SIGUSR1))
        assert await mailbox.read(1) == ["got"]
        assert harness.of(WorkerExited) == []
        assert len(psutil.Process(harness.pid).children()) == 1
        assert len(psutil.Process(harness.pid).children()[0].children()) == 1


async def test_a_signal_for_one_worker_leaves_the_others_alone(mailbox: Mailbox) -> None:
    script = f'trap "exit 7" USR1; echo up > {mailbox.path}; sleep 1000 & wait'
    async with running() as harness:
        harness.start("sh", "-c", script, count=2)
        await mailbox.read(2)
        harness.client.send(
            SignalWorkers(round_id=0, local_rank=1, signum=signal.SIGUSR1, is_for_group=False)
        )
        [exited] = await harness.expect(WorkerExited)
        assert (exited.local_rank, exited.exit_code, exited.is_stopped) == (1, 7, False)


async def test_a_signal_for_a_group_reaches_what_hides_behind_a_shell(mailbox: Mailbox) -> None:
    child = f"trap 'echo got > {mailbox.path}; exit 0' TERM; echo up > {mailbox.path}; "
    child += "sleep 1000 & wait"
    script = f"trap 'wait; exit 5' TERM; sh -c \"{child}\" & wait; wait; exit 6"
    async with running() as harness:
        harness.start("sh", "-c", script)
        assert await mailbox.read(1) == ["up"]
        harness.client.send(
            SignalWorkers(round_id=0, local_rank=0, signum=signal.SIGTERM, is_for_group=True)
        )
        assert await mailbox.read(1) == ["got"]
        [exited] = await harness.expect(WorkerExited)
        assert (exited.exit_code, exited.is_stopped) == (5, False)


async def test_rounds_follow_each_other_and_late_stops_are_answered() -> None:
    async with running() as harness:
        harness.client.send(KillWorkers())
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=1))
        await harness.expect(WorkersStopped, 2)
        for round_id in (1, 2):
            harness.start("sleep", "1000", round_id=round_id)
            await harness.expect(WorkersStarted, round_id)
            harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=1))
            await harness.expect(WorkersStopped, 2 * round_id + 1)
            assert len(harness.of(WorkerExited)) == round_id - 1
            harness.client.send(StopWorkers(round_id=round_id, signum=15, timeout_s=60))
            await harness.expect(WorkersStopped, 2 * round_id + 2)
        stops = [event.round_id for event in harness.of(WorkersStopped)]
        assert stops == [-1, 0, 0, 1, 0, 2]
        assert [e.exit_code for e in harness.of(WorkerExited)] == [-signal.SIGTERM] * 2


def _file(folder: Path, name: str, text: str, mode: int) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make", "number", "sentence"),
    [
        (lambda d: f"{d}/absent", errno.ENOENT, "absent: there is no such file"),
        (lambda _: "no-such-program", errno.ENOENT, "no-such-program: there is no such pro"),
        (lambda d: _file(d, "plain", "#!/bin/sh\n", 0o600), errno.EACCES, "it is not executable"),
        (
            lambda d: _file(d, "bad", "#!/absent/interpreter -x\n", 0o700),
            errno.ENOENT,
            "its interpreter '/absent/interpreter' does not exist",
        ),
        (lambda d: _file(d, "odd", "hello\n", 0o700), errno.ENOEXEC, "neither a program nor"),
        (str, errno.EACCES, "it is a directory"),
    ],
)
async def test_a_program_that_cannot_run_is_named(
    tmp_path: Path, make: Callable[[Path], str], number: int, sentence: str
) -> None:
    program = make(tmp_path)
    async with running() as harness:
        harness.start(program, count=2)
        [failed] = await harness.expect(WorkerStartFailed)
        assert (failed.local_rank, failed.errno) == (0, number)
        assert program in failed.message
        assert sentence in failed.message
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGTERM, timeout_s=60))
        assert await harness.expect(WorkersStopped) == [WorkersStopped(round_id=0)]
        assert [type(event) for event in harness.events] == [WorkerStartFailed, WorkersStopped]


async def test_a_pipe_without_a_reader_is_refused_as_output_and_nothing_waits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    worker = WorkerStart(local_rank=0, env={}, stderr=str(path))
    command = StartWorkers(round_id=0, argv=("true",), env=dict(os.environ), workers=(worker,))
    async with running() as harness:
        harness.client.send(command)
        [failed] = await harness.expect(WorkerStartFailed)
        assert failed.errno == errno.ENXIO
        assert failed.message == (
            f"cannot write the worker's output to {path}: it is a pipe without a reader"
        )


async def test_an_impossible_environment_is_refused_and_started_workers_can_be_stopped() -> None:
    command = StartWorkers(
        round_id=0,
        argv=("sleep", "1000"),
        env={"PATH": os.environ["PATH"]},
        workers=(
            WorkerStart(local_rank=0, env={}),
            WorkerStart(local_rank=1, env={"BIG": "x" * 200_000}),
        ),
    )
    async with running() as harness:
        harness.client.send(command)
        [failed] = await harness.expect(WorkerStartFailed)
        assert (failed.local_rank, failed.errno) == (1, errno.E2BIG)
        harness.client.send(KillWorkers())
        await harness.expect(WorkersStopped)
        assert [e.local_rank for e in harness.of(WorkerExited)] == [0]
        harness.start("true", round_id=1, env={"NUL": "a\0b"})
        failed = (await harness.expect(WorkerStartFailed, 2))[1]
        assert failed.errno == 0
        assert "null" in failed.message


async def test_sixty_four_workers() -> None:
    async with running() as harness:
        harness.start("sh", "-c", "exit $LOCAL_RANK", count=64)
        exits = await harness.expect(WorkerExited, 64)
        assert {e.local_rank: e.exit_code for e in exits} == {rank: rank for rank in range(64)}


async def test_a_large_environment_arrives_and_bytes_that_are_no_text_too(tmp_path: Path) -> None:
    env = {f"V{i}": "é" * 1000 for i in range(100)}
    odd = os.fsdecode(b"\xff\xfe")
    target = tmp_path / "odd"
    script = f'env > {target}.env; printf %s "$ODD" > {target}; env | grep -c "^V[0-9]*=éé"'
    async with running() as harness:
        harness.start("sh", "-c", script + " > /dev/null", env={**env, "ODD": odd})
        [exited] = await harness.expect(WorkerExited)
        assert exited.exit_code == 0
    assert target.read_bytes() == b"\xff\xfe"
    assert target.with_suffix(".env").read_bytes().count("é".encode() * 1000 + b"\n") == 100


async def test_workers_ignore_the_signals_that_they_are_to_ignore(mailbox: Mailbox) -> None:
    async with running() as harness:
        command = start("sh", "-c", f"kill -USR1 $$; echo alive > {mailbox.path}; kill -USR2 $$")
        harness.client.send(replace(command, ignored=(signal.SIGUSR1,)))
        assert await mailbox.read(1) == ["alive"]
        [exited] = await harness.expect(WorkerExited)
        assert exited.exit_code == -signal.SIGUSR2


async def test_workers_have_default_dispositions_their_own_session_and_no_descriptors(
    tmp_path: Path, mailbox: Mailbox
) -> None:
    target = tmp_path / "status"
    script = (
        f"grep ^Sig /proc/self/status > {target}; ls /proc/self/fd >> {target}; "
        f"echo up > {mailbox.path}; exec sleep 1000"
    )
    async with running() as harness:
        harness.start("sh", "-c", script)
        [started] = await harness.expect(WorkersStarted)
        await mailbox.read(1)
        pid = started.pids[0]
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert os.getsid(harness.pid) == harness.pid
        harness.start("true", round_id=0)  # A repeated start changes nothing.
        assert await harness.expect(WorkersStarted, 2) == [started] * 2
        harness.client.send(StopWorkers(round_id=0, signum=signal.SIGINT, timeout_s=60))
        await harness.expect(WorkersStopped)
        assert [e.exit_code for e in harness.of(WorkerExited)] == [-signal.SIGINT]
    *lines, zero, one, two, three = target.read_text().split("\n")[:-1]
    masks = dict(line.split(":\t") for line in lines)
    # The C library keeps two signals to itself; our parent may have ignored them.
    ours = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(masks["SigIgn"], 16) & ours == 0
    assert int(masks["SigBlk"], 16) & ours == 0
    assert [zero, one, two, three] == ["0", "1", "2", "3"], "more than the folder ls reads is open"
