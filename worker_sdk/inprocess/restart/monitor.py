"""Shell. The thread that hears of interruptions, and brings the main thread out of them.

It owns the iteration that the call is in. What happens reaches it through one queue, its answers
the main thread through another: a thread may be interrupted while it writes to either.
"""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from drumbeat.worker.v1 import worker_pb2
from worker_sdk.inprocess.errors import RestartAbort, RestartError
from worker_sdk.inprocess.restart import machine
from worker_sdk.inprocess.restart.call_wrapper import Link
from worker_sdk.inprocess.restart.interrupt import Atomic, Interrupter
from worker_sdk.inprocess.restart.machine import Act, Notice, Word
from worker_sdk.interpreter.signal_wakeup import Mailbox

log = logging.getLogger("worker_sdk")


class Monitor:
    """See the module; made and closed by the main thread. ``abort`` is called on this thread."""

    def __init__(self, link: Link, abort: Callable[[], None], *, cleanup_s: float) -> None:
        self._link = link
        self._abort = abort
        self._iteration = machine.WorkerIteration(cleanup_s)
        self._events: SimpleQueue[machine.Event] = SimpleQueue()
        self._answers: Mailbox[machine.Order] = Mailbox()
        self.tell = put = self._events.put
        """Tell an event; for any thread."""
        self._interrupter = Interrupter(lambda: put(Notice.RAISED), lambda: put(Notice.DROPPED))
        self.run_interruptibly = self._interrupter.run
        self.atomic = Atomic(self._interrupter.interrupt)
        self._thread = threading.Thread(target=self._run, name="worker_sdk monitor", daemon=True)

    def start(self) -> None:
        """Start the thread, and hear orders."""
        self._answers.open()
        self._thread.start()
        self._link.attachment.on_order(self._hear)

    def close(self) -> None:
        """End the thread; harmless if it was not started."""
        self._link.attachment.on_order(None)
        if self._thread.ident is not None:
            self.tell(machine.Left(is_final=True))
            self._thread.join()
        self._answers.close()
        self._interrupter.close()

    def ask(self, event: machine.Enter | machine.Left) -> machine.Order:
        """Tell what the main thread does, and wait for the answer; raises if no iteration follows.

        Once that is an interruption, all is aborted, and nothing will be raised any more.
        """
        self.tell(event)
        answer = self._answers.get()
        if answer.word is Word.LOST:
            raise RestartError("the agent takes no more part in restarts of this worker")
        if answer.word is Word.ABORT:
            raise RestartAbort(answer.reason)
        return answer

    def _hear(self, order: worker_pb2.WorkerOrder | None) -> None:
        if order is None:
            self.tell(machine.Order(-1, Word.LOST))
        elif (name := order.WhichOneof("kind")) is not None:  # else it is newer than this code
            content = getattr(order, name)
            reason = getattr(content, "reason", "") or f"the agent orders: {name}"
            begin = order.begin if name == "begin" else None
            self.tell(machine.Order(order.iteration, Word(name), reason, begin))

    def _run(self) -> None:
        while self._iteration.phase is not machine.Phase.OVER:
            self._handle_next()  # what it tells of lives no longer than that

    def _handle_next(self) -> None:
        deadline = self._iteration.next_deadline()
        try:
            left_s = None if deadline is None else max(deadline - monotonic(), 0)
            event = self._events.get(timeout=left_s)
        except Empty:
            event = Notice.DEADLINE
        for effect in self._iteration.handle(event, now=monotonic()):
            self._execute(effect)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Send(step, iteration, content):
                message = worker_pb2.WorkerStep(iteration=iteration)
                kind: Any = getattr(message, step)
                kind.SetInParent()
                if content is not None:
                    kind.CopyFrom(content)
                self._link.send_step(message)
            case machine.Order():
                self._answers.put(effect)
            case Act.RAISE:
                self._interrupter.reason = self._iteration.reason
                self._interrupter.send()
            case Act.LOCK:
                self.atomic.lock.acquire()
                self.tell(Notice.LOCKED)
            case Act.UNLOCK:
                self._interrupter.reason = None
                self.atomic.lock.release()
            case Act.ABORT:
                try:
                    self._abort()
                except BaseException:  # whatever it is, this thread must go on
                    log.exception("abort failed; the restart goes on")
