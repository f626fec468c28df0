"""Shell. A worker that another library restarts in process: its part in iterations.

The coordinator then knows that the workers handle the loss of a worker themselves, and starts no
new round for it. When the function is called again is up to the library, which tells nothing of it.
"""

import logging
import os
import signal
import threading
from typing import Any

from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from worker_sdk.inprocess.restart.call_wrapper import AgentLink

log = logging.getLogger("worker_sdk")

TIMEOUT_S = 86_400
"""Of the barriers: the library has timeouts of its own, and its workers wait at none of them."""
SIGN_S = 0.1
"""How often the main thread executes Python while it waits: libraries take that for progress."""


class Participant:
    """This process's part, over all calls of the library's wrapper. The main thread owns it.

    Orders come on the attachment's thread, under its lock, and are obeyed there: between an
    interruption and the next iteration the library has nothing to do for the agent.
    """

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._has_completed = False
        self._over = threading.Event()
        self._over.set()

    def enter(self) -> None:
        """Take part from here on; without effect during a call that has not been left."""
        if self._over.is_set():
            self._link.begin()
            self._has_completed = False
            self._over.clear()
            self._enter_next()
            self._link.attachment.on_order(self._obey)

    def leave(self) -> None:
        """Wait until all workers that are left have completed the call.

        From then on the end of a worker is judged as that of any other.
        """
        if not self._over.is_set():
            self._has_completed = True
            self._link.attachment.on_order(self._obey)  # with the latest order once more
            while not self._over.wait(SIGN_S):
                pass
            self._link.attachment.on_order(None)

    def _obey(self, order: worker_pb2.WorkerOrder | None) -> None:
        kind = None if order is None else order.WhichOneof("kind")
        if order is None:
            self._over.set()  # no more will come
        elif kind == "abort":
            log.warning("no iteration follows: %s", order.abort.reason)
            self._over.set()
            os.kill(os.getpid(), signal.SIGTERM)
        elif order.iteration != self._link.iteration - 1:
            pass  # of an earlier one
        elif kind == "begin" and self._has_completed:
            self._send(completed=worker_pb2.Completed())
        elif kind == "interrupt":
            self._enter_next()
        elif kind == "complete":
            self._over.set()

    def _enter_next(self) -> None:
        spec = iteration_pb2.InprocessSpec(needs_first_agent=True)
        spec.rules.add(shift=iteration_pb2.ShiftRanks())
        spec.barrier_timeout.FromSeconds(TIMEOUT_S)
        spec.completion_timeout.FromSeconds(TIMEOUT_S)
        self._link.iteration += 1
        self._send(entered=worker_pb2.Entered(spec=spec))

    def _send(self, **step: Any) -> None:
        message = worker_pb2.WorkerStep(iteration=self._link.iteration - 1, **step)
        self._link.attachment.send_step(message)
