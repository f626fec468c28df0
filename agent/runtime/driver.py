"""Shell. The one owner of an agent's core: feeds it events, executes its effects."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from drumbeat.access.redactor import Redactor, without_named_values
from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import BEAT_PHASE_MIN, AgentCore
from drumbeat.agent.failures.report import render_report
from drumbeat.agent.health.runner import HealthRunner, probes_of
from drumbeat.agent.host.boot_id import read_boot_id
from drumbeat.agent.host.environment import inherited_environment
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.host.private_directory import PrivateDirectory
from drumbeat.agent.lighthouse.relay import QuorumRelay
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.runtime.exchange import outcome_of, write_outcome
from drumbeat.agent.runtime.live_status import LiveStatus
from drumbeat.agent.runtime.status_file import StatusFile
from drumbeat.agent.session.convert import (
    INCARNATION_KEY_BYTES,
    Identity,
    failure_message,
    incarnation_of,
)
from drumbeat.agent.session.log_answers import LogAnswers
from drumbeat.agent.session.session import Session
from drumbeat.agent.session.spool import Spool, Spooled
from drumbeat.agent.session.transport import Connect
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.settings.kinds import parse_port_range
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.handlers import Telemetry
from drumbeat.agent.telemetry.history import History
from drumbeat.agent.telemetry.metrics.tally import AgentSnapshot
from drumbeat.agent.telemetry.status import status_of
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.workers.devices.gpus import VISIBLE_DEVICES, Gpu
from drumbeat.agent.workers.devices.host import HostDevices, find_devices
from drumbeat.agent.workers.devices.usage import GpuUsage
from drumbeat.agent.workers.manager import Workers
from drumbeat.agent.workers.output.files import WorkerOutput
from drumbeat.agent.workers.output.kept import KeptOutput
from drumbeat.agent.workers.ports import Ports
from drumbeat.agent.workers.store.server import Stores
from drumbeat.agent.workers.supervisor import process_tree
from drumbeat.agent.workers.supervisor.process_tree import become_subreaper
from drumbeat.command.console import close_console, write_text
from worker_sdk import context, errors
from worker_sdk.context import ERROR_FILE

if TYPE_CHECKING:
    from drumbeat.agent.lighthouse.endpoint import LighthouseEndpoint

log = structlog.get_logger()

# How long a goodbye, or a message to the launcher, may take: nothing here depends on it.
GOODBYE_TIMEOUT_S = 1.0
# For the workers alone, unless they are among those that end the agent.
FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})


def run(config: AgentConfig) -> int:
    """Run an agent against its coordinator; return the exit code. Raises ``AgentError``."""
    # A standalone agent needs none of it.
    from drumbeat.agent.session.access import Access  # noqa: PLC0415
    from drumbeat.agent.session.grpc_transport import GrpcConnection  # noqa: PLC0415

    with closing(FileThread("access")) as files:
        connect = partial(GrpcConnection, Access(config, files), is_proxied=config.use_proxy)
        return asyncio.run(drive(config, connect))


async def drive(config: AgentConfig, connect: Connect) -> int:
    """Run an agent over any kind of connection; return the exit code. Raises ``AgentError``."""
    with closing(PrivateDirectory()) as directory:
        devices = await find_devices(
            inherited_environment().get(VISIBLE_DEVICES),
            numa_mode=config.numa_binding,
            is_memory_awaited=config.gpu_memory_wait > 0,
        )
        driver = Driver(config, directory, devices)
        try:
            finish = await driver.run(connect)
        finally:
            await driver.close()
        if (cause := cause_of(finish)) is not None:
            tell = partial(tell_launcher, inherited_environment().get(ERROR_FILE), cause)
            with closing(FileThread()) as files, suppress(FilesStalled):
                await files.run(tell, timeout_s=GOODBYE_TIMEOUT_S)
        if config.outcome_file is not None:
            outcome = outcome_of(finish, driver.facts)
            write_outcome(config.outcome_file, outcome)
        if finish.error is not None:
            raise finish.error
        if finish.report and config.outcome_file is None:
            redact = Redactor(inherited_environment(), os.path.exists)
            title = without_named_values(redact(config.program.title))
            write_text(f"{render_report(finish.report, title)}\n")
        return finish.exit_code


def new_identity(gpus: tuple[Gpu, ...] = (), launcher: str = "") -> Identity:
    """Return a new identity, which no agent had before."""
    key = secrets.token_bytes(INCARNATION_KEY_BYTES)
    return Identity(
        incarnation=incarnation_of(key),
        incarnation_key=key,
        host=socket.gethostname(),
        # The coordinator tells by it which run of its name this agent means.
        began_at=time.monotonic() - process_tree.age_s(),
        gpus=gpus,
        boot_id=read_boot_id(),
        launcher=launcher,
    )


class EventQueue(OrderedDict[object, ev.Event]):
    """Events in the order in which they came; a worker's step takes the place of an earlier one."""

    def put(self, event: ev.Event) -> None:
        """Add an event at the end, or put a step where an earlier one waits."""
        self[event.worker if isinstance(event, ev.WorkerStep) else object()] = event

    def take(self) -> ev.Event:
        """Return the first event, and forget it. Raises ``KeyError`` if there is none."""
        return self.popitem(last=False)[1]


class CoreRunner(ABC):
    """Owns a core, its session, spool and ports. A subclass has the workers."""

    def __init__(
        self,
        core: AgentCore,
        config: AgentConfig,
        folder: PrivateDirectory,
        identity: Identity,
        watchdog: Watchdog,
        kept: KeptOutput,
    ) -> None:
        self._core, self._config, self._identity = core, config, identity
        self._watchdog, self._kept = watchdog, kept
        self._queue = EventQueue()
        self._arrived = asyncio.Event()
        self._finish: fx.Finish | None = None
        self._mistake: BaseException | None = None
        ports, loopback = parse_port_range(config.port_range), config.store_loopback
        self._ports = Stores(loopback, ports) if config.serves_store else Ports(ports)
        self._spool = Spool(folder, config, identity)
        self._spool.adopt()
        self._session: Session | None = None
        self._session_task: asyncio.Task[None] | None = None
        self._relay: QuorumRelay | None = None  # of a replica group
        self._tasks: set[asyncio.Task[None]] = set()

    async def _drive(self, connect: Connect) -> fx.Finish:
        """Feed the core until it finishes."""
        self._connect, now = connect, time.monotonic()
        # A program that launches may have seeded `random` itself, alike on all hosts.
        phase = random.SystemRandom().uniform(BEAT_PHASE_MIN, 1.0)
        effects = self._core.start(now=now, master_port=self._reserve_port(), beat_phase=phase)
        self._answer(None, effects, now)
        while self._finish is None:
            await self._wait_for_work()
            if self._mistake is not None:
                raise self._mistake
            event = self._queue.take() if self._queue else ev.DeadlineReached()
            now = time.monotonic()
            self._answer(event, self._core.handle(event, now=now), now)
        return self._finish

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._session = self._session_task = None  # so that its connection is freed

    def _submit(self, event: ev.Event) -> None:
        self._queue.put(event)
        self._arrived.set()

    def _next_deadline(self) -> float | None:
        return self._core.next_deadline()

    async def _wait_for_work(self) -> None:
        """Return when an event is there or a deadline has come."""
        if self._queue:
            return
        self._arrived.clear()
        due = self._next_deadline()
        delay_s = None if due is None else max(0.0, due - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._arrived.wait()

    def _spawn(self, coroutine: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() and not task.cancelling():
            self._fail(RuntimeError(f"a task was cancelled: {task}"))
        elif not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, mistake: BaseException) -> None:
        """Let a mistake of ours end the agent rather than leave it waiting for ever."""
        self._mistake = self._mistake or mistake
        self._arrived.set()

    def _answer(self, _event: ev.Event | None, effects: list[fx.Effect], _now: float) -> None:
        """Execute what the core wants for an event."""
        for effect in effects:
            self._execute(effect)

    def _execute(self, effect: fx.Effect) -> None:
        session = self._session
        match effect:
            case fx.OpenSession():
                self._open(effect)
            case fx.SendBeat() if session is not None:
                session.send_beat(effect.beat)
            case fx.SendGoodbye() if session is not None:
                session.send_goodbye(effect.reason)
            case fx.ReservePort():
                self._ports.keep_only(effect.kept)
                self._submit(ev.PortReserved(port=self._reserve_port()))
            case fx.WriteFailure():
                failure = effect.failure
                record = failure_message(failure, self._config, self._identity)
                key = self._identity.incarnation_key
                self._spool.write(Spooled(failure.happened_at, record, key))
            case fx.Finish():
                self._finish = effect
            case fx.SendBeat() | fx.SendGoodbye():
                pass  # without a session neither can be sent
            case _:
                self._execute_on_workers(effect)

    @abstractmethod
    def _execute_on_workers(
        self, effect: fx.WorkersEffect | fx.ChecksEffect | fx.Crash | fx.Tell
    ) -> None:
        """Execute what is for the workers or for the log."""

    def _open(self, opening: fx.OpenSession) -> None:
        if self._session_task is not None:
            self._session_task.cancel()
        redact = Redactor(inherited_environment(), os.path.exists)
        logs = LogAnswers(self._config.run_id, self._identity, self._kept, redact)
        session = self._session = Session(
            opening, self._config, self._identity, self._submit, self._watchdog, logs
        )
        session.relay = self._relay
        self._session_task = self._spawn(session.run(self._connect, self._spool))
        # gRPC closes a connection when its channel is freed. The error that ended the last
        # session refers to that, and to itself, so that only a collection frees it.
        gc.collect()

    def _reserve_port(self) -> int:
        """Return a port that is held from now on; 0 if the host has none left."""
        try:
            return self._ports.reserve()
        except OSError as error:
            # Without one this agent can't lead a round; it can still take part.
            log.warning("no port reserved", reason=error.strerror)
            return 0


class Driver(CoreRunner):
    """Runs one agent from start to finish."""

    def __init__(self, config: AgentConfig, folder: PrivateDirectory, devices: HostDevices) -> None:
        output = WorkerOutput(config, folder)
        size, now = config.nproc_per_node, time.monotonic()
        identity = new_identity(devices.gpus)
        self._health = HealthRunner(config, probes_of(config, devices.gpus), self._submit)
        core = AgentCore(
            config,
            is_gpu_memory_awaited=devices.is_memory_awaited,
            has_health_checks=self._health.has_checks,
        )
        self._workers = Workers(
            config, output, devices, self._submit, on_mistake=self._fail, spawn=self._spawn
        )
        watchdog = self._workers.watchdog
        watchdog.gpus = GpuUsage(devices.gpus)
        super().__init__(core, config, folder, identity, watchdog, output.kept)
        self.facts = AgentFacts(config.name or identity.host, os.getpid(), identity.began_at, size)
        self._telemetry = Telemetry(config, self.facts, host=identity.host)
        self._history = History(core, self.facts, now=now)
        self._status_file = StatusFile(folder)
        self._gpus = devices.gpus
        self._live = LiveStatus(config, core, self._history, watchdog.standings, now=now)
        self._lighthouse: LighthouseEndpoint | None = None

    async def run(self, connect: Connect) -> fx.Finish:
        """Drive the core until it finishes."""
        become_subreaper()
        config = self._config
        take_signals(config.signals_to_handle, self._submit, config.preemption_signal)
        if config.group is not None:
            await self._serve_lighthouse()
        self._spawn(self._workers.start())
        self._telemetry.serve(self._look, self._gpus)
        finish = await self._drive(connect)
        if self._session is not None:
            if self._session.is_output_read:
                await self._workers.examined()
            if self._session.is_open:
                await self._spool.delivered(timeout_s=GOODBYE_TIMEOUT_S)
            await self._session.said_all(timeout_s=GOODBYE_TIMEOUT_S)
        if finish.is_too_late:
            self._spool.drop()
        return finish

    async def close(self) -> None:
        """End whatever is left: workers first."""
        self._live.close()
        await self._end_tasks()
        self._health.close()
        self._watchdog.gpus.close()
        await self._workers.close()
        if self._lighthouse is not None:
            await self._lighthouse.close()
        self._spool.close()
        self._ports.keep_only()
        await self._telemetry.close()
        await self._status_file.close()

    async def _serve_lighthouse(self) -> None:
        """Serve torchft's lighthouse to the workers of this replica group."""
        # Other agents need no server.
        from drumbeat.agent.lighthouse.endpoint import LighthouseEndpoint  # noqa: PLC0415

        self._relay = QuorumRelay(self._config.run_id, self._identity)
        self._lighthouse = LighthouseEndpoint(self._relay)
        address = await self._lighthouse.start()
        self._workers.environment[context.TORCHFT_LIGHTHOUSE] = address

    def _look(self) -> AgentSnapshot:
        """Say how this agent is, for its metrics."""
        status = status_of(self._config, self._core, self.facts)
        watchdog, round_id = self._workers.watchdog, status.round_id
        return AgentSnapshot(
            status=status,
            role=self._config.role,
            workers_wanted=self._config.nproc_per_node,
            counts=self.facts.counts,
            spooled=self._spool.waiting,
            standings=tuple(watchdog.standings(round_id)),
            memory=watchdog.memory.read(round_id, watchdog.pids(round_id), now=time.monotonic()),
        )

    def _next_deadline(self) -> float | None:
        tellers = (self._core, self._history, self._live)
        instants = (teller.next_deadline() for teller in tellers)
        return min((instant for instant in instants if instant is not None), default=None)

    def _answer(self, event: ev.Event | None, effects: list[fx.Effect], now: float) -> None:
        """Execute what the core wants for an event; inform telemetry and the console."""
        self._telemetry.take(self.facts.saw(event, effects, now=now), now=now)
        super()._answer(event, effects, now)
        self._status_file.put(status_of(self._config, self._core, self.facts))
        # Last: what is said is not more pressing than what is done.
        for line in self._history.saw(event, effects, now=now):
            tell = getattr(log, line.level)
            tell(line.event, message=line.text, **line.details)
        self._live.refresh(now=now)

    def _execute_on_workers(
        self, effect: fx.WorkersEffect | fx.ChecksEffect | fx.Crash | fx.Tell
    ) -> None:
        match effect:
            case fx.RunChecks() | fx.StopChecks():
                self._health.execute(effect, self._workers.environment, self._spawn)
            case fx.Crash():
                log.warning("agent killed", reason="a rehearsal wants it; workers end with it")
                close_console()
                os.kill(os.getpid(), signal.SIGKILL)
            case fx.Tell():
                pass  # the history logs it
            case _:
                if isinstance(effect, fx.StartRound) and self._lighthouse is not None:
                    self._lighthouse.begin_round(effect.assignment.round_id)
                self._workers.execute(effect)


def take_signals(
    names: Sequence[str], submit: Callable[[ev.Event], None], preemption: str | None = None
) -> None:
    """Turn signals into events of the running loop; those with ``names`` end the agent.

    That of a ``preemption`` tells it that its host will go away.
    """
    add = asyncio.get_running_loop().add_signal_handler
    handled = {signal.Signals[name] for name in names}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by ``nohup``
        handled.discard(signal.SIGHUP)
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # where a terminal controls jobs
        add(signal.SIGTSTP, submit, ev.SuspendRequested())
    for signum in handled:
        add(signum, submit, ev.SignalReceived(signum=signum))
    preempting = {signal.Signals[preemption]} if preemption else set()
    for signum in preempting:
        add(signum, submit, ev.SignalReceived(signum=signum, is_preemption=True))
    for signum in FORWARDED - handled - preempting:
        add(signum, submit, ev.SignalReceived(signum=signum, is_for_workers=True))


def cause_of(finish: fx.Finish) -> WorkerError | None:
    """Return the agent's own error or the run's root cause; of several, the first."""
    if finish.error is not None:
        return WorkerError(message=str(finish.error))
    if finish.report is None or not finish.report.root_causes:
        return None
    worker = finish.report.root_causes[0]
    return WorkerError(
        message=worker.message or f"{worker.headline} recorded no error",
        traceback=worker.traceback,
        # An interruption that the worker survived has none.
        error_code=None if worker.is_survived else worker.exit_code,
    )


def tell_launcher(path: str | None, cause: WorkerError) -> None:
    """Leave ``cause`` in this process's own error file, if it has one; a failure is logged."""
    content = errors.compose(cause.message, stack=cause.traceback, error_code=cause.error_code)
    try:
        if path is not None:
            errors.write(path, content)
    except OSError as error:
        log.warning("launcher not told", reason=f"{path}: {error.strerror}")
