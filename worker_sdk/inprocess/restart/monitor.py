"""Shell. The thread that hears of interruptions, and brings the main thread out of them.

It owns the iteration that the call is in. Everything that happens reaches it through one
mailbox; it answers the main thread through another. Both may be written by a thread that
was interrupted while it wrote to them.
"""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from drumbeat.worker.v1 import worker_pb2
from worker_sdk.inprocess.restart import machine
from worker_sdk.inprocess.restart.interrupt import Atomic, Gate, Interrupter
from worker_sdk.interpreter.signal_wakeup import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_sdk.inprocess.restart.agent_link import Link

log = logging.getLogger("worker_sdk")


class Monitor:
    """See the module; made and closed by the main thread. ``abort`` is called on this thread."""

    def __init__(self, link: Link, abort: Callable[[], None], *, cleanup_s: float) -> None:
        self._link = link
        self._abort = abort
        self._iteration = machine.WorkerIteration(cleanup_s)
        self._events: SimpleQueue[machine.Event] = SimpleQueue()
        self._answers: Mailbox[machine.Answer] = Mailbox()
        put = self._events.put
        self.gate = Gate(lambda: put(machine.Notice.RAISED), lambda: put(machine.Notice.DROPPED))
        self.atomic = Atomic(self.gate)
        self._interrupter = Interrupter(self.gate)
        self._thread = threading.Thread(target=self._run, name="worker_sdk monitor", daemon=True)

    def start(self) -> None:
        """Start the thread, and hear orders."""
        self._answers.open()
        self._thread.start()
        self._link.attachment.on_order(lambda order: self._events.put(_ordered(order)))

    def close(self) -> None:
        """End the thread; harmless if it was not started."""
        self._link.attachment.on_order(None)
        if self._thread.ident is not None:
            self._events.put(machine.Left(is_final=True))
            self._thread.join()
        self._answers.close()
        self._interrupter.close()

    def enter(self, iteration: int, step: worker_pb2.Entered) -> machine.Answer:
        """Wait for an iteration to begin, or to be interrupted before it does."""
        self._events.put(machine.Enter(iteration, step))
        return self._answers.get()

    def leave(self, cause: machine.Cause | None) -> machine.Answer:
        """Tell what the function came to, and wait for the others.

        Once this says that the iteration is interrupted, all is aborted, and nothing will
        be raised any more.
        """
        self._events.put(machine.Left(cause))
        return self._answers.get()

    def silent(self, cause: machine.Cause) -> None:
        """Tell that the soft timeout is over; for any thread."""
        self._events.put(machine.Silent(self._iteration.iteration, cause))

    def _run(self) -> None:
        while self._iteration.phase is not machine.Phase.OVER:
            self._handle_next()  # what it tells of lives no longer than that

    def _handle_next(self) -> None:
        deadline = self._iteration.next_deadline()
        try:
            left_s = None if deadline is None else max(deadline - monotonic(), 0)
            event = self._events.get(timeout=left_s)
        except Empty:
            event = machine.Notice.DEADLINE
        for effect in self._iteration.handle(event, now=monotonic()):
            self._execute(effect)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Send(step, iteration, content):
                self._link.send_step(_step(step, iteration, content))
            case machine.Answer():
                self._answers.put(effect)
            case machine.Raise(reason):
                self.gate.reason = reason
                self._interrupter.send()
            case machine.Act.LOCK:
                self.atomic.lock.acquire()
                self._events.put(machine.Notice.LOCKED)
            case machine.Act.UNLOCK:
                self.gate.reason = None
                self.atomic.lock.release()
            case machine.Act.ABORT:
                try:
                    self._abort()
                except BaseException:  # whatever it is, this thread must go on
                    log.exception("abort failed; the restart goes on")


def _ordered(order: worker_pb2.WorkerOrder | None) -> machine.Event:
    if order is None:
        return machine.Notice.AGENT_LOST
    name = order.WhichOneof("kind")
    if name is None:  # something newer than this code
        return machine.Ordered(order.iteration, None)
    content = getattr(order, name)
    reason = getattr(content, "reason", "") or f"the agent orders: {name}"
    return machine.Ordered(order.iteration, machine.Word(name), reason, content)


def _step(step: str, iteration: int, content: Any) -> worker_pb2.WorkerStep:
    if step == "interrupted":
        content = worker_pb2.Interrupted(interruption=content)
    elif step == "completed":
        content = worker_pb2.Completed()
    kind: dict[str, Any] = {step: content}
    return worker_pb2.WorkerStep(iteration=iteration, **kind)
