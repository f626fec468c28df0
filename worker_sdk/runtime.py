"""Shell. The life of the SDK in a process: begins with the first call, ends with the process.

What every call needs is one look at ``STATE.board``. Without an agent, in a forked
child and in a child of ``multiprocessing`` that is a board without a reader.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING

from worker_sdk import context
from worker_sdk.board import layout
from worker_sdk.board.board import Board, claim, open_file
from worker_sdk.interpreter.main_thread import has_debugger, is_at_prompt
from worker_sdk.interpreter.stacks import write_stacks

if TYPE_CHECKING:
    from worker_sdk.attach import Attachment

log = logging.getLogger("worker_sdk")

# How often a sign of life is given, if the agent does not say, and within which limits else.
BEAT_INTERVAL_S, BEAT_INTERVAL_MIN_S, BEAT_INTERVAL_MAX_S = 1.0, 0.01, 60.0

PROMPT_LOOK_S = 0.25  # how soon the agent knows that the main thread is at a debugger's prompt
STACK_SIGNALS_TRIED = 8  # from the highest real-time signal downwards


class _State:
    """What this process has of the SDK; the board from the first call on."""

    def __init__(self) -> None:
        self.board: Board | None = None
        self.attachment: Attachment | None = None
        self.lock = threading.RLock()
        self.is_starting = False
        self.stop = threading.Event()
        self.asks: int | None = None
        self.stacks: int | None = None
        self.stack_signal = 0
        # Kept from being taken apart in a child, where its threads are missing.
        self.left_to_parent: list[object] = []


STATE = _State()


def start() -> Board:
    """Return the board, and begin if this is the first call. Never raises on its own."""
    with STATE.lock:
        if STATE.board is not None:
            return STATE.board
        if STATE.is_starting:  # a signal handler has interrupted the code below
            return Board()
        STATE.is_starting = True
        try:
            directory = os.environ.get(context.WORKER_DIR, "")
            board = _claimed(directory)
            if board.is_watched:
                _come_alive(board, directory)
            STATE.board = board
            try:
                # Before the interpreter waits for other threads, where that can be had.
                getattr(threading, "_register_atexit", atexit.register)(_note_exit)
            except RuntimeError:  # its end has begun
                _note_exit()
            return board
        finally:
            STATE.is_starting = False


def has_agent() -> bool:
    """Return whether this process, or the worker it belongs to, has an agent."""
    return bool(directory())


def directory() -> str:
    """Return the directory that this worker shares with its agent; nothing without one."""
    return os.environ.get(context.WORKER_DIR, "")


def attachment() -> Attachment:
    """Return this process's stream to the agent, made if there is none. Loads gRPC."""
    from worker_sdk.attach import Attachment  # noqa: PLC0415 - gRPC is heavy, and rarely needed

    with STATE.lock:
        start()
        if STATE.attachment is None:
            socket = os.environ.get(context.WORKER_SOCKET, "")
            target = f"unix:{socket}" if socket.startswith("/") else socket
            STATE.attachment = Attachment(target, os.environ.get(context.WORKER_TOKEN, ""))
        return STATE.attachment


def clear_scopes() -> None:
    """Close all timers and sections of this process; progress is expected no more.

    A block that is still open ends without effect.
    """
    if STATE.board is not None:
        STATE.board = STATE.board.renewed()
        STATE.board.words[layout.PROGRESS_SINCE] = 0
        STATE.board.notices.begin_again()


def _claimed(directory: str) -> Board:
    # Loaded, with a parent, in the processes that it made.
    multiprocessing = sys.modules.get("multiprocessing.process")
    if not directory:
        log.info("no agent: timers, sections and heartbeats of this process are not watched")
    elif multiprocessing is not None and multiprocessing.parent_process() is not None:
        log.info("a child of a worker: its timers, sections and heartbeats are not watched")
    else:
        try:
            return claim(directory)
        except BlockingIOError:
            log.info("another process of this worker is watched, this one is not")
        except (OSError, ValueError) as error:
            log.warning("timers, sections and heartbeats are not watched: %s", error)
    return Board()


def _come_alive(board: Board, directory: str) -> None:
    """Begin to beat, and put this process's name on the board as the last."""
    try:
        STATE.stacks = open_file(directory, layout.STACKS_FILE)
        STATE.stack_signal = _take_stacks(STATE.stacks)
    except (OSError, RuntimeError, ValueError) as error:
        log.info("this process cannot show its stacks: %s", error)
    board.words[layout.STACK_SIGNAL] = STATE.stack_signal
    with suppress(OSError):  # an agent of an earlier version asks by the signal alone
        STATE.asks = open_file(directory, layout.ASK_FILE)
    try:
        args = (board, STATE.stop, _Asks(STATE.asks, STATE.stacks))
        threading.Thread(target=_beat, args=args, name="drumbeat", daemon=True).start()
        board.words[layout.ANSWERS] = int(STATE.asks is not None)
        board.words[layout.BEAT_AT] = monotonic_ns()
    except RuntimeError as error:  # without a first sign of life none is expected
        log.info("this process gives no signs of life: %s", error)
    board.words[layout.OWNER_PID] = os.getpid()
    board.kick()


def _take_stacks(file: int) -> int:
    """Have all stacks written to ``file`` upon a signal; return its number, 0 if all are used."""
    numbers = range(signal.SIGRTMAX, signal.SIGRTMAX - STACK_SIGNALS_TRIED, -1)
    unused = (n for n in numbers if signal.getsignal(n) in (signal.SIG_DFL, signal.SIG_IGN))
    if (number := next(unused, 0)) != 0:
        if threading.current_thread() is threading.main_thread():
            # The fault handler goes before the process does. From then on this counts,
            # and without it the signal would end a process that is only asked.
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    return number


class _Asks:
    """Where the agent asks for stacks, and where they are written; None: nowhere."""

    def __init__(self, asks: int | None, stacks: int | None) -> None:
        self._asks, self._stacks = asks, stacks
        self._poll = select.poll()
        if asks is not None:
            self._poll.register(asks, select.POLLIN)

    def answer(self, within_s: float) -> None:
        """Answer if it asks within this time."""
        if not self._poll.poll(within_s * 1000) or self._asks is None:
            return
        with suppress(OSError):  # as where this process has given all of it up meanwhile
            os.read(self._asks, 4096)
            if self._stacks is not None:
                write_stacks(self._stacks)

    def close(self) -> None:
        """Hear nothing any more."""
        if self._asks is not None:
            os.close(self._asks)


def _beat(board: Board, stop: threading.Event, asks: _Asks) -> None:
    """Say again and again that Python code runs here; ``board`` until there is another.

    What else is to be done whatever the main thread does: answering who asks for stacks.
    """
    beat_at = 0
    while True:
        board = STATE.board or board
        board.words[layout.IS_DEBUGGED] = is_at_prompt()
        interval_s = board.words[layout.BEAT_INTERVAL] / 1e9 or BEAT_INTERVAL_S
        interval_s = min(max(interval_s, BEAT_INTERVAL_MIN_S), BEAT_INTERVAL_MAX_S)
        left_s = interval_s - (monotonic_ns() - beat_at) / 1e9
        if left_s <= 0:
            beat_at = board.words[layout.BEAT_AT] = monotonic_ns()
            left_s = interval_s
        asks.answer(min(left_s, PROMPT_LOOK_S) if has_debugger() else left_s)
        if stop.is_set():
            asks.close()
            return


def _note_exit() -> None:
    board = STATE.board
    if board is not None and not board.words[layout.EXITING_AT]:
        board.words[layout.EXITING_AT] = monotonic_ns()
        board.kick()
    attachment, STATE.attachment = STATE.attachment, None
    if attachment is not None:
        attachment.close()


def _leave_to_parent() -> None:
    """In a forked child: say nothing, and close nothing that is the parent's."""
    STATE.lock = threading.RLock()
    STATE.is_starting = False
    STATE.left_to_parent += [STATE.attachment, STATE.stop]
    STATE.attachment = None
    STATE.stop = threading.Event()
    asks, STATE.asks = STATE.asks, None
    if asks is not None:
        os.close(asks)
    if STATE.board is not None:
        give_up(STATE.board)


os.register_at_fork(after_in_child=_leave_to_parent)


def give_up(board: Board) -> None:
    """Have this process say and show nothing any more."""
    board.give_up()
    if STATE.stack_signal:
        faulthandler.unregister(STATE.stack_signal)
        STATE.stack_signal = 0
    if STATE.stacks is not None:
        os.close(STATE.stacks)
        STATE.stacks = None
