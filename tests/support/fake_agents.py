"""Agents of several workers, with a real server and real processes, around one model.

The boards are made as an agent makes them, but nobody watches them.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import grpc

from drumbeat.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.support.boards import BoardDirectory
from tests.support.inprocess.peers import Iterations, Order, Worker
from tests.support.layering import ROOT
from worker_sdk import context

WAIT_S = 60.0

_Outbox = queue.Queue[worker_pb2.AttachResponse | None]


class _Service(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self, agents: FakeAgents) -> None:
        self._agents = agents

    def Attach(  # noqa: N802 - a name of the protocol
        self,
        request_iterator: Iterator[worker_pb2.AttachRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[worker_pb2.AttachResponse]:
        metadata = dict(context.invocation_metadata())
        who = int(str(metadata["authorization"]).rpartition("-")[2])
        outbox: _Outbox = queue.Queue()
        self._agents.attach(who, outbox)
        context.add_callback(lambda: outbox.put(None))
        reader = threading.Thread(target=self._read, args=(who, request_iterator, outbox))
        self._agents.readers.append(reader)
        reader.start()
        while (response := outbox.get()) is not None:
            yield response

    def _read(
        self, who: int, requests: Iterator[worker_pb2.AttachRequest], outbox: _Outbox
    ) -> None:
        try:
            for request in requests:
                kind = request.WhichOneof("kind")
                if kind == "step":
                    self._agents.model.on_step(who, request.step)
                elif kind == "sync":
                    synced = worker_pb2.Synced(sequence=request.sync.sequence)
                    outbox.put(worker_pb2.AttachResponse(synced=synced))
                elif kind == "greeting":
                    outbox.put(worker_pb2.AttachResponse(greeted=worker_pb2.Greeted()))
        except Exception:  # noqa: BLE001 - the stream has ended
            pass
        outbox.put(None)


class FakeAgents:
    """``size`` workers, each a process that runs ``program``; a context manager."""

    def __init__(self, directory: Path, size: int, program: str) -> None:
        self._directory = directory
        self._program = program
        self._exit = ExitStack()
        self._outboxes: dict[int, _Outbox] = {}
        self._latest: dict[int, Order] = {}
        self._ports: list[socket.socket] = []
        self._lock = threading.Lock()
        self.size = size
        self.model = Iterations.of(size, {who: self._sender(who) for who in range(size)})
        self.model.master_port = self._reserve_port
        self.processes: list[subprocess.Popen[str]] = []
        self._waiters: list[threading.Thread] = []
        self.readers: list[threading.Thread] = []
        """Of streams; each ends with its stream."""

    def __enter__(self) -> Self:
        path = self._directory / "agent.sock"
        pool = futures.ThreadPoolExecutor(self.size + 2)
        server = grpc.server(pool)
        service = _Service(self)  # type: ignore[abstract] # of what is not called
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(service, server)
        assert server.add_insecure_port(f"unix:{path}")
        server.start()
        self._exit.callback(pool.shutdown)
        self._exit.callback(lambda: server.stop(0).wait(WAIT_S))
        for who in range(self.size):
            self._start(who, path)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for waiter in self._waiters:
            waiter.join(WAIT_S)
        for process in self.processes:
            process.wait(WAIT_S)
        for reserved in self._ports:
            reserved.close()
        self._exit.close()
        for reader in self.readers:
            reader.join(WAIT_S)

    @property
    def target(self) -> str:
        """Address of the server, as gRPC understands it."""
        return f"unix:{self._directory / 'agent.sock'}"

    def expect(self, who: int) -> None:
        """Count on a worker that the test itself plays."""
        self.model.workers[who] = Worker(self._sender(who), who)

    def attach(self, who: int, outbox: _Outbox) -> None:
        """Have orders to a worker go here from now on."""
        with self._lock:
            self._outboxes[who] = outbox
            if who in self._latest:
                outbox.put(worker_pb2.AttachResponse(order=self._latest[who]))

    def break_streams(self) -> None:
        """Break the stream of each worker."""
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.put(None)

    def results(self) -> list[tuple[int, str]]:
        """Wait for all to end; return exit codes, and what they wrote into their files."""
        found = []
        for who, process in enumerate(self.processes):
            code = process.wait(WAIT_S)
            file = self._directory / f"result-{who}"
            found.append((code, file.read_text() if file.exists() else ""))
        return found

    def _start(self, who: int, path: Path) -> None:
        board = self._exit.enter_context(BoardDirectory(self._directory / f"worker-{who}"))
        env = os.environ | {
            context.RANK: str(who),
            context.LOCAL_RANK: str(who),
            context.WORLD_SIZE: str(self.size),
            context.LOCAL_WORLD_SIZE: str(self.size),
            context.WORKER_DIR: str(board.path),
            context.WORKER_SOCKET: str(path),
            context.WORKER_TOKEN: f"worker-{who}",
            "PYTHONPATH": f"{ROOT}",
            "RESULT": str(self._directory / f"result-{who}"),
            "DIRECTORY": str(self._directory),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen([sys.executable, "-c", self._program], env=env, text=True)
        self.processes.append(process)
        waiter = threading.Thread(target=self._wait, args=(who, process))
        waiter.start()
        self._waiters.append(waiter)

    def _wait(self, who: int, process: subprocess.Popen[str]) -> None:
        if process.wait() != 0:
            self.model.lose(who, f"worker {who} ended with {process.returncode}")

    def _sender(self, who: int) -> Callable[[Order], None]:
        def send(order: Order) -> None:
            with self._lock:
                self._latest[who] = order
                outbox = self._outboxes.get(who)
                if outbox is not None:
                    outbox.put(worker_pb2.AttachResponse(order=order))

        return send

    def _reserve_port(self) -> int:
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self._ports.append(reserved)
        return int(reserved.getsockname()[1])
