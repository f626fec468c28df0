"""Shell. The stream to the agent, for what the board cannot carry: answers and orders.

The only module that needs gRPC; it is loaded when the stream is first needed. One thread
holds it. A stream that breaks is opened again, and the latest step and the latest question
that was not answered are repeated.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import grpc

from drumbeat.worker.v1 import worker_pb2, worker_pb2_grpc

log = logging.getLogger("worker_sdk")

RETRY_S = 0.3  # the wait before a broken stream is opened again
CLOSE_S = 1.0  # how long the end of the stream is waited for

# A channel has a wait of its own, by default from a second upwards: that above counts.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the agent is on this machine
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)

# After these another attempt would get the same answer.
_FINAL = ("ABORTED", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNAUTHENTICATED", "UNIMPLEMENTED")

Receiver = Callable[[worker_pb2.WorkerOrder | None], None]


class Attachment:
    """This process's stream to its agent at ``target``. Never raises; opened when first needed."""

    def __init__(self, target: str, token: str) -> None:
        self._target, self._metadata = target, (("authorization", f"Bearer {token}"),)
        # Reentrant: a signal handler may ask while the code it interrupted asks.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # Of the stream that is open:
        self._stream: grpc.RpcContext | None = None
        self._requests: SimpleQueue[worker_pb2.AttachRequest | None] | None = None
        # What was said and heard so far:
        self._greeted: worker_pb2.Greeted | None = None
        self._asked = 0
        self._confirmed = 0
        self._step: worker_pb2.WorkerStep | None = None
        self._order: worker_pb2.WorkerOrder | None = None
        self._hand_over: Receiver = _pass_over

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Have the agent know a step; it takes the place of the one before. Does not wait."""
        with self._changed:
            self._step = step
            self._send(step=step)
            if not self._runs():
                self._hand_over(None)

    def on_order(self, receiver: Receiver | None) -> None:
        """Hand orders to ``receiver``, on a thread of this object, the latest so far first.

        ``None`` instead of an order says that no more will come.
        """
        with self._changed:
            self._hand_over = receiver or _pass_over
            if self._order is not None:
                self._hand_over(self._order)

    def greeting(self, timeout_s: float) -> worker_pb2.Greeted | None:
        """Return how the agent greeted this process, ``None`` if it does not in time."""
        with self._changed:
            self._wait_for(lambda: self._greeted is not None, timeout_s)
            return self._greeted

    def confirm(self, timeout_s: float) -> bool:
        """Return whether the agent has seen the board as it is now, within ``timeout_s``."""
        with self._changed:
            self._asked = sequence = self._asked + 1
            self._send(sync=worker_pb2.Sync(sequence=sequence))
            self._wait_for(lambda: self._confirmed >= sequence, timeout_s)
            return self._confirmed >= sequence

    def close(self) -> None:
        """End the stream, and its thread; waits a second for that at most.

        A thread that the interpreter's end finds in the stream keeps the stream's lock for ever.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            stream, thread = self._stream, self._thread
        if stream is not None:
            stream.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)

    def _runs(self) -> bool:
        """Have the thread running, unless that is over or not possible."""
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="drumbeat-attach", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                log.info("the agent cannot be asked: %s", error)
        return self._thread is not None and not self._is_closed

    def _run(self) -> None:
        """Hold one stream after the other, until nothing more can come of it."""
        try:
            with grpc.insecure_channel(self._target, _OPTIONS) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                while self._hold(stub):
                    with self._changed:
                        self._changed.wait_for(lambda: self._is_closed, RETRY_S)
        except Exception:
            log.exception("the stream to the agent has ended")
        finally:
            with self._changed:
                self._thread = None
                self._hand_over(None)
                self._changed.notify_all()

    def _hold(self, stub: worker_pb2_grpc.WorkerServiceStub) -> bool:
        """Hold one stream to its end; return whether another makes sense."""
        requests: SimpleQueue[worker_pb2.AttachRequest | None] = SimpleQueue()
        with self._changed:
            if self._is_closed:
                return False
            self._requests = requests
            self._send(greeting=worker_pb2.Greeting(pid=os.getpid()))
            # Before a sync, whose answer then says that the step has arrived as well.
            if self._step is not None:
                self._send(step=self._step)
            if self._asked > self._confirmed:
                self._send(sync=worker_pb2.Sync(sequence=self._asked))
            stream = stub.Attach(iter(requests.get, None), metadata=self._metadata)
            self._stream = stream
        try:
            for response in stream:
                self._on_response(response)
        except grpc.RpcError as error:
            # The stream itself. Left in a cycle, it would be freed by the interpreter's end, and
            # asks for its lock then, which a thread of gRPC that the end has stopped may hold.
            error.__traceback__ = None
            is_final = isinstance(error, grpc.Call) and error.code().name in _FINAL
            if is_final and not self._is_closed:
                log.info("the agent ends the stream: %s", error)
                return False
        finally:
            with self._changed:
                self._stream = self._requests = None
            requests.put(None)  # for the thread of gRPC that reads them
        return not self._is_closed

    def _send(self, **kind: Any) -> None:
        if self._requests is not None:
            self._requests.put(worker_pb2.AttachRequest(**kind))

    def _wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        if self._runs():
            self._changed.wait_for(lambda: is_so() or self._thread is None, timeout_s)

    def _on_response(self, response: worker_pb2.AttachResponse) -> None:
        """Act on what the agent says; what a later version of it says is passed over."""
        with self._changed:
            match response.WhichOneof("kind"):
                case "greeted":  # later ones follow what this process itself has said
                    self._greeted = self._greeted or response.greeted
                case "synced":
                    sequence = min(response.synced.sequence, self._asked)
                    self._confirmed = max(self._confirmed, sequence)
                case "order":
                    self._order = response.order
                    self._hand_over(response.order)
            self._changed.notify_all()


def _pass_over(_order: worker_pb2.WorkerOrder | None) -> None: ...
