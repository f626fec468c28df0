"""A client that breaks every rule of the protocol, without pause."""

import contextlib
import itertools
import os
import socket
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Self

import grpc
from google.protobuf.duration_pb2 import Duration

from drumbeat.v1 import (
    common_pb2,
    failure_pb2,
    query_pb2,
    query_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from tests.support.channels import channel_to

CALL_TIMEOUT_S = 10.0
BEATS_PER_SESSION = 2000
RECORDS_PER_STREAM = 200
GARBAGE_BYTES = 64 * 1024
OVERSIZE_BYTES = 4 * 1024 * 1024
SESSIONS_LEFT_OPEN = 20


class Nuisance:
    """Troubles a coordinator from a thread of its own, from enter to exit of its context.

    Its runs are called ``nuisance-…``; records of failures it sends for ``victim_run``, too.
    """

    def __init__(self, address: str, victim_run: str) -> None:
        self._address = address
        self._victim_run = victim_run
        self._stopped = threading.Event()
        self._had_turn = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nuisance")
        self._connections: list[socket.socket] = []
        self.refusals: set[grpc.StatusCode] = set()
        """With what its calls ended."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def wait_for_a_turn(self, timeout_s: float) -> None:
        """Return when it has done everything it does at least once."""
        assert self._had_turn.wait(timeout_s), "the nuisance got stuck"

    def _work(self) -> None:
        with channel_to(self._address) as channel:
            for turn in itertools.count():
                if self._stopped.is_set():
                    return
                self._garbage(is_left_open=turn < SESSIONS_LEFT_OPEN)
                self._sessions(session_pb2_grpc.AgentServiceStub(channel))
                self._records(session_pb2_grpc.AgentServiceStub(channel))
                self._questions(query_pb2_grpc.QueryServiceStub(channel))
                self._had_turn.set()

    def _garbage(self, *, is_left_open: bool) -> None:
        host, _, port = self._address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(b"" if is_left_open else os.urandom(GARBAGE_BYTES))
        self._connections.append(connection)
        if not is_left_open:
            self._connections.pop().close()

    def _sessions(self, stub: session_pb2_grpc.AgentServiceStub) -> None:
        hello = self._hello()
        without_spec = session_pb2.AgentReport()
        without_spec.CopyFrom(hello)
        without_spec.hello.run.ClearField("spec")
        without_name = session_pb2.AgentReport()
        without_name.CopyFrom(hello)
        without_name.hello.run.run_id = "../\x00"
        for requests in (
            iter(()),
            iter([session_pb2.AgentReport()]),
            iter([without_spec]),
            iter([without_name]),
            iter([hello, hello]),
            iter([self._oversized()]),
            self._flood(hello),
        ):
            self._exhaust(stub.OpenSession(requests, timeout=CALL_TIMEOUT_S))

    def _records(self, stub: session_pb2_grpc.AgentServiceStub) -> None:
        for records in (self._forged(), iter([session_pb2.ReportFailuresRequest()])):
            self._exhaust(stub.ReportFailures(records, timeout=CALL_TIMEOUT_S))

    def _questions(self, stub: query_pb2_grpc.QueryServiceStub) -> None:
        try:
            stub.GetRun(query_pb2.GetRunRequest(run_id="no such run"), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            self.refusals.add(error.code())

    def _exhaust(self, responses: Iterable[object]) -> None:
        """Read a stream to its end."""
        try:
            deque(responses, maxlen=0)
        except grpc.RpcError as error:
            self.refusals.add(error.code())

    def _hello(self) -> session_pb2.AgentReport:
        run_id = f"nuisance-{uuid.uuid4().hex[:8]}"
        return session_pb2.AgentReport(
            fence=common_pb2.Fence(run_id=run_id, incarnation=uuid.uuid4().hex),
            hello=session_pb2.Hello(
                run=session_pb2.RunPurpose(
                    run_id=run_id,
                    spec=common_pb2.RunSpec(
                        agents_min=2,
                        agents_max=2,
                        join_timeout=Duration(seconds=600),
                        last_call=Duration(seconds=30),
                        shutdown_timeout=Duration(seconds=30),
                        coordinator_grace=Duration(seconds=600),
                    ),
                ),
                host="nowhere",
                address="127.0.0.1",
                role="default",
                local_world_size=1,
                beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE),
            ),
        )

    def _flood(self, hello: session_pb2.AgentReport) -> Iterator[session_pb2.AgentReport]:
        """One sound registration, then beats without pause, of a session that is not ours."""
        yield hello
        beat = session_pb2.AgentReport(
            fence=hello.fence, beat=session_pb2.Beat(state=session_pb2.GROUP_STATE_FAILED)
        )
        for _ in range(BEATS_PER_SESSION):
            yield beat

    def _oversized(self) -> session_pb2.AgentReport:
        request = self._hello()
        request.hello.host = "x" * OVERSIZE_BYTES
        return request

    def _forged(self) -> Iterator[session_pb2.ReportFailuresRequest]:
        """Failures of agents that nobody knows, in somebody else's run and in none."""
        for sequence in range(1, RECORDS_PER_STREAM + 1):
            run_id = self._victim_run if sequence % 2 else "no-such-run"
            yield session_pb2.ReportFailuresRequest(
                record=failure_pb2.FailureRecord(
                    fence=common_pb2.Fence(run_id=run_id, round_id=0, incarnation=uuid.uuid4().hex),
                    sequence=sequence,
                    age=Duration(seconds=1),
                    host="nowhere",
                    exit_code=1,
                    message="forged",
                )
            )
