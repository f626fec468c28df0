"""Shell. A launcher's membership of a run, in an event loop of its own.

The agent's core decides and its session speaks, as in `agent join`; what the core wants of its
supervisor is what the launcher does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import structlog
from msgspec import Struct

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.notice import report_of
from drumbeat.agent.core.watchdog.model import WatchdogPolicy
from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.runtime.driver import GOODBYE_TIMEOUT_S, CoreRunner, new_identity
from drumbeat.agent.session.access import Access
from drumbeat.agent.session.grpc_transport import GrpcConnection
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.client.errors import ClientError, Verdict, error_of, verdict_of
from drumbeat.model import Assignment, GroupState

log = structlog.get_logger()


class WorkerFailure(Struct, frozen=True, kw_only=True):
    """A worker that failed. ``exit_code`` is negative for a signal."""

    local_rank: int = 0
    exit_code: int = 1
    pid: int = 0
    message: str = ""
    traceback: str = ""


UNASKED = WorkerFailure(message="the launcher stopped its workers and did not say why")


class View(NamedTuple):
    """What a membership shows to other threads."""

    assignment: Assignment | None = None
    is_starting: bool = False
    is_stopping: bool = False
    verdict: Verdict | None = None
    end: Callable[[], ClientError] | None = None  # makes the reason for no other assignment


class Membership(CoreRunner):
    """Belongs to one event loop, in whose thread ``show`` is called."""

    def __init__(
        self,
        config: AgentConfig,
        launcher: str,
        folder: PrivateDirectory,
        show: Callable[[View], None],
    ) -> None:
        # It watches nothing, for it is given no workers.
        watchdog = Watchdog(WatchdogPolicy(), folder, lambda *_: None, lambda _: None, {})
        identity = new_identity(launcher=launcher)
        super().__init__(AgentCore(config), config, folder, identity, watchdog, KeptOutput())
        self._show = show
        self._taken: int | None = None  # the round whose workers the launcher has

    async def run(self) -> None:
        """Take part until the run or the membership ends."""
        config = self._config
        with closing(FileThread("access")) as files:
            access = Access(config, files)
            try:
                await self._drive(partial(GrpcConnection, access, is_proxied=config.use_proxy))
                if self._session is not None:
                    await self._session.said_all(timeout_s=GOODBYE_TIMEOUT_S)
            finally:
                self._ports.keep_only()
                await self._end_tasks()
                await self._watchdog.close()
                self._spool.close()

    def took(self, round_id: int) -> None:
        """Take note that the launcher starts the workers of a round."""
        self._taken = round_id

    def started(self, round_id: int) -> None:
        """Take note that it has started them."""
        self._submit(ev.WorkersStarted(round_id=round_id))

    def ended(
        self, round_id: int, ends: Sequence[WorkerFailure] = (), *, is_final: bool = False
    ) -> None:
        """Take note that all of them have ended, and how: ``exit_code`` 0 is a good end."""
        self._taken, is_stopping = None, self._core.workers.is_stopping
        for end in ends or (() if is_stopping else (UNASKED,)):
            error = WorkerError(message=end.message, traceback=end.traceback)
            self._submit(
                ev.WorkerExited(
                    round_id=round_id,
                    local_rank=min(end.local_rank, self._config.nproc_per_node - 1),
                    pid=end.pid,
                    exit_code=end.exit_code,
                    is_stopped=is_stopping,
                    ended_at=time.monotonic(),
                    error=error if end.exit_code else None,
                    is_final=is_final,
                )
            )
        self._submit(ev.WorkersStopped(round_id=round_id))

    def leave(self, reason: str) -> None:
        """Say goodbye and end."""
        self._execute(fx.SendGoodbye(reason=reason))
        self._finish = self._finish or fx.Finish(exit_code=0)
        self._arrived.set()

    def _answer(self, event: ev.Event | None, effects: list[fx.Effect], now: float) -> None:
        super()._answer(event, effects, now)
        workers, desired = self._core.workers, self._core.desired
        end = None if self._finish is None else partial(error_of, self._finish, desired)
        is_starting, is_stopping = workers.state is GroupState.STARTING, workers.is_stopping
        self._show(View(workers.assignment, is_starting, is_stopping, verdict_of(desired), end))

    def _execute_on_workers(
        self, effect: fx.WorkersEffect | fx.ChecksEffect | fx.Crash | fx.Tell
    ) -> None:
        match effect:
            case fx.StopWorkers() if effect.round_id != self._taken:
                self._submit(ev.WorkersStopped(round_id=effect.round_id))
            case fx.ShowNotice() if not effect.notice.is_over:
                # Training under another launcher hears of no notice, so none is waited for.
                report, round_id = report_of(effect.notice, (), None), effect.notice.round_id
                self._submit(ev.NoticeAnswered(round_id=round_id, report=report))
            case fx.Tell():
                log.info(effect.what, reason=effect.why)
