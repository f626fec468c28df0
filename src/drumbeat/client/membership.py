"""Shell. A launcher's membership of a run, in an event loop of its own.

The agent's core decides and its session speaks, as in `agent join`; what the core wants of its
supervisor is what the launcher does.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

import structlog
from msgspec import Struct
from msgspec.structs import replace

from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.model import Beat, DesiredState
from drumbeat.agent.core.notice import report_of
from drumbeat.agent.core.watchdog.model import WatchdogPolicy
from drumbeat.agent.host.file_thread import FileThread
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.session.access import Access
from drumbeat.agent.session.convert import (
    INCARNATION_KEY_BYTES,
    Identity,
    failure_message,
    incarnation_of,
)
from drumbeat.agent.session.grpc_transport import GrpcConnection
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.session import Session
from drumbeat.agent.session.spool import Spool, Spooled
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.agent.workers.store.server import Stores
from drumbeat.agent.workers.supervisor import process_tree
from drumbeat.model import Assignment, GroupState

log = structlog.get_logger()

GOODBYE_TIMEOUT_S = 1.0
UNASKED = "the launcher stopped its workers and did not say why"
# Between two events there is at most one call of the launcher; more say nothing new.
EVENTS_MAX = 10_000


class WorkerFailure(Struct, frozen=True, kw_only=True):
    """A worker that failed. ``exit_code`` is negative for a signal."""

    local_rank: int = 0
    exit_code: int = 1
    pid: int = 0
    message: str = ""
    traceback: str = ""


class View(NamedTuple):
    """What a membership shows to other threads. ``finish`` is set when it has ended."""

    assignment: Assignment | None
    is_offered: bool  # and not taken yet
    is_stopping: bool
    desired: DesiredState
    finish: fx.Finish | None = None


class Membership:
    """Belongs to one event loop, but for ``submit``. ``show`` is called in the loop's thread."""

    def __init__(self, config: AgentConfig, launcher: str, show: Callable[[View], None]) -> None:
        self._config, self._show = config, show
        key, now = secrets.token_bytes(INCARNATION_KEY_BYTES), time.monotonic()
        self._identity = Identity(
            incarnation=incarnation_of(key),
            incarnation_key=key,
            host=socket.gethostname(),
            began_at=now - process_tree.age_s(),
            launcher=launcher,
        )
        self._core = AgentCore(config)
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._events: deque[ev.Event] = deque(maxlen=EVENTS_MAX)
        self._held: int | None = None  # the round whose workers the launcher has
        self._is_final = False  # the launcher restarts no more
        self._leaves_for = ""
        self._finish: fx.Finish | None = None
        self._session: Session | None = None
        self._holding: asyncio.Task[None] | None = None
        self._mistake: BaseException | None = None

    async def run(self) -> None:
        """Take part until the run or the membership ends."""
        config, identity = self._config, self._identity
        with closing(PrivateDirectory()) as directory, closing(FileThread("access")) as files:
            connect = partial(GrpcConnection, Access(config, files), is_proxied=config.use_proxy)
            self._connect = connect
            self._stores = Stores(config.store_loopback, config.ports)
            self._spool = Spool(directory, config, identity)
            self._spool.adopt()
            # It watches nothing, for it is given no workers.
            self._watchdog = Watchdog(
                WatchdogPolicy(), directory, lambda *_: None, lambda _: None, {}
            )
            try:
                await self._drive()
            finally:
                if self._holding is not None:
                    self._holding.cancel()
                    await asyncio.gather(self._holding, return_exceptions=True)
                await self._watchdog.close()
                self._spool.close()
                self._stores.keep_only()

    def started(self, round_id: int) -> None:
        """Take note that the launcher has the workers of a round. In the loop."""
        self._held = round_id
        self._submit(ev.WorkersStarted(round_id=round_id))

    def stopped(self, round_id: int) -> None:
        """Take note that it has stopped them: as it was asked to, or because it wants a round."""
        self._held, workers = None, self._core.workers
        current = workers.assignment
        if current is None or current.round_id != round_id or workers.is_stopping:
            self._submit(ev.WorkersStopped(round_id=round_id))
        else:
            self._exited(round_id, WorkerFailure(message=UNASKED))

    def succeeded(self, round_id: int) -> None:
        """Take note that all of them have ended well."""
        self._held = None
        for local_rank in range(self._config.nproc_per_node):
            self._exited(round_id, WorkerFailure(local_rank=local_rank, exit_code=0))
        self._ended(round_id)

    def failed(self, round_id: int, failure: WorkerFailure, *, is_final: bool) -> None:
        """Take note that one has failed and that the launcher has stopped the others."""
        self._held, self._is_final = None, is_final
        self._exited(round_id, failure)
        self._ended(round_id)

    def leave(self, reason: str) -> None:
        """Say goodbye and end."""
        self._leaves_for = reason
        self._arrived.set()

    def _ended(self, round_id: int) -> None:
        """Answer a stop that came before the launcher said how its workers ended."""
        if self._core.workers.is_stopping:
            self._submit(ev.WorkersStopped(round_id=round_id))

    def _exited(self, round_id: int, failure: WorkerFailure) -> None:
        is_good = failure.exit_code == 0
        error = WorkerError(message=failure.message, traceback=failure.traceback)
        self._submit(
            ev.WorkerExited(
                round_id=round_id,
                local_rank=min(failure.local_rank, self._config.nproc_per_node - 1),
                pid=failure.pid,
                exit_code=failure.exit_code,
                is_stopped=self._core.workers.is_stopping,
                ended_at=time.monotonic(),
                error=None if is_good else error,
            )
        )

    def _submit(self, event: ev.Event) -> None:
        self._events.append(event)
        self._arrived.set()

    async def _drive(self) -> None:
        now = time.monotonic()
        self._answer(self._core.start(now=now, master_port=self._reserve_port()))
        while self._finish is None and not self._leaves_for:
            await self._wait_for_work()
            if self._mistake is not None:
                raise self._mistake
            event = self._events.popleft() if self._events else ev.DeadlineReached()
            self._answer(self._core.handle(event, now=time.monotonic()))
        if self._session is not None:
            if self._leaves_for:
                self._session.send_goodbye(self._leaves_for)
            await self._session.said_all(timeout_s=GOODBYE_TIMEOUT_S)

    async def _wait_for_work(self) -> None:
        if self._events:
            return
        self._arrived.clear()
        due = self._core.next_deadline()
        delay_s = None if due is None else max(0.0, due - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._arrived.wait()

    def _answer(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._execute(effect)
        workers, desired = self._core.workers, self._core.desired
        is_stopping = workers.is_stopping
        is_offered = workers.state is GroupState.STARTING and not is_stopping
        self._show(View(workers.assignment, is_offered, is_stopping, desired, self._finish))

    def _execute(self, effect: fx.Effect) -> None:
        session = self._session
        match effect:
            case fx.OpenSession():
                self._open(replace(effect, beat=self._completed(effect.beat)))
            case fx.SendBeat() if session is not None:
                session.send_beat(self._completed(effect.beat))
            case fx.SendGoodbye() if session is not None:
                session.send_goodbye(effect.reason)
            case fx.ReservePort():
                self._stores.keep_only(effect.kept)
                self._submit(ev.PortReserved(port=self._reserve_port()))
            case fx.StopWorkers() if effect.round_id != self._held:
                self._submit(ev.WorkersStopped(round_id=effect.round_id))
            case fx.WriteFailure():
                failure, key = effect.failure, self._identity.incarnation_key
                record = failure_message(failure, self._config, self._identity)
                self._spool.write(Spooled(failure.happened_at, record, key))
            case fx.ShowNotice() if not effect.notice.is_over:
                # Training under another launcher hears of no notice, so none is waited for.
                report = report_of(effect.notice, (), None)
                round_id = effect.notice.round_id
                self._submit(ev.NoticeAnswered(round_id=round_id, report=report))
            case fx.Tell():
                log.info(effect.what, reason=effect.why)
            case fx.Finish():
                self._finish = effect
            case _:
                pass  # what remains is for workers of an agent

    def _open(self, opening: fx.OpenSession) -> None:
        if self._holding is not None:
            self._holding.cancel()
        logs = LogAnswers(self._config.run_id, self._identity, KeptOutput(), str)
        session = self._session = Session(
            opening, self._config, self._identity, self._submit, self._watchdog, logs
        )
        self._holding = asyncio.create_task(session.run(self._connect, self._spool))
        self._holding.add_done_callback(self._on_session_done)

    def _on_session_done(self, task: asyncio.Task[None]) -> None:
        """Let a mistake of ours end the membership rather than leave the launcher waiting."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._mistake = error
            self._arrived.set()

    def _completed(self, beat: Beat) -> Beat:
        is_last = self._is_final and beat.state is GroupState.FAILED
        return replace(beat, is_start_impossible=is_last)

    def _reserve_port(self) -> int:
        """Return a port at which a store listens from now on; 0 if the host has none left."""
        try:
            return self._stores.reserve()
        except OSError as error:
            log.warning("no port reserved", reason=error.strerror)
            return 0
