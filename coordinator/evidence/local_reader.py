"""Shell. Calls the services of this process on its event loop, from another thread. Blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextlib import suppress
from typing import Any

from drumbeat.coordinator.api.documents import request_of
from drumbeat.coordinator.api.operations import BY_METHOD, CALL_TIMEOUT_S
from drumbeat.coordinator.api.run_reader import RunReader
from drumbeat.coordinator.core.tokens.caller import TRUSTED
from drumbeat.coordinator.errors import Unavailable
from drumbeat.coordinator.shell.transport.interceptor import set_caller
from drumbeat.coordinator.shell.transport.methods import QUERY, Services

ANSWERS_BYTES_MAX = 16 * 1024 * 1024  # of one call; what comes then is not read

# Returns what serves a method. Raises ``Unavailable``.
FindServices = Callable[[str], Services]


class LocalReader(RunReader):
    """Reads for one archive; ``stacks`` were asked for before."""

    def __init__(self, find_services: FindServices, stacks: asyncio.Task[list[Any]]) -> None:
        self._find, self._stacks = find_services, stacks
        self._loop, self._lock = asyncio.get_running_loop(), threading.Lock()
        self._waiting: futures.Future[Any] | None = None
        self._is_closed = False

    def call(self, method: str, *, timeout_s: float = CALL_TIMEOUT_S, **values: Any) -> Any:
        """Return the answer of a method, or all answers. Raises ``CoordinatorError``."""
        is_early = method == "GetStacks"
        asking = self._early() if is_early else answers(self._find, method, values)
        result = self.wait(asking, timeout_s)
        return result if QUERY.methods_by_name[method].server_streaming else result[0]

    def wait(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Return what comes of ``work``. Raises ``TimeoutError`` or ``Unavailable``."""
        with self._lock:
            if self._is_closed:
                work.close()
                raise Unavailable("the coordinator is stopping")
            self._waiting = waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(timeout_s)
        except futures.CancelledError:
            raise Unavailable("the coordinator is stopping") from None
        finally:
            waiting.cancel()

    def close(self) -> None:
        """End the call that is under way, and those that come."""
        with self._lock:
            self._is_closed = True
            if self._waiting is not None:
                self._waiting.cancel()

    async def _early(self) -> list[Any]:
        return await asyncio.shield(self._stacks)


async def answers(find_services: FindServices, method: str, values: dict[str, Any]) -> list[Any]:
    """Call a method as this process itself. Raises ``CoordinatorError``."""
    set_caller(TRUSTED)
    name, request = BY_METHOD[method].full_name, request_of(method, values)
    context: Any = _Context(request)
    with suppress(_Full):
        await find_services(name).serve(name, request, context)
    return list(context.answers)


class _Full(Exception):
    """The answers are as large as they may be."""


class _Context:
    """To services this is what the context of gRPC is."""

    def __init__(self, request: Any) -> None:
        self._request, self._size = request, 0
        self.answers: list[Any] = []

    async def read(self) -> Any:
        return self._request

    async def write(self, answer: Any) -> None:
        self._size += answer.ByteSize()
        if self.answers and self._size > ANSWERS_BYTES_MAX:
            raise _Full
        self.answers.append(answer)
