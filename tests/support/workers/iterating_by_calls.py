"""A worker that restarts in process without the SDK, by the protocol alone.

Argument: what local rank 1 does in iteration 0, see ``misfortune``.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from drumbeat.worker.v1 import iteration_pb2, worker_pb2, worker_pb2_grpc
from worker_sdk.context import WORKER_SOCKET, WORKER_TOKEN

if TYPE_CHECKING:
    from types import FrameType

SPEC = iteration_pb2.InprocessSpec(rules=[iteration_pb2.RankRule(shift=iteration_pb2.ShiftRanks())])
CAUSE = iteration_pb2.Interruption(
    kind=iteration_pb2.INTERRUPTION_KIND_EXCEPTION,
    message="RuntimeError: boom",
    traceback="Traceback: here",
)


class Agent:
    """The stream to the agent."""

    def __init__(self) -> None:
        self._unsent: queue.Queue[worker_pb2.AttachRequest] = queue.Queue()
        self._unsent.put(worker_pb2.AttachRequest(greeting=worker_pb2.Greeting(pid=os.getpid())))
        self._channel = grpc.insecure_channel(f"unix:{os.environ[WORKER_SOCKET]}")
        stub = worker_pb2_grpc.WorkerServiceStub(self._channel)
        metadata = (("authorization", f"Bearer {os.environ[WORKER_TOKEN]}"),)
        self._answers = stub.Attach(self._requests(), metadata=metadata)
        self._synced = 0

    def _requests(self) -> Iterator[worker_pb2.AttachRequest]:
        while True:
            yield self._unsent.get()

    def say(self, iteration: int, **kind: object) -> None:
        step = worker_pb2.WorkerStep(iteration=iteration, **kind)  # type: ignore[arg-type]
        self._unsent.put(worker_pb2.AttachRequest(step=step))

    def order(self, iteration: int) -> worker_pb2.WorkerOrder:
        """Return the next order of an iteration."""
        for answer in self._answers:
            if answer.HasField("order") and answer.order.iteration == iteration:
                return answer.order
        raise AssertionError("the agent has no more orders")

    def flush(self) -> None:
        """Return when the agent has heard all that was said."""
        self._unsent.put(worker_pb2.AttachRequest(sync=worker_pb2.Sync(sequence=1)))
        next(answer for answer in self._answers if answer.HasField("synced"))


def find_store(begin: worker_pb2.WorkerBegin) -> socket.socket | None:
    """Connect to the store of the iteration, as rank 0 does."""
    if not begin.HasField("active_rank") or begin.active_rank != 0:
        return None
    assert begin.has_store
    return socket.create_connection((begin.master_addr, begin.master_port))


def misfortune(how: str, agent: Agent) -> None:
    """Break an iteration off."""
    if how == "raise":
        agent.say(0, interrupted=worker_pb2.Interrupted(interruption=CAUSE))
    elif how == "leave":
        cause = iteration_pb2.Interruption(
            kind=iteration_pb2.INTERRUPTION_KIND_UNHEALTHY, message="GPU gone"
        )
        agent.say(0, terminated=worker_pb2.Terminated(interruption=cause))
        agent.flush()
        sys.exit(3)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def main(how: str) -> None:
    """Iterate until all complete."""
    local_rank, agent, iteration = int(os.environ["LOCAL_RANK"]), Agent(), 0
    while True:
        agent.say(iteration, entered=worker_pb2.Entered(spec=SPEC))
        order = agent.order(iteration)
        if order.HasField("begin"):
            store = find_store(order.begin)
            try:
                if local_rank == 1 and iteration == 0:
                    misfortune(how, agent)
                    iteration += 1
                    continue
                if iteration > 0:
                    agent.say(iteration, completed=worker_pb2.Completed())
                order = agent.order(iteration)
            finally:
                if store is not None:
                    store.close()
        if order.HasField("complete"):
            return
        agent.say(iteration, interrupted=worker_pb2.Interrupted())
        iteration += 1


def refuse(_signum: int, _frame: FrameType | None) -> None:
    """Stay, so that only SIGKILL ends this worker."""


if __name__ == "__main__":
    if sys.argv[1] == "deaf":
        signal.signal(signal.SIGTERM, refuse)
        threading.Event().wait()
    main(sys.argv[1])
