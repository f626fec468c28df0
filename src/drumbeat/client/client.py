"""Shell. What a launcher calls: a membership of a run, from any thread."""

from __future__ import annotations

import asyncio
import atexit
import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Self

import structlog

from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.client.config import client_config
from drumbeat.client.errors import ClientError, Verdict
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
        settings |= {"coordinator": coordinator, "run_id": run_id}
        settings["min_nodes"], settings["max_nodes"] = nodes
        config = client_config(launcher, settings)
        if not structlog.is_configured():
            configure_logs(config.log_format, level=config.log_level, program="drumbeat")
        self._changed = threading.Condition()
        # All below is guarded by the condition.
        self._view = View()
        self._held: Assignment | None = None  # whose workers the launcher has
        self._latest_id = -1  # of the rounds that it has taken
        self._workers_count = config.nproc_per_node
        # Belongs to the thread.
        self._folder, self._loop = PrivateDirectory(), asyncio.new_event_loop()
        self._membership = Membership(config, launcher, self._folder, self._show)
        self._thread = threading.Thread(target=self._run, name="drumbeat", daemon=True)
        self._thread.start()
        atexit.register(self.close, f"{launcher} ends")

    def next_assignment(self, timeout_s: float | None = None) -> Assignment:
        """Wait for the next round that this host takes part in, and return its part.

        The workers of the round before must have ended. Raises ``TimeoutError``, and a
        ``ClientError`` when there will be no other round.
        """
        self._report_end()
        with self._changed:
            assignment = self._held = self._wait_for(self._offered, timeout_s)
            self._latest_id = assignment.round_id
        self._call(Membership.took, assignment.round_id)
        return assignment

    def report_running(self) -> None:
        """Say that the workers of the round are started."""
        if (held := self._held) is not None:
            self._call(Membership.started, held.round_id)

    def report_succeeded(self) -> None:
        """Say that all workers of the round on this host exited with 0."""
        ranks = range(self._workers_count)
        self._report_end([WorkerFailure(local_rank=rank, exit_code=0) for rank in ranks])

    def report_failed(self, failure: WorkerFailure, *, is_final: bool = False) -> None:
        """Say that a worker failed and that the launcher has stopped the others of this host.

        ``is_final``: the launcher does not restart them, and the run ends for all hosts. Otherwise
        all hosts are asked to stop, and take part in another round.
        """
        self._report_end([failure], is_final=is_final)

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
            current = view.assignment
            is_current = current is not None and current.round_id == held.round_id
            return view.end is not None or view.is_stopping or not is_current

    @property
    def verdict(self) -> Verdict | None:
        """How the run ended; ``None`` as long as that is not known."""
        return self._view.verdict

    def wait_for_end(self, timeout_s: float | None = None) -> Verdict | None:
        """Wait until this host's part is over; return the verdict if there is one by then."""
        with suppress(ClientError, TimeoutError), self._changed:
            self._wait_for(lambda: None, timeout_s)
        return self.verdict

    def close(self, reason: str = "the launcher leaves") -> None:
        """Leave the run, if it has not ended. A second call does nothing."""
        atexit.unregister(self.close)
        self._call(Membership.leave, reason)
        self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _offered(self) -> Assignment | None:
        view = self._view
        if view.assignment is None or not view.is_starting or view.is_stopping:
            return None
        return view.assignment if view.assignment.round_id > self._latest_id else None

    def _report_end(self, ends: Sequence[WorkerFailure] = (), *, is_final: bool = False) -> None:
        with self._changed:
            held, self._held = self._held, None
        if held is not None:
            self._call(Membership.ended, held.round_id, ends, is_final=is_final)

    def _wait_for(
        self, offered: Callable[[], Assignment | None], timeout_s: float | None
    ) -> Assignment:
        """Wait, with the condition held. Raises ``ClientError`` or ``TimeoutError``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (assignment := offered()) is None:
            if self._view.end is not None:
                raise self._view.end()
            left_s = None if deadline is None else deadline - time.monotonic()
            if not self._changed.wait(left_s) and left_s is not None:
                raise TimeoutError(f"no assignment within {timeout_s:g} s")
        return assignment

    def _call(self, method: Callable[..., None], *arguments: Any, **more: Any) -> None:
        """Have the loop's thread do it, unless the membership has ended meanwhile."""
        with suppress(RuntimeError):  # the loop is closed
            call = partial(method, self._membership, *arguments, **more)
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        reason = "this client is closed"
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner, closing(self._folder):
                runner.run(self._membership.run())
            gc.collect()  # gRPC closes a connection when its channel is freed, which is in a circle
        except BaseException as error:  # noqa: BLE001 - the callers hear of it
            reason = f"the client has failed: {error!r}"
        # Made anew for each caller: one that is raised refers to the frames of its caller.
        self._show(self._view._replace(end=self._view.end or partial(ClientError, reason)))

    def _show(self, view: View) -> None:
        with self._changed:
            self._view = view
            self._changed.notify_all()
