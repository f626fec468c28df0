"""What is seen of real processes that hang."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.model.hang import HangEvidence
from drumbeat.agent.watchdog.board_reader import Board
from drumbeat.agent.watchdog.stacks import STACKS_BYTES_MAX, StackSource, take_evidence
from tests.support.processes import DEADLINE_S
from tests.support.waiting import wait_until
from worker_sdk import context

NUMBER = signal.SIGRTMAX - 1
TIMEOUT_S = 5.0

PROGRAM = """
import faulthandler, os, signal, sys, threading, time
stacks = os.open(sys.argv[1] + "/stacks", os.O_WRONLY | os.O_NONBLOCK)
faulthandler.register(%d, file=stacks, all_threads=True, chain=False)
is_there = threading.Event()
def in_the_background():
    is_there.set()
    time.sleep(1000)
threading.Thread(target=in_the_background, daemon=True).start()
is_there.wait()
def all_reduce():
    print("up", flush=True); %s
all_reduce()
"""
SLEEP = "time.sleep(1000)"
HOLD_THE_LOCK = "import re; re.match('(a+)+$', 'a' * 40 + 'b')"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path, WorkerKey(0, 0), beat_interval_s=1.0)
    yield made
    made.close()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(processes: list[subprocess.Popen[str]], *argv: str) -> int:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process.pid


def start_python(processes: list[subprocess.Popen[str]], board: Board, line: str = SLEEP) -> int:
    return start(processes, sys.executable, "-c", PROGRAM % (NUMBER, line), str(board.directory))


def wait_for(pid: int, what: int) -> None:
    """Return once a child has stopped or ended."""
    # What has ended is left to be reaped by the test.
    os.waitid(os.P_PID, pid, what | (os.WNOWAIT if what == os.WEXITED else 0))


async def evidence_of(
    board: Board,
    pid: int,
    *,
    timeout_s: float = TIMEOUT_S,
    may_signal: bool = True,
    starved_s: float = 0.0,
    **more: int,
) -> HangEvidence:
    """Return what is seen of a process that gives its stacks only on a signal."""
    given: dict[str, Any] = {"owner_pid": pid, "stack_signal": int(NUMBER)} | more
    source = StackSource(stacks_fd=board.stacks_fd, **given)
    return await take_evidence(pid, source, timeout_s, may_signal=may_signal, starved_s=starved_s)


@pytest.mark.parametrize("line", [SLEEP, HOLD_THE_LOCK])
async def test_the_stacks_of_all_threads_are_taken(
    board: Board, processes: list[subprocess.Popen[str]], line: str
) -> None:
    pid = start_python(processes, board, line)
    evidence = await evidence_of(board, pid)
    assert "in all_reduce" in evidence.stacks
    assert "in in_the_background" in evidence.stacks
    # The main thread, whatever else there is.
    assert evidence.stacks.index("in all_reduce") < evidence.stacks.index("in in_the_background")
    assert evidence.notes.startswith(f"process {pid}: ")
    assert "2 threads" in evidence.notes
    assert (evidence.is_alive, evidence.is_traced, evidence.is_stopped) == (True, False, False)
    assert psutil.pid_exists(pid)


@pytest.mark.parametrize("may_signal", [False, True])
async def test_a_stopped_process_is_neither_continued_nor_asked(
    board: Board,
    processes: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    may_signal: bool,
) -> None:
    pid = start_with_sdk(processes, board, monkeypatch, handler="loud")
    os.kill(pid, signal.SIGSTOP)
    wait_for(pid, os.WSTOPPED)
    before = runs_of(pid)
    evidence = await asked(board, pid, may_signal=may_signal)
    assert (evidence.stacks, evidence.is_stopped) == ("", True)
    assert ": stopped by SIGSTOP or a similar signal" in evidence.notes
    assert "no stacks: a process that is stopped or traced is not asked" in evidence.notes
    assert runs_of(pid) == before, "it ran"
    assert os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG) is None  # noqa: ASYNC222
    os.kill(pid, signal.SIGCONT)
    assert select.select([board.stacks_fd], [], [], 0.1)[0] == [], "it was asked all the same"


def are_asleep(pid: int) -> bool:
    """Whether all threads of a process wait."""
    return all(
        ") S " in (task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()
    )


async def test_a_process_that_gives_stacks_only_upon_a_signal_is_not_sent_one_unasked(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    pid = start_python(processes, board)
    await wait_until(partial(are_asleep, pid), DEADLINE_S)
    before = runs_of(pid)
    evidence = await evidence_of(board, pid, may_signal=False)
    assert evidence.stacks == ""
    assert "no stacks: it gives its stacks only on a signal" in evidence.notes
    assert runs_of(pid) == before


HOLD_THE_LOCK_ASLEEP = """
import ctypes
class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
print("slept", ctypes.PyDLL(None).nanosleep(ctypes.byref(Time(%d, 500_000_000)), None), flush=True)
"""


@pytest.mark.slow
async def test_a_call_that_sleeps_with_the_lock_is_not_interrupted_by_a_question(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "exec(%r, {})" % (HOLD_THE_LOCK_ASLEEP % 2)
    pid = start_with_sdk(processes, board, monkeypatch, line=line, handler="loud")
    await wait_until(lambda: "nanosleep" in waits_in(pid), DEADLINE_S)
    before = runs_of(pid)
    evidence = await asked(board, pid, timeout_s=0.2)
    assert evidence.stacks == ""
    assert "native code may hold the interpreter's lock" in evidence.notes
    assert runs_of(pid)[str(pid)] == before[str(pid)], "the sleeping thread ran"
    assert processes[0].stdout is not None
    assert processes[0].stdout.readline() == "slept 0\n", "-1: interrupted"
    assert select.select([board.stacks_fd], [], [], 0.1)[0] == [], "the question was not taken back"


async def test_a_call_that_sleeps_with_the_lock_is_seen_with_a_signal_that_interrupts_it(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "exec(%r, {})" % (HOLD_THE_LOCK_ASLEEP % 600)
    pid = start_with_sdk(processes, board, monkeypatch, line=line, handler="loud")
    await wait_until(lambda: "nanosleep" in waits_in(pid), DEADLINE_S)
    evidence = await asked(board, pid, timeout_s=1.0, may_signal=True)
    assert "in all_reduce" in evidence.stacks
    assert processes[0].stdout is not None
    assert processes[0].stdout.readline() == "slept -1\n"


async def test_the_threads_of_one_whose_first_thread_has_ended_are_asked(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "import ctypes; ctypes.CDLL(None).syscall(60, 0)"  # exit, of this thread alone
    pid = start_with_sdk(processes, board, monkeypatch, line=line)
    await wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, DEADLINE_S)
    evidence = await asked(board, pid)
    assert "in <lambda>" in evidence.stacks
    assert evidence.is_alive
    os.kill(pid, signal.SIGSTOP)
    await wait_until(lambda: "T (stopped)" in states_of(pid), DEADLINE_S)
    evidence = await asked(board, pid)
    assert (evidence.stacks, evidence.is_stopped) == ("", True)


async def test_a_forked_child_of_a_worker_takes_no_question_of_it(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "__import__('os').fork() or time.sleep(1000); time.sleep(1000)"
    pid = start_with_sdk(processes, board, monkeypatch, line=line)
    await wait_until(lambda: len(psutil.Process(pid).children()) == 1, DEADLINE_S)
    (child,) = psutil.Process(pid).children()
    await wait_until(lambda: "nanosleep" in waits_in(child.pid), DEADLINE_S)
    names = {path.name for path in opened_by(child.pid)}
    assert not names & {"ask", "stacks", "kick", "board"}
    for _ in range(20):
        assert "in all_reduce" in (await asked(board, pid)).stacks
    os.kill(child.pid, signal.SIGKILL)


def runs_of(pid: int) -> dict[str, tuple[str, ...]]:
    """Return how often each thread of a process was on and off a processor, by its number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[task.name] = tuple(line for line in lines if "ctxt_switches" in line)
    return found


def opened_by(pid: int) -> list[Path]:
    return [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]


def states_of(pid: int) -> str:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return "".join((task / "status").read_text() for task in tasks)


def waits_in(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


async def test_a_worker_behind_a_shell_is_asked_itself(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    script = '"$0" -c "$1" "$2" & wait'
    argv = ("sh", "-c", script, sys.executable, PROGRAM % (NUMBER, SLEEP), str(board.directory))
    shell = start(processes, *argv)
    [child] = psutil.Process(shell).children()
    evidence = await evidence_of(board, shell, owner_pid=child.pid)
    assert "in all_reduce" in evidence.stacks
    assert f"process {child.pid}: " in evidence.notes


async def test_a_process_that_is_not_the_workers_gets_no_signal(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    worker, other = start_python(processes, board), start_python(processes, board)
    evidence = await evidence_of(board, worker, owner_pid=other)
    assert evidence.stacks == ""
    assert f"process {other}, which the worker's board names, is not below it" in evidence.notes
    assert evidence.is_alive


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM, NUMBER - 1, 2**40])
async def test_no_signal_is_sent_that_might_end_it(
    board: Board, processes: list[subprocess.Popen[str]], number: int
) -> None:
    pid = start_python(processes, board)
    evidence = await evidence_of(board, pid, stack_signal=int(number))
    assert evidence.stacks == ""
    assert "no stacks: " in evidence.notes
    assert evidence.is_alive
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_stacks_are_not_waited_for_longer_than_the_timeout(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    silent = f"import signal; signal.signal({NUMBER}, lambda *_: None); print('up', flush=True)"
    pid = start(processes, sys.executable, "-c", f"{silent}; import time; time.sleep(1000)")
    evidence = await evidence_of(board, pid, timeout_s=0.05)
    assert evidence.stacks == ""
    assert evidence.notes.endswith("no stacks: none came within 0.05 s of a signal")


async def test_a_process_that_waits_for_a_processor_gets_longer_to_answer_a_signal(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    pid = start_python(processes, board, HOLD_THE_LOCK)
    evidence = await evidence_of(board, pid, timeout_s=0.0, starved_s=TIMEOUT_S)
    assert "in all_reduce" in evidence.stacks


async def test_a_worker_that_is_gone_is_said_to_be(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    pid = start_python(processes, board)
    processes[0].kill()
    wait_for(pid, os.WEXITED)
    evidence = await evidence_of(board, pid, timeout_s=0.1)
    assert not evidence.is_alive


async def test_old_stacks_are_dropped_and_long_ones_cut(
    board: Board, processes: list[subprocess.Popen[str]]
) -> None:
    program = (
        "import os, signal, sys\n"
        "stacks = os.open(sys.argv[1] + '/stacks', os.O_WRONLY)\n"
        "def flood(*_):\n"
        # As the fault handler's is meanwhile: so it shows that more is to come.
        f"    signal.pthread_sigmask(signal.SIG_BLOCK, {{{NUMBER}}})\n"
        "    for _ in range(100): os.write(stacks, b'x' * 1023 + b'\\n')\n"
        f"    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{{NUMBER}}})\n"
        f"signal.signal({NUMBER}, flood)\n"
        "os.write(stacks, b'old')\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    pid = start(processes, sys.executable, "-c", program, str(board.directory))
    evidence = await evidence_of(board, pid)
    assert evidence.stacks.startswith("(cut)\nxxx")
    assert len(evidence.stacks) <= STACKS_BYTES_MAX + 10


async def test_eight_workers_are_seen_at_once(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    boards = [Board(tmp_path, WorkerKey(0, rank), beat_interval_s=1.0) for rank in range(8)]
    try:
        pids = [start_python(processes, board) for board in boards]
        taken = await asyncio.gather(
            *(evidence_of(board, pid) for board, pid in zip(boards, pids, strict=True))
        )
        assert all("in all_reduce" in evidence.stacks for evidence in taken)
    finally:
        for board in boards:
            board.close()


# With the runtime of the SDK, and as many threads as call each other all the time.
BUSY = """
import signal, sys, threading, time, worker_sdk
worker_sdk.heartbeat()
if sys.argv[1] == "silent":  # what the fault handler would write upon a signal
    signal.signal(worker_sdk.runtime.STATE.stack_signal, lambda *_: None)
def deep(calls):
    if calls:
        deep(calls - 1)
for _ in range(3):
    threading.Thread(target=lambda: [deep(30) for _ in iter(int, 1)], daemon=True).start()
def all_reduce():
    print("up", flush=True); %s
all_reduce()
"""


def start_with_sdk(
    processes: list[subprocess.Popen[str]],
    board: Board,
    monkeypatch: pytest.MonkeyPatch,
    **how: str,
) -> int:
    monkeypatch.setenv(context.WORKER_DIR, str(board.directory))
    line, handler = how.get("line", SLEEP), how.get("handler", "silent")
    pid = start(processes, sys.executable, "-c", BUSY % line, handler)
    seen = board.read()
    assert seen is not None
    assert seen.answers
    return pid


async def asked(
    board: Board, pid: int, *, timeout_s: float = TIMEOUT_S, may_signal: bool = False
) -> HangEvidence:
    seen = board.read()
    assert seen is not None
    source = StackSource(
        stacks_fd=board.stacks_fd,
        ask_fd=board.ask_fd,
        owner_pid=seen.owner_pid,
        stack_signal=seen.stack_signal,
    )
    return await take_evidence(pid, source, timeout_s, may_signal=may_signal)


async def test_a_worker_whose_threads_run_is_asked_and_not_signalled(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault handler crashes now and then on the frames of threads that run."""
    pid = start_with_sdk(processes, board, monkeypatch)
    for _ in range(20):
        evidence = await asked(board, pid)
        assert "in all_reduce" in evidence.stacks.partition("\n\n")[0], "the main thread first"
        assert evidence.stacks.count("in <lambda>") == 3, "those that run"
        assert "in _beat" not in evidence.stacks, "the thread that answers"


async def test_one_that_holds_the_interpreters_lock_is_signalled(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = "threading.Event().wait(0.1); " + HOLD_THE_LOCK
    pid = start_with_sdk(processes, board, monkeypatch, line=holding, handler="loud")
    await asyncio.sleep(0)
    evidence = await asked(board, pid, timeout_s=1.0, may_signal=True)
    assert "in all_reduce" in evidence.stacks


async def test_an_answer_that_no_agent_reads_holds_nothing_up(
    board: Board, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start_with_sdk(processes, board, monkeypatch)
    for _ in range(50):  # more than the pipe takes
        os.write(board.ask_fd, b"\n")
        await asyncio.sleep(0.002)
    before = board.read()
    assert before is not None
    await wait_until(lambda: board.read() != before, DEADLINE_S)
    assert "in all_reduce" in (await asked(board, pid)).stacks
