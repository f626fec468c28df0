"""The SDK in processes of its own: who has the board, and what becomes of it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

import pytest

from tests.support.boards import BoardDirectory, read_all
from tests.support.waiting import MS, wait_until_sync
from worker_sdk import context
from worker_sdk.board import layout

WAIT_S = 20_000 * MS

HEAD = """
import logging, os, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
import worker_sdk
"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[BoardDirectory]:
    with BoardDirectory(tmp_path / "worker") as made:
        yield made


def start(code: str, directory: object = "") -> subprocess.Popen[str]:
    """Start a program under the agent of ``directory``, under none if it is empty."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DRUMBEAT_W")}
    if directory:
        env[context.WORKER_DIR] = str(directory)
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def run(code: str, directory: object = "") -> str:
    """Run such a program to its end, and return what it printed."""
    with start(code, directory) as process:
        printed, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, printed
    return printed


@pytest.fixture
def owner(board: BoardDirectory) -> Iterator[subprocess.Popen[str]]:
    """A process that has the board, with a timer open, until its input ends."""
    process = start("worker_sdk.acquire('open', 600); sys.stdin.read()", board.path)
    with process:
        try:
            wait_until_sync(board.names, WAIT_S)
            yield process
        finally:
            process.kill()


def test_importing_it_loads_next_to_nothing_and_claims_nothing(board: BoardDirectory) -> None:
    printed = run(
        """
        print([name for name in ("grpc", "google.protobuf", "mmap", "asyncio", "torch")
               if name in sys.modules])
        print(len(os.listdir("/proc/self/fd")))
        """,
        board.path,
    )
    assert printed.splitlines()[0] == "[]"
    assert board[layout.OWNER_PID] == 0


def test_the_first_call_claims_the_board_and_says_so(
    board: BoardDirectory, owner: subprocess.Popen[str]
) -> None:
    wait_until_sync(lambda: board[layout.OWNER_PID], WAIT_S)
    assert board[layout.OWNER_PID] == owner.pid
    assert board.kicks() >= 1
    assert 0 < board[layout.BEAT_AT] <= monotonic_ns()
    assert board[layout.STEP] == layout.NO_STEP
    assert board[layout.EXITING_AT] == 0


def test_after_the_first_call_a_name_is_a_plain_attribute() -> None:
    printed = run(
        "worker_sdk.heartbeat(); print('heartbeat' in vars(worker_sdk), 'grpc' in sys.modules)"
    )
    assert printed.splitlines()[-1] == "True False"


def test_without_an_agent_all_calls_do_nothing_and_one_line_is_logged() -> None:
    printed = run(
        """
        print([worker_sdk.acquire("a", 1), worker_sdk.acquire("a", 1, confirm=True)])
        worker_sdk.release("a")
        with worker_sdk.expires(1), worker_sdk.section("s"):
            worker_sdk.heartbeat(1)
        print("grpc" in sys.modules)
        """
    )
    assert printed.splitlines() == [
        "INFO no agent: timers, sections and heartbeats of this process are not watched",
        "[False, False]",
        "False",
    ]


def test_a_board_that_cannot_be_used_is_said_so_once(tmp_path: Path) -> None:
    code = "print([worker_sdk.acquire('a', 1), worker_sdk.acquire('a', 1)])"
    with (
        BoardDirectory(tmp_path / "later", version=layout.VERSION + 1) as later,
        BoardDirectory(tmp_path / "larger", size=layout.BOARD_BYTES + 8) as larger,
    ):
        for directory, why in [
            (later.path, "its board is of version 2, not 1"),
            (larger.path, "its board has another size"),
            (tmp_path / "gone", "No such file or directory"),
        ]:
            first, second = run(code, directory).splitlines()
            assert first.startswith("WARNING timers, sections and heartbeats are not watched:")
            assert why in first
            assert second == "[False, False]"
        assert later[layout.OWNER_PID] == larger[layout.OWNER_PID] == 0


def test_what_a_dead_owner_left_is_cleared(
    board: BoardDirectory, owner: subprocess.Popen[str]
) -> None:
    owner.kill()
    owner.wait()
    assert board.names() == ["open"]
    board[layout.HEARTBEATS] = board[layout.GAP_MAX] = 7
    board[layout.SECTIONS_USED] = 7
    run("with worker_sdk.section('mine'): pass", board.path)
    assert board.is_idle()
    assert list(board.sections()) == ["mine"]
    words = (layout.HEARTBEATS, layout.GAP_MAX)
    assert [board[word] for word in words] == [0, 0]


def test_a_second_process_of_the_worker_says_nothing(
    board: BoardDirectory, owner: subprocess.Popen[str]
) -> None:
    printed = run("print(worker_sdk.acquire('b', 1)); worker_sdk.heartbeat()", board.path)
    assert printed.splitlines() == [
        "INFO another process of this worker is watched, this one is not",
        "False",
    ]
    assert board.names() == ["open"]
    assert (board[layout.OWNER_PID], board[layout.HEARTBEATS]) == (owner.pid, 0)


def test_a_forked_child_says_nothing_and_closes_nothing(board: BoardDirectory) -> None:
    run(
        """
        worker_sdk.acquire("acquired", 60)
        with worker_sdk.expires(60, "block"), worker_sdk.section("section"):
            worker_sdk.heartbeat(1)
            child = os.fork()
            if not child:
                worker_sdk.release("acquired")
                print(worker_sdk.acquire("more", 1))
                worker_sdk.heartbeat(2)
            else:
                assert os.waitpid(child, 0)[1] == 0
                print("parent")
                worker_sdk.release("acquired")
                sys.stdout.flush()
                os._exit(0)
        """,
        board.path,
    )
    # The parent left without leaving its blocks; all else would be its child's doing.
    assert board.names() == ["section"]
    assert (board[layout.HEARTBEATS], board[layout.STEP]) == (1, 1)
    assert board[layout.EXITING_AT] == 0
    assert board.sections() == {}


def test_a_child_of_multiprocessing_never_claims(board: BoardDirectory, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        "import worker_sdk\n\ndef main(queue):\n    queue.put(worker_sdk.acquire('child', 60))\n"
    )
    printed = run(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import child, multiprocessing
        for method in ("spawn", "fork"):
            made = multiprocessing.get_context(method)
            queue = made.SimpleQueue()
            process = made.Process(target=child.main, args=(queue,))
            process.start()
            print(queue.get())
            process.join()
        """,
        board.path,
    )
    assert [line for line in printed.splitlines() if line in ("True", "False")] == ["False"] * 2
    assert board[layout.OWNER_PID] == 0
    assert board[layout.SLOTS_USED] == 0


def test_the_end_of_the_interpreter_is_told_before_it_waits_for_threads(
    board: BoardDirectory,
) -> None:
    code = """
        import threading
        worker_sdk.heartbeat()
        threading.Thread(target=sys.stdin.read).start()
        """
    with start(code, board.path) as process:
        wait_until_sync(lambda: board[layout.EXITING_AT], WAIT_S)
        assert process.poll() is None
        assert board[layout.HEARTBEAT_AT] <= board[layout.EXITING_AT] <= monotonic_ns()
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_signs_of_life_come_at_the_pace_the_agent_asks_for(
    board: BoardDirectory, owner: subprocess.Popen[str]
) -> None:
    assert owner.poll() is None
    board[layout.BEAT_INTERVAL] = 1  # less than is allowed
    seen = set()

    def has_beaten_often() -> bool:
        seen.add(board[layout.BEAT_AT])
        return len(seen) > 5

    wait_until_sync(has_beaten_often, WAIT_S)


def test_what_was_acquired_before_the_interpreter_is_blocked_is_seen_and_so_are_stacks(
    board: BoardDirectory,
) -> None:
    code = """
        import ctypes
        pause = ctypes.PyDLL(None).pause  # a call that keeps the interpreter's lock
        worker_sdk.heartbeat()
        def hang():
            worker_sdk.acquire("all-reduce", 60)
            pause()
        hang()
        """
    with start(code, board.path) as process:
        try:
            wait_until_sync(board.names, WAIT_S)
            stacks = ""

            def has_shown_where() -> bool:
                nonlocal stacks
                process.send_signal(board[layout.STACK_SIGNAL])
                stacks += read_all(board.stacks).decode()
                # The signal ends `pause`: the program goes on to its end after it.
                return "in hang" in stacks or process.poll() is not None

            wait_until_sync(has_shown_where, WAIT_S)
            stacks += read_all(board.stacks).decode()
            assert "in hang" in stacks
            assert board.names() == ["all-reduce"]
        finally:
            process.kill()


def test_a_signal_for_stacks_that_comes_too_late_does_no_harm(board: BoardDirectory) -> None:
    printed = run(
        """
        import faulthandler, signal
        worker_sdk.heartbeat()
        from worker_sdk.runtime import STATE
        number = STATE.stack_signal
        faulthandler.unregister(number)  # as the interpreter does at its very end
        os.kill(os.getpid(), number)
        print(signal.SIGRTMAX - number < 8)
        """,
        board.path,
    )
    assert printed.splitlines() == ["True"]


def test_a_handler_of_signals_may_use_it_anywhere(board: BoardDirectory) -> None:
    run(
        """
        import signal
        def handler(*_):
            with worker_sdk.expires(60, "handler"):
                worker_sdk.heartbeat()
        handler()  # loaded before a signal could interrupt the loading
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-4)
        for step in range(20_000):
            with worker_sdk.expires(60, "step"):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        """,
        board.path,
    )
    assert board.is_idle()
    assert board[layout.HEARTBEATS] > 1


@pytest.mark.parametrize("is_at_prompt", [True, False])
def test_a_prompt_of_a_debugger_is_told(board: BoardDirectory, is_at_prompt: bool) -> None:
    """A program that a debugger lets run has its frames too, and is not debugged."""
    code = """
        import pdb
        worker_sdk.heartbeat()
        pdb.Pdb(nosigint=True).run("import time; print('runs'); time.sleep(600)")
        """
    with start(code, board.path) as process:
        assert process.stdin is not None
        try:
            wait_until_sync(lambda: board[layout.OWNER_PID], WAIT_S)
            board[layout.BEAT_INTERVAL] = 1
            wait_until_sync(lambda: board[layout.IS_DEBUGGED], WAIT_S)
            if not is_at_prompt:
                process.stdin.write("continue\n")
                process.stdin.flush()
                wait_until_sync(lambda: not board[layout.IS_DEBUGGED], WAIT_S)
        finally:
            process.kill()
            process.communicate(timeout=WAIT_S)
