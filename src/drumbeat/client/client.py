"""Shell. What a launcher calls: a membership of a run, from any thread."""

from __future__ import annotations

import asyncio
import atexit
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import structlog

from drumbeat.agent.core.model import Exit
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.client.config import client_config
from drumbeat.client.errors import ClientError, Verdict, error_of
from drumbeat.client.membership import Membership, View, WorkerFailure
from drumbeat.command.logs import configure_logs
from drumbeat.model import Assignment

# How long `close` waits for its thread, which says goodbye and closes files.
CLOSE_TIMEOUT_S = 5.0


class Client:
    """Takes part in a run with this host for a launcher that starts the workers itself.

    ``launcher`` is its name in `status`; it counts restarts. ``nodes`` are the fewest and the most
    hosts of a round. Settings are those of `agent join` by their names there (``nproc_per_node``,
    ``name``, ``labels``, ``local_addr``, ``token_file``, ``join_timeout`` …); those that are not
    given may be in the environment, e.g. DRUMBEAT_TOKEN. Raises ``ValueError`` for settings that
    are not allowed. The connection is made in a thread, so this returns at once.
    """

    def __init__(
        self, coordinator: str, run_id: str, launcher: str, nodes: tuple[int, int], **settings: Any
    ) -> None:
        least, most = nodes
        given = {"coordinator": coordinator, "run_id": run_id, "min_nodes": least}
        config = client_config(launcher, {**settings, **given, "max_nodes": most})
        if not structlog.is_configured():
            configure_logs(config.log_format, level=config.log_level, program="drumbeat")
        self._changed = threading.Condition()
        # All below is guarded by the condition.
        self._view: View | None = None
        self._error: BaseException | None = None  # of the thread
        self._held: Assignment | None = None  # whose workers the launcher has
        self._latest: Assignment | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._membership: Membership | None = None
        self._thread = threading.Thread(
            target=self._run, args=(config, launcher), name="drumbeat", daemon=True
        )
        self._thread.start()
        atexit.register(self.close, f"{launcher} ends")

    def next_assignment(self, timeout_s: float | None = None) -> Assignment:
        """Wait for the next round that this host takes part in, and return its part.

        The workers of the round before must have ended. Raises ``TimeoutError``, and a
        ``ClientError`` when there will be no other round.
        """
        self.report_stopped()
        with self._changed:
            self._wait_for(lambda: self._offered() is not None, timeout_s)
            assignment = self._offered()
            assert assignment is not None, "waited for"
            self._held = self._latest = assignment
        return assignment

    def report_running(self) -> None:
        """Say that the workers of the round are started."""
        with self._changed:
            if self._held is not None:
                self._call(Membership.started, self._held.round_id)

    def report_stopped(self) -> None:
        """Say that the launcher has stopped the workers of the round, as it was asked to."""
        if (held := self._take_held()) is not None:
            self._call(Membership.stopped, held.round_id)

    def report_succeeded(self) -> None:
        """Say that all workers of the round on this host exited with 0."""
        if (held := self._take_held()) is not None:
            self._call(Membership.succeeded, held.round_id)

    def report_failed(self, failure: WorkerFailure, *, is_final: bool = False) -> None:
        """Say that a worker failed and that the launcher has stopped the others of this host.

        ``is_final``: the launcher does not restart them, and the run ends for all hosts. Otherwise
        all hosts are asked to stop, and take part in another round.
        """
        if (held := self._take_held()) is not None:
            self._call(Membership.failed, held.round_id, failure, is_final=is_final)

    @property
    def is_stop_wanted(self) -> bool:
        """Whether the workers of the round are to be stopped.

        For another round because a host failed, was lost or waits to join; or for ever: then
        `next_assignment` says why.
        """
        with self._changed:
            held, view = self._held, self._view
            if held is None:
                return False
            if self._error is not None or view is None or view.finish is not None:
                return True
            current = view.assignment
            is_current = current is not None and current.round_id == held.round_id
            return not is_current or view.is_stopping

    @property
    def is_round_held(self) -> bool:
        """Whether the launcher has workers of whose end it has said nothing."""
        with self._changed:
            return self._held is not None

    @property
    def verdict(self) -> Verdict | None:
        """How the run ended; ``None`` as long as that is not known."""
        with self._changed:
            desired = self._view.desired if self._view else None
            if not isinstance(desired, Exit):
                return None
            is_success, reason, cause = desired.is_success, desired.reason, desired.cause
            return Verdict(is_success=is_success, reason=reason, cause=cause)

    def wait_for_end(self, timeout_s: float | None = None) -> Verdict | None:
        """Wait until this host's part is over; return the verdict if there is one by then."""
        with suppress(ClientError, TimeoutError), self._changed:
            self._wait_for(lambda: False, timeout_s)
        return self.verdict

    def close(self, reason: str = "the launcher leaves") -> None:
        """Leave the run, if it has not ended. A second call does nothing."""
        atexit.unregister(self.close)
        with self._changed:
            if not self._is_closed:
                self._call(Membership.leave, reason)
            self._is_closed = True
        self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _offered(self) -> Assignment | None:
        view, latest = self._view, self._latest
        if view is None or view.assignment is None or not view.is_offered:
            return None
        is_old = latest is not None and latest.round_id == view.assignment.round_id
        return None if is_old else view.assignment

    def _take_held(self) -> Assignment | None:
        with self._changed:
            held, self._held = self._held, None
            return held

    def _wait_for(self, is_there: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait, with the condition held. Raises ``ClientError`` or ``TimeoutError``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_there():
            if self._error is not None:
                raise ClientError(f"the client has failed: {self._error}") from self._error
            if self._view is not None and self._view.finish is not None:
                raise error_of(self._view.finish, self._view.desired)
            if self._is_closed:
                raise ClientError("this client is closed")
            left_s = None if deadline is None else deadline - time.monotonic()
            if not self._changed.wait(left_s) and left_s is not None:
                raise TimeoutError(f"no assignment within {timeout_s:g} s")

    def _call(self, method: Callable[..., None], *arguments: Any, **more: Any) -> None:
        """Have the loop's thread do it; the membership may have ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._membership is not None or self._is_closed)
            loop, membership = self._loop, self._membership
        if loop is not None and membership is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: method(membership, *arguments, **more))

    def _run(self, config: AgentConfig, launcher: str) -> None:
        try:
            asyncio.run(self._take_part(config, launcher))
            gc.collect()  # gRPC closes a connection when its channel is freed, which is in a circle
        except BaseException as error:  # noqa: BLE001 - the callers hear of it
            self._error = error
        finally:
            with self._changed:
                self._is_closed, self._loop, self._membership = True, None, None
                self._changed.notify_all()

    async def _take_part(self, config: AgentConfig, launcher: str) -> None:
        membership = Membership(config, launcher, self._show)
        with self._changed:
            self._loop, self._membership = asyncio.get_running_loop(), membership
            self._changed.notify_all()
        await membership.run()

    def _show(self, view: View) -> None:
        with self._changed:
            self._view = view
            self._changed.notify_all()
