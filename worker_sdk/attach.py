"""Shell. The conversation with the agent, for what the board cannot tell: an answer.

The only module that needs gRPC; it is loaded when the first answer is wanted. One
thread holds the stream. A stream that breaks is opened again, and what was asked
and not answered is asked again.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import grpc

from drumbeat.worker.v1 import worker_pb2, worker_pb2_grpc
from worker_sdk.runtime import STATE, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker_sdk.config import WorkerConfig

log = logging.getLogger("worker_sdk")

RETRY_BASE_S = 0.1
RETRY_MAX_S = 5.0
"""The wait before another attempt is anything from 0 to a bound that doubles up to this."""

# A channel has a wait of its own, by default from a second upwards: that of the streams is
# the one that counts.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the agent is on this machine
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)

# After these another attempt would get the same answer.
_FINAL = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

Receiver = Callable[[worker_pb2.WorkerOrder | None], None]


@dataclass(slots=True)
class _Session:
    """One stream, from its opening to its end."""

    is_over: bool = False
    sync_sent: int = 0
    """The latest sync that this stream carried."""
    step_sent: int = 0
    """The number of the latest step that this stream carried."""


class Attachment:
    """Speaks with the agent for this process. Never raises."""

    def __init__(self, config: WorkerConfig) -> None:
        """Connect to nothing yet."""
        self._config = config
        # Reentrant: a signal handler may ask while the code it interrupted asks.
        self._changed = threading.Condition(threading.RLock())
        self._handlers: dict[str, Callable[[worker_pb2.AttachResponse], None]] = {
            "greeted": self._on_greeted,
            "synced": self._on_synced,
            "order": self._on_order,
        }
        self._greeted: worker_pb2.Greeted | None = None
        self._thread: threading.Thread | None = None
        self._stream: grpc.RpcContext | None = None
        self._asked = 0
        self._confirmed = 0
        self._attempts = 0
        self._is_closed = False
        self._step: worker_pb2.WorkerStep | None = None
        self._steps = 0
        """How many there were."""
        self._order: worker_pb2.WorkerOrder | None = None
        self._receiver: Receiver | None = None

    def send_step(self, step: worker_pb2.WorkerStep) -> None:
        """Have the agent know a step; it takes the place of the one before. Does not wait."""
        with self._changed:
            self._step = step
            self._steps += 1
            if not self._runs():
                self._tell(None)
            self._changed.notify_all()

    def on_order(self, receiver: Receiver | None) -> None:
        """Hand orders to ``receiver``, on a thread of this object, the latest so far first.

        ``None`` instead of an order says that no more will come.
        """
        with self._changed:
            self._receiver = receiver
            if self._order is not None:
                self._tell(self._order)

    def greeting(self, timeout_s: float) -> worker_pb2.Greeted | None:
        """Return how the agent greeted this process, ``None`` if it does not in time."""
        with self._changed:
            if self._runs():
                self._changed.wait_for(
                    lambda: self._greeted is not None or self._thread is None, timeout_s
                )
            return self._greeted

    def confirm(self, timeout_s: float) -> bool:
        """Return whether the agent has seen the board as it is now, within ``timeout_s``."""
        deadline = monotonic() + timeout_s
        with self._changed:
            if not self._runs():
                return False
            self._asked += 1
            sequence = self._asked
            self._changed.notify_all()
            while self._confirmed < sequence and self._thread is not None:
                left_s = deadline - monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    break
            return self._confirmed >= sequence

    def close(self) -> None:
        """End the conversation. Waits for nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            stream = self._stream
        if stream is not None:
            stream.cancel()

    def _runs(self) -> bool:
        """Have the thread running, unless that is over or not possible."""
        if self._is_closed:
            return False
        if self._thread is None:
            self._attempts = 0
            thread = threading.Thread(target=self._run, name="drumbeat-attach", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError as error:
                self._thread = None
                log.info("the agent cannot be asked: %s", error)
        return self._thread is not None

    def _run(self) -> None:
        """Hold one stream after the other, until nothing more can come of it."""
        try:
            with grpc.insecure_channel(self._config.socket, _OPTIONS) as channel:
                while self._hold(worker_pb2_grpc.WorkerServiceStub(channel)):
                    self._wait_before_retry()
        except Exception:
            log.exception("the conversation with the agent has ended")
        finally:
            with self._changed:
                self._thread = None
                self._tell(None)
                self._changed.notify_all()

    def _hold(self, stub: worker_pb2_grpc.WorkerServiceStub) -> bool:
        """Hold one stream to its end; return whether another makes sense."""
        session = _Session()
        metadata = (("authorization", f"Bearer {self._config.token}"),)
        try:
            with self._changed:
                if self._is_closed:
                    return False
                stream = self._stream = stub.Attach(self._requests(session), metadata=metadata)
            for response in stream:
                self._on_response(response)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code in _FINAL and not self._is_closed:
                log.info("the agent converses no more: %s", error)
                return False
        finally:
            with self._changed:
                session.is_over = True
                self._stream = None
                self._changed.notify_all()
        return not self._is_closed

    def _wait_before_retry(self) -> None:
        bound_s = min(RETRY_BASE_S * 2**self._attempts, RETRY_MAX_S)
        self._attempts = min(self._attempts + 1, 16)
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed,
                random.uniform(0, bound_s),  # noqa: S311 - no secret
            )

    def _requests(self, session: _Session) -> Iterator[worker_pb2.AttachRequest]:
        """Yield what there is to say, as it comes up. Runs in a thread of gRPC."""
        yield worker_pb2.AttachRequest(greeting=worker_pb2.Greeting(pid=os.getpid()))
        while True:
            with self._changed:
                while (request := self._next_request(session)) is None:
                    if session.is_over or self._is_closed:
                        return
                    self._changed.wait()
            yield request

    def _next_request(self, session: _Session) -> worker_pb2.AttachRequest | None:
        """Return what this stream has yet to carry."""
        # Before a sync, whose answer then says that the step has arrived as well.
        if self._step is not None and session.step_sent < self._steps:
            session.step_sent = self._steps
            return worker_pb2.AttachRequest(step=self._step)
        if self._asked > max(self._confirmed, session.sync_sent):
            session.sync_sent = self._asked
            return worker_pb2.AttachRequest(sync=worker_pb2.Sync(sequence=self._asked))
        return None

    def _tell(self, order: worker_pb2.WorkerOrder | None) -> None:
        if self._receiver is not None:
            self._receiver(order)

    def _on_response(self, response: worker_pb2.AttachResponse) -> None:
        """Act on what the agent says; what a later version of it says is passed over."""
        handler = self._handlers.get(response.WhichOneof("kind") or "")
        if handler is not None:
            with self._changed:
                handler(response)
                self._changed.notify_all()

    def _on_greeted(self, response: worker_pb2.AttachResponse) -> None:
        self._attempts = 0
        if self._greeted is None:  # later ones follow what this process itself has said
            self._greeted = response.greeted

    def _on_synced(self, response: worker_pb2.AttachResponse) -> None:
        self._confirmed = max(self._confirmed, min(response.synced.sequence, self._asked))

    def _on_order(self, response: worker_pb2.AttachResponse) -> None:
        self._order = response.order
        self._tell(response.order)


def attached() -> Attachment:
    """Return this process's conversation with the agent, begun if there is none."""
    with STATE.lock:
        start()
        if STATE.attachment is None:
            assert STATE.config is not None, "`start` has read it"
            STATE.attachment = Attachment(STATE.config)
        return STATE.attachment
