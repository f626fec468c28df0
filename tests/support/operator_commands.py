"""Commands of operators on a coordinator, and coordinators that say the same to all of them."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import pytest

from drumbeat.coordinator import errors
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.wire.session import error_detail
from drumbeat.v1 import control_pb2_grpc, query_pb2_grpc

KEYS = ["A9jD" + "A" * 40, "AkkR" + "B" * 40]


class Done(NamedTuple):
    """How a command ended, and the lines that it wrote."""

    code: int
    out: list[str]
    err: list[str]

    @property
    def text(self) -> str:
        """All that it wrote to standard output."""
        return "\n".join(self.out)

    @property
    def documents(self) -> list[Any]:
        """What it wrote with ``-o json``, or for each line."""
        return [json.loads(line) for line in self.out]


class Operator:
    """Runs commands, as an operator would, on a coordinator."""

    def __init__(self, port: int, capsys: pytest.CaptureFixture[str]) -> None:
        self._access = ("--coordinator", f"127.0.0.1:{port}", "--insecure")
        self._capsys = capsys

    async def __call__(self, line: str) -> Done:
        """Run a command."""
        argv = [*line.split(), *self._access]
        self._capsys.readouterr()  # what the server logs
        code = await asyncio.to_thread(cli.main, argv)
        out, err = self._capsys.readouterr()
        shown = [line for line in out.splitlines() if "[info" not in line]
        return Done(code, shown, err.splitlines())


@contextmanager
def answering(error: errors.CoordinatorError | None, response: Any = None) -> Iterator[str]:
    """Serve a coordinator that says the same to everything; yields its address."""

    def answer(_request: Any, context: Any) -> Any:
        if error is not None:
            metadata = (("drumbeat-error-bin", error_detail(error).SerializeToString()),)
            context.set_trailing_metadata(metadata)
            context.abort(grpc.StatusCode[error.status], str(error))
        return response

    class Servicer:
        def __getattr__(self, _name: str) -> Any:
            return answer

    servicer: Any = Servicer()
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        control_pb2_grpc.add_ControlServiceServicer_to_server(servicer, server)
        query_pb2_grpc.add_QueryServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
