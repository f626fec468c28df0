"""Shell. The life of the SDK in a process: begins with the first call, ends with the process.

What every call needs is one look at ``STATE.board``. Without an agent, in a forked
child and in a child of ``multiprocessing`` that is a board which nobody reads.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from time import monotonic_ns
from typing import TYPE_CHECKING

from worker_sdk.board import layout
from worker_sdk.board.board import Board, BoardTaken, BoardUnusable, claim, open_stacks
from worker_sdk.config import WorkerConfig
from worker_sdk.interpreter.main_stack import Entry, main_stack

if TYPE_CHECKING:
    from worker_sdk.attach import Attachment

log = logging.getLogger("worker_sdk")

BEAT_INTERVAL_S = 1.0
"""How often a sign of life is given if the agent does not say."""
BEAT_INTERVAL_MIN_S = 0.01
BEAT_INTERVAL_MAX_S = 60.0

LOOK_S = 0.25
"""How soon it is told that the main thread is at the prompt of a debugger."""

IDLE_S = 0.002
"""How long the main thread has to stand still for a look whether it is at a prompt."""

STACK_SIGNALS_TRIED = 8
"""From the highest real-time signal downwards, the first that nobody uses is taken."""

_DEBUGGERS = ("bdb", "pydevd")


class _State:
    """What this process has of the SDK."""

    __slots__ = (
        "attachment", "board", "config", "is_exit_noticed", "is_fork_noticed", "is_starting",
        "left_to_parent", "lock", "stack_signal", "stacks", "stop",
    )  # fmt: skip

    def __init__(self) -> None:
        self.board: Board | None = None
        """``None`` before the first call."""
        self.config: WorkerConfig | None = None
        self.attachment: Attachment | None = None
        self.lock = threading.RLock()
        self.is_starting = False
        self.is_fork_noticed = False
        self.is_exit_noticed = False
        self.stop = threading.Event()
        self.stacks: int | None = None
        self.stack_signal = 0
        self.left_to_parent: list[object] = []
        """Kept from being taken apart in a child, where its threads are missing."""


STATE = _State()


def start() -> Board:
    """Return the board, and begin if this is the first call. Never raises on its own."""
    with STATE.lock:
        if STATE.board is not None:
            return STATE.board
        if STATE.is_starting:  # a signal handler has interrupted the code below
            return Board(bytearray(layout.BOARD_BYTES))
        STATE.is_starting = True
        try:
            _notice_forks()
            STATE.config = WorkerConfig.from_env()
            board = _claimed(STATE.config.directory)
            if board is None:
                board = Board(bytearray(layout.BOARD_BYTES))
            else:
                _come_alive(board, STATE.config.directory)
            STATE.board = board
            _notice_exit()
        finally:
            STATE.is_starting = False
        return board


def is_attached() -> bool:
    """Return whether an agent reads what this process says."""
    return (STATE.board or start()).is_watched


def clear_scopes() -> None:
    """Close all timers and sections of this process; progress is expected no more.

    Who is still inside of one leaves it without effect.
    """
    board = STATE.board
    if board is not None:
        STATE.board = board.renewed()
        STATE.board.words[layout.PROGRESS_SINCE] = 0


def leave() -> None:
    """Give the board up, as if this process had never begun. The next call begins anew."""
    with STATE.lock:
        board, STATE.board = STATE.board, None
        attachment, STATE.attachment = STATE.attachment, None
        if attachment is not None:
            attachment.close()
        STATE.stop.set()
        STATE.stop = threading.Event()
        if board is not None:
            board.words[layout.OWNER_PID] = 0
            board.give_up()
            _take_no_stacks()
            board.close_files()


def _claimed(directory: str) -> Board | None:
    """Return the worker's board; ``None`` if it is not for this process, and say why once."""
    if not directory:
        log.info("no agent: timers, sections and heartbeats of this process are not watched")
        return None
    if _is_multiprocessing_child():
        log.info("a child of a worker: its timers, sections and heartbeats are not watched")
        return None
    try:
        return claim(directory)
    except BoardTaken:
        log.info("another process of this worker is watched, this one is not")
    except BoardUnusable as error:
        log.warning("timers, sections and heartbeats are not watched: %s", error)
    return None


def _is_multiprocessing_child() -> bool:
    """Return whether ``multiprocessing`` made this process; it is loaded in those it made."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _come_alive(board: Board, directory: str) -> None:
    """Begin to beat, and put this process's name on the board as the last."""
    try:
        STATE.stacks = open_stacks(directory)
        STATE.stack_signal = _take_stacks(STATE.stacks)
    except (OSError, RuntimeError, ValueError) as error:
        log.info("this process cannot show its stacks: %s", error)
    board.words[layout.STACK_SIGNAL] = STATE.stack_signal
    beat = threading.Thread(target=_beat, args=(board, STATE.stop), name="drumbeat", daemon=True)
    try:
        beat.start()
        board.words[layout.BEAT_AT] = monotonic_ns()
    except RuntimeError as error:
        # Without a first sign of life nobody waits for a second.
        log.info("this process gives no signs of life: %s", error)
    board.words[layout.OWNER_PID] = os.getpid()
    board.kick()


def _take_stacks(file: int) -> int:
    """Have all stacks written to ``file`` upon a signal; return its number, 0 if all are used."""
    for number in range(signal.SIGRTMAX, signal.SIGRTMAX - STACK_SIGNALS_TRIED, -1):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
            if threading.current_thread() is threading.main_thread():
                # The fault handler goes before the process does. From then on this counts,
                # and without it the signal would end a process that is only asked.
                signal.signal(number, signal.SIG_IGN)
            faulthandler.register(number, file=file, all_threads=True, chain=False)
            return number
    return 0


def _take_no_stacks() -> None:
    """Undo ``_take_stacks``."""
    if STATE.stack_signal:
        faulthandler.unregister(STATE.stack_signal)
        STATE.stack_signal = 0
    if STATE.stacks is not None:
        os.close(STATE.stacks)
        STATE.stacks = None


def _beat(board: Board, stop: threading.Event) -> None:
    """Say again and again that Python code runs here; ``board`` until there is another."""
    beat_at = 0
    while True:
        board = STATE.board or board
        board.words[layout.IS_DEBUGGED] = is_debugged()
        interval_s = board.words[layout.BEAT_INTERVAL] / 1e9 or BEAT_INTERVAL_S
        interval_s = min(max(interval_s, BEAT_INTERVAL_MIN_S), BEAT_INTERVAL_MAX_S)
        left_s = interval_s - (monotonic_ns() - beat_at) / 1e9
        if left_s <= 0:
            beat_at = board.words[layout.BEAT_AT] = monotonic_ns()
            left_s = interval_s
        if stop.wait(min(left_s, LOOK_S) if has_debugger() else left_s):
            return


def has_debugger() -> bool:
    """Return whether there is one that could stop the program; torch imports one."""
    return any(name in sys.modules for name in _DEBUGGERS)


def is_main_idle() -> bool:
    """Return whether the main thread computes nothing for ``IDLE_S``; blocks as long."""
    try:
        clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
    except OSError:
        return True  # not to be had: perhaps it is
    used = time.clock_gettime_ns(clock)
    time.sleep(IDLE_S)
    return time.clock_gettime_ns(clock) == used


def is_debugged() -> bool:
    """Return whether the main thread stands at the prompt of a Python debugger."""
    if not has_debugger():
        return False
    # At a prompt it computes nothing; one that trains does, and costs no look at its stack.
    return is_main_idle() and any(map(_is_prompt, main_stack()))


def _is_prompt(entry: Entry) -> bool:
    """Return whether a call is a debugger's that has stopped the program.

    A program under a debugger that runs has calls of the debugger as well, further out.
    """
    module, function = entry.path.rpartition("/")[2].removesuffix(".py"), entry.function
    return (
        (module == "pdb" and function == "interaction")
        or (module == "bdb" and function.startswith("dispatch_"))
        or (module.startswith(("pydevd", "_pydevd")) and "wait_suspend" in function)
    )


def _notice_exit() -> None:
    """Have the end of the interpreter written down, before it waits for other threads."""
    if STATE.is_exit_noticed:
        return
    STATE.is_exit_noticed = True
    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(_tell_exit)
    except RuntimeError:  # it has begun already
        _tell_exit()


def _tell_exit() -> None:
    board = STATE.board
    if board is not None and not board.words[layout.EXITING_AT]:
        board.words[layout.EXITING_AT] = monotonic_ns()
        board.kick()
    attachment, STATE.attachment = STATE.attachment, None
    if attachment is not None:
        attachment.close()


def _notice_forks() -> None:
    if not STATE.is_fork_noticed:
        STATE.is_fork_noticed = True
        os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_to_parent() -> None:
    """In a forked child: say nothing, and close nothing that is the parent's."""
    STATE.lock = threading.RLock()
    STATE.is_starting = False
    STATE.left_to_parent += [STATE.attachment, STATE.stop]
    STATE.attachment = None
    STATE.stop = threading.Event()
    board = STATE.board
    if board is None:
        return
    board.give_up()
    _take_no_stacks()
    board.close_files()
