"""Shell. The thread that hears of interruptions, and brings the main thread out of them.

It owns what a call of a wrapper is in. Everything that happens reaches it through one
mailbox: orders of the agent, silence of the main thread, what the main thread came to.
It answers the main thread through another. Both may be written by a thread that was
interrupted while it wrote to them.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from worker_sdk.errors import error_file
from worker_sdk.inprocess import messages
from worker_sdk.inprocess.interrupt import Atomic, Gate
from worker_sdk.inprocess.messages import Aborted, AllCompleted, Begun, InterruptOrdered, Kind
from worker_sdk.interpreter.main_stack import Entry, main_stack
from worker_sdk.interpreter.signal_wakeup import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumbeat.worker.v1 import iteration_pb2
    from worker_sdk.inprocess.link import Link

log = logging.getLogger("worker_sdk")

RETRY_FIRST_S = 0.01
RETRY_LONGEST_S = 1.0
"""A signal may come right before a system call and not break it: it is sent again."""


@dataclass(frozen=True, slots=True)
class Entering:
    """The main thread waits for the iteration to begin."""

    step: worker_pb2.WorkerStep


@dataclass(frozen=True, slots=True)
class Left:
    """The main thread has left the gate."""

    cause: iteration_pb2.Interruption | None
    """What it failed with; ``None``: it returned."""
    is_final: bool = False
    """It takes no part any more, and waits for nothing."""


@dataclass(frozen=True, slots=True)
class Silent:
    """The soft timeout is over."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception was raised in the main thread."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The exception is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The call is over."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The agent will give no more orders. Also the answer to a main thread that waits."""


Note: TypeAlias = (
    "Lost | Entering | Left | Silent | Raised | Dropped | Stop | worker_pb2.WorkerOrder"
)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Answer to the main thread: clean up."""

    reason: str


Answer = Begun | Interrupted | AllCompleted | Aborted | Lost


class Monitor:
    """See the module.

    Args:
        link: To the agent.
        abort: The user's, without arguments; called on this thread.
        local_rank: Named in what is reported.
        cleanup_s: How long the main thread may clean up after the exception was
            raised in it before it is raised again.
    """

    def __init__(
        self,
        link: Link,
        abort: Callable[[], None],
        *,
        local_rank: int,
        cleanup_s: float,
    ) -> None:
        self._link = link
        self._abort = abort
        self._local_rank = local_rank
        self._cleanup_s = cleanup_s
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._answers: Mailbox[Answer] = Mailbox()
        notes = self._notes
        self.gate = Gate(lambda: notes.put(Raised()), lambda: notes.put(Dropped()))
        self.atomic = Atomic(self.gate)
        self.signal: Callable[[], None] = lambda: None
        """Has the main thread look at the gate."""
        self._iteration = -1
        self._is_lost = False
        self._aborted: Aborted | None = None
        """That no iteration follows; said while the main thread may still clean up."""
        self._handle: Callable[[Note], None] = self._idle
        self._thread = threading.Thread(target=self._run, name="worker_sdk monitor", daemon=True)

    # For the main thread.

    def start(self) -> None:
        """Start the thread, and hear orders."""
        self._answers.open()
        self._thread.start()
        notes = self._notes
        self._link.on_order(lambda order: notes.put(Lost() if order is None else order))

    def close(self) -> None:
        """End the thread."""
        self._link.on_order(None)
        self._notes.put(Left(None, is_final=True))
        self._notes.put(Stop())
        self._thread.join()
        self._answers.close()

    def enter(self, step: worker_pb2.WorkerStep) -> Answer:
        """Wait for an iteration to begin, or to be interrupted before it does."""
        self._notes.put(Entering(step))
        return self._answers.get()

    def leave(self, cause: iteration_pb2.Interruption | None) -> Answer:
        """Tell what the function came to, and wait for the others.

        Returns:
            That all completed; or that the iteration is interrupted, everything was
            aborted, and nothing will be raised any more.
        """
        self._notes.put(Left(cause))
        return self._answers.get()

    # For any thread.

    def silent(self) -> None:
        """Tell that the soft timeout is over."""
        self._notes.put(Silent(self._iteration))

    # The thread.

    def _run(self) -> None:
        while True:
            note = self._notes.get()
            if isinstance(note, Stop):
                return
            self._remember(note)
            self._handle(note)
            if self._handle == self._entering and self._aborted is not None:
                self._handle = self._idle
                self._answers.put(self._aborted)
            if self._is_lost and self._handle in (self._entering, self._completed):
                self._handle = self._idle
                self._answers.put(Lost())
            del note  # it would keep alive what it tells of, for as long as nothing comes

    def _remember(self, note: Note) -> None:
        """Keep what counts whatever the main thread does when it comes."""
        if isinstance(note, Lost):
            self._is_lost = True
        elif isinstance(note, worker_pb2.WorkerOrder):
            order = messages.order_of(note)
            if isinstance(order, Aborted):
                self._aborted = order

    def _idle(self, note: Note) -> None:
        if isinstance(note, Entering):
            self._iteration = note.step.iteration
            self._link.send_step(note.step)
            self._handle = self._entering

    def _entering(self, note: Note) -> None:
        order = self._order_in(note)
        if isinstance(order, Begun):
            self._handle = self._running
            self._answers.put(order)
        elif isinstance(order, InterruptOrdered):
            self._link.send_step(messages.interrupted(self._iteration))
            self._answer_interrupted(order.reason)

    def _running(self, note: Note) -> None:
        order = self._order_in(note)
        if isinstance(order, InterruptOrdered):
            self._interrupt(order.reason, None)
        elif isinstance(note, Silent) and note.iteration == self._iteration:
            text = "no progress within the soft timeout"
            kind = Kind.INTERRUPTION_KIND_SOFT_TIMEOUT
            cause = messages.interruption(kind, self._local_rank, text)
            cause.traceback = error_file.bounded(_main_stack(), messages.TRACEBACK_BYTES_MAX)
            self._interrupt(text, cause)
        elif isinstance(note, Left):
            self._after_running(note)

    def _after_running(self, left: Left) -> None:
        if left.is_final:
            self._handle = self._idle
        elif left.cause is not None:
            self._link.send_step(messages.interrupted(self._iteration, left.cause))
            self._abort_here()
            self._answer_interrupted(left.cause.message)
        else:
            self._link.send_step(messages.completed(self._iteration))
            self._handle = self._completed

    def _completed(self, note: Note) -> None:
        order = self._order_in(note)
        if isinstance(order, AllCompleted):
            self._handle = self._idle
            self._answers.put(order)
        elif isinstance(order, InterruptOrdered):
            self._link.send_step(messages.interrupted(self._iteration))
            self._abort_here()
            self._answer_interrupted(order.reason)
        elif isinstance(note, Left) and note.is_final:
            self._handle = self._idle

    def _interrupt(self, reason: str, cause: iteration_pb2.Interruption | None) -> None:
        """Bring the main thread out of the function."""
        self._link.send_step(messages.interrupted(self._iteration, cause))
        with self.atomic.lock:
            left = self._left_already()
            if left is not None and left.cause is not None and cause is None:
                # It failed by itself before anything was aborted here.
                self._link.send_step(messages.interrupted(self._iteration, left.cause))
            self._abort_here()
            if left is None:
                left = self._bring_out(reason)
        if left.is_final:
            self._handle = self._idle
        else:
            self._answer_interrupted(reason)

    def _left_already(self) -> Left | None:
        """Return whether the main thread left while this one waited for the lock."""
        while True:
            try:
                note = self._notes.get_nowait()
            except Empty:
                return None
            self._remember(note)
            if isinstance(note, Left):
                return note

    def _bring_out(self, reason: str) -> Left:
        """Raise in the main thread until it has left."""
        self.gate.reason = reason
        retry_s = RETRY_FIRST_S
        wait_s = 0.0
        is_raised = False
        try:
            while True:
                if not wait_s:
                    self.signal()
                    wait_s = retry_s
                    retry_s = min(2 * retry_s, RETRY_LONGEST_S)
                try:
                    note = self._notes.get(timeout=wait_s)
                except Empty:
                    wait_s = 0.0
                    is_raised = False
                    continue
                self._remember(note)
                if isinstance(note, Left):
                    return note
                if isinstance(note, Raised):
                    is_raised = True
                    wait_s = self._cleanup_s
                elif isinstance(note, Dropped) and is_raised:
                    log.debug("the exception that restarts was stopped; it is raised again")
                    is_raised = False
                    wait_s = retry_s
        finally:
            self.gate.reason = None

    def _abort_here(self) -> None:
        with self.atomic.lock:
            try:
                self._abort()
            except BaseException:  # whatever it is, this thread must go on
                log.exception("abort failed; the restart goes on")

    def _answer_interrupted(self, reason: str) -> None:
        self._handle = self._idle
        self._answers.put(Interrupted(reason))

    def _order_in(self, note: Note) -> messages.Order | None:
        """Return the order for this iteration, if ``note`` is one."""
        if isinstance(note, Lost | Entering | Left | Silent | Raised | Dropped | Stop):
            return None
        return messages.order_of(note) if note.iteration == self._iteration else None


def _main_stack() -> str:
    """Return where the main thread is, without our own frames around the user's."""
    stack = [str(entry) for entry in takewhile(_is_of_user, main_stack())]
    return "".join(reversed(stack))


def _is_of_user(entry: Entry) -> bool:
    return not entry.path.startswith(_OUR_FOLDER)


_OUR_FOLDER = f"{Path(__file__).parent}{os.sep}"
