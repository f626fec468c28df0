"""Shell. The one owner of an agent's core: feeds it events, executes its effects."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from agent import effects as fx
from agent import supervisor_protocol as supervisor
from agent.config import AgentConfig
from agent.convert import failure_message
from agent.core import AgentCore, AgentPolicy
from agent.devices.host import HostDevices, find_devices
from agent.devices.model import format_cpu_list
from agent.devices.visible import VISIBLE_DEVICES
from agent.environment import (
    Host,
    common_environment,
    needs_omp_default,
    round_environment,
    worker_environments,
)
from agent.error_file import read_error_file, read_faults
from agent.events import (
    DeadlineReached,
    Event,
    GpuMemoryFree,
    PortReserved,
    SessionLost,
    SupervisorDied,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStartFailed,
)
from agent.explain.evidence import Explainer
from agent.failures import signal_name
from agent.launcher import tell_launcher
from agent.launching.files import write_outcome
from agent.launching.outcome import Outcome, OutcomeRecorder
from agent.layout import spool_directory
from agent.model import Assignment, Failure, WorkerError
from agent.output import OutputError, WorkerOutput
from agent.ports import Ports
from agent.preflight import inherited_environment, visible_gpus
from agent.reporter import Reporter
from agent.session import Identity, Session
from agent.signals import take_signals
from agent.spool import Spool, Spooled
from agent.supervisor_client import SupervisorClient, become_subreaper
from agent.telemetry.feed import Telemetry
from agent.transport import Transport, TransportError
from drumbeat.durations import format_duration
from worker_sdk.context import ERROR_FILE

log = structlog.get_logger()

# How long a goodbye may take to leave; nothing depends on it but the others' speed.
GOODBYE_TIMEOUT_S = 1.0


def run(config: AgentConfig) -> int:
    """Run an agent against the coordinator of its configuration; return the exit code.

    Raises ``AgentError``.
    """
    from agent.grpc_transport import GrpcTransport  # noqa: PLC0415 - a standalone agent needs none

    assert config.coordinator is not None, "only a standalone agent has no coordinator"
    transport = GrpcTransport(config.coordinator)
    return asyncio.run(drive(config, transport))


async def drive(config: AgentConfig, transport: Transport) -> int:
    """Run an agent over any transport; return the exit code. Raises ``AgentError``."""
    incarnation = uuid.uuid4().hex
    devices = await find_devices(
        inherited_environment().get(VISIBLE_DEVICES),
        numa_mode=config.numa_binding,
        is_memory_awaited=config.gpu_memory_wait_s > 0,
    )
    spool = Spool(spool_directory(config.run_id), incarnation)
    output = WorkerOutput(config)
    driver = Driver(
        config, transport, incarnation=incarnation, output=output, spool=spool, devices=devices
    )
    try:
        finish = await driver.run()
    finally:
        await driver.close()
        # Whoever reads the console may be slow, and signals still have to arrive.
        await asyncio.to_thread(output.close)
    cause = finish.cause
    if finish.error is not None:
        cause = WorkerError(message=str(finish.error))
    if cause is not None:
        tell_launcher(inherited_environment().get(ERROR_FILE), cause)
    if config.outcome_file is not None:
        write_outcome(config.outcome_file, driver.outcome(finish))
    if finish.error is not None:
        raise finish.error
    if finish.report and config.outcome_file is None:
        print(finish.report, file=sys.stderr, flush=True)
    return finish.exit_code


class Driver:
    """Runs one agent from start to finish."""

    def __init__(
        self,
        config: AgentConfig,
        transport: Transport,
        *,
        incarnation: str,
        output: WorkerOutput,
        spool: Spool,
        devices: HostDevices | None = None,
    ) -> None:
        self._config = config
        self._transport = transport
        self._incarnation = incarnation
        self._output = output
        self._devices = devices or HostDevices()
        self._host = socket.gethostname()
        self._identity: Identity | None = None
        self._core = AgentCore(
            AgentPolicy(
                coordinator=config.coordinator or "within this process",
                local_world_size=config.local_world_size,
                join_timeout_s=config.join_timeout_s,
                coordinator_grace_s=config.coordinator_grace_s,
                shutdown_timeout_s=config.shutdown_timeout_s,
                is_gpu_memory_awaited=self._devices.memory is not None,
            )
        )
        self._telemetry = Telemetry(config, host=self._host)
        self._recorder = OutcomeRecorder(config.local_world_size)
        self._queue: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._finish: fx.Finish | None = None
        self._mistake: BaseException | None = None
        self._ports = Ports()
        self._reporter = Reporter(spool)
        self._explainer = Explainer(config.command)
        self._supervisor = SupervisorClient(
            on_event=self._on_supervisor_event, on_death=self._on_supervisor_death
        )
        self._commands: list[supervisor.Command] = []
        self._session: Session | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._session_task: asyncio.Task[None] | None = None
        self._random = random.Random(incarnation)  # noqa: S311 - jitter
        self._base_environment = inherited_environment()

    async def run(self) -> fx.Finish:
        """Drive the core until it finishes."""
        become_subreaper()
        take_signals(self._config.signals_to_handle, self._submit)
        if needs_omp_default(self._base_environment, self._config.local_world_size):
            log.info(
                "OMP_NUM_THREADS set to 1",
                reason="several workers share this machine's cores; set it yourself to tune it",
            )
        self._tell_devices()
        self._spawn(self._start_supervisor())
        now = time.monotonic()
        self._answer(None, self._core.start(now=now, master_port=self._reserve_port()), now)
        while self._finish is None:
            await self._wait_for_work()
            if self._mistake is not None:
                raise self._mistake
            event = self._queue.popleft() if self._queue else DeadlineReached()
            now = time.monotonic()
            self._answer(event, self._core.handle(event, now=now), now)
        if self._session is not None:
            await self._session.said_all(timeout_s=GOODBYE_TIMEOUT_S)
        return self._finish

    async def close(self) -> None:
        """End whatever is left: workers first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._supervisor.close()
        self._reporter.close()
        self._explainer.close()
        self._ports.close()
        await self._telemetry.close()

    def outcome(self, finish: fx.Finish) -> Outcome:
        """Return how this agent ended, for a program that launched it."""
        return self._recorder.outcome(finish)

    def _submit(self, event: Event) -> None:
        self._queue.append(event)
        self._arrived.set()

    async def _wait_for_work(self) -> None:
        """Return when an event is there or a deadline has come."""
        if self._queue:
            return
        self._arrived.clear()
        loop, due, timer = asyncio.get_running_loop(), self._core.next_deadline(), None
        if due is not None:
            timer = loop.call_later(max(0.0, due - time.monotonic()), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _spawn(self, coroutine: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Let a mistake of ours end the agent rather than leave it waiting for ever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._mistake = self._mistake or error
            self._arrived.set()

    # Effects.

    def _answer(self, event: Event | None, effects: list[fx.Effect], now: float) -> None:
        """Do what the core wants done about an event, and let telemetry know."""
        self._telemetry.saw(event, effects, now=now)
        self._recorder.saw(event, effects)
        self._execute(effects)

    def _execute(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.OpenSession() | fx.CloseSession() | fx.SendBeat() | fx.SendGoodbye():
                    self._execute_session(effect)
                case fx.StartSupervisor():
                    # Meant for the dead one: the core has just counted those workers as lost.
                    self._commands.clear()
                    self._spawn(self._start_supervisor())
                case (
                    fx.AwaitGpuMemory()
                    | fx.StartWorkers()
                    | fx.StopWorkers()
                    | fx.KillWorkers()
                    | fx.SignalWorkers()
                ):
                    self._execute_workers(effect)
                case fx.ReservePort():
                    self._submit(PortReserved(port=self._reserve_port()))
                case fx.ReleasePort():
                    self._ports.release(effect.port)
                case fx.WriteFailure():
                    self._write_failure(effect.failure)
                case fx.Tell():
                    self._tell(effect)
                case fx.Finish():
                    self._finish = effect

    def _execute_workers(self, effect: fx.WorkersEffect) -> None:
        match effect:
            case fx.AwaitGpuMemory():
                self._spawn(self._await_gpu_memory())
            case fx.StartWorkers():
                self._start_workers(effect.assignment)
            case fx.StopWorkers():
                self._command(
                    supervisor.StopWorkers(
                        round_id=effect.round_id,
                        signal=effect.signum,
                        timeout_s=effect.timeout_s,
                    )
                )
            case fx.KillWorkers():
                self._command(supervisor.KillWorkers())
            case fx.SignalWorkers():
                self._command(
                    supervisor.SignalWorkers(round_id=effect.round_id, signal=effect.signum)
                )

    def _execute_session(
        self, effect: fx.OpenSession | fx.CloseSession | fx.SendBeat | fx.SendGoodbye
    ) -> None:
        match effect:
            case fx.OpenSession():
                if self._session_task is not None:
                    self._session_task.cancel()
                self._session = None
                self._session_task = self._spawn(self._hold_session(effect))
            case fx.SendBeat():
                if self._session is not None:
                    self._session.send_beat(effect.beat)
            case fx.SendGoodbye():
                if self._session is not None:
                    self._session.send_goodbye(effect.reason)
            case fx.CloseSession():
                pass  # `close` ends it, after a goodbye has left

    async def _hold_session(self, effect: fx.OpenSession) -> None:
        try:
            identity = await self._identify()
        except TransportError as error:
            self._submit(SessionLost(attempt=effect.attempt, reason=error.reason))
            return
        self._session = Session(
            attempt=effect.attempt,
            config=self._config,
            identity=identity,
            beat=effect.beat,
            on_event=self._submit,
        )
        await self._session.run(
            self._transport,
            self._reporter,
            delay_max_s=effect.delay_max_s,
            random=self._random,
        )

    async def _identify(self) -> Identity:
        """Return who we are; the address is found once. Raises ``TransportError``."""
        if self._identity is None:
            address = self._config.local_addr or await self._transport.address()
            self._identity = Identity(
                incarnation=self._incarnation,
                host=self._host,
                address=address,
                gpus=self._devices.gpus,
            )
        return self._identity

    def _reserve_port(self) -> int:
        """Return a port that is held from now on; 0 if the host has none left."""
        try:
            return self._ports.reserve()
        except OSError as error:
            # Without one this agent can't lead a round; it can still take part.
            log.warning("no port reserved", reason=error.strerror)
            return 0

    def _write_failure(self, failure: Failure) -> None:
        record = failure_message(
            failure,
            run_id=self._config.run_id,
            incarnation=self._incarnation,
            host=self._host,
            role=self._config.role,
        )
        self._reporter.write(
            Spooled(
                incarnation=self._incarnation,
                sequence=failure.sequence,
                happened_at=failure.happened_at,
                record=record,
            )
        )
        ending = signal_name(failure.exit_code) or f"exit code {failure.exit_code}"
        log.warning(
            "worker failed",
            reason=f"rank {failure.rank}, pid {failure.pid}: {ending}",
            **{"run.round": failure.round_id},
        )

    def _tell_devices(self) -> None:
        gpus, mode = self._devices.gpus, self._config.numa_binding
        if gpus:
            names = [f"{gpu.index}: {gpu.name}" for gpu in gpus]
            log.info("GPUs found", gpus=names)
        elif mode and visible_gpus(self._base_environment.get(VISIBLE_DEVICES)):
            why = "the GPUs can't be asked where they are; is nvidia-ml-py installed?"
            log.warning("NUMA binding", reason=f"workers not bound: {why}")

    def _tell(self, effect: fx.Tell) -> None:
        more: dict[str, object] = {}
        if effect.round_id is not None:
            more["run.round"] = effect.round_id
        if effect.time_left_s is not None:
            more["time_left"] = format_duration(round(effect.time_left_s))
        log.info(effect.what, reason=effect.why, **more)

    # Workers.

    async def _start_supervisor(self) -> None:
        try:
            await self._supervisor.start()
        except OSError as error:
            self._submit(SupervisorDied(ending=f"could not be started: {error}"))
            return
        for command in self._commands:
            self._supervisor.send(command)
        self._commands.clear()

    def _command(self, command: supervisor.Command) -> None:
        """Send a command, or keep it until the supervisor is there."""
        if self._supervisor.pid is None:
            self._commands.append(command)
        else:
            self._supervisor.send(command)

    def _start_workers(self, assignment: Assignment) -> None:
        config = self._config
        host = Host(
            run_id=config.run_id,
            role=config.role,
            local_world_size=config.local_world_size,
            restarts_max=config.restarts_max,
            is_local_rank_virtual=config.is_local_rank_virtual,
        )
        # Each with all of the round, for whoever decides on files looks at names of it.
        of_round = round_environment(host, assignment)
        visible = self._base_environment.get(VISIBLE_DEVICES)
        envs = {
            local_rank: {**of_round, **env}
            for local_rank, env in worker_environments(host, assignment, visible_devices=visible)
        }
        try:
            streams = self._output.prepare(assignment.round_id, envs)
        except OutputError as error:
            self._submit(
                WorkerStartFailed(round_id=assignment.round_id, local_rank=0, message=str(error))
            )
            return
        self._explainer.begin_round()
        cpus = self._bind_workers()
        self._command(
            supervisor.StartWorkers(
                round_id=assignment.round_id,
                argv=config.command,
                env=common_environment(self._base_environment, host, assignment),
                workers=tuple(
                    supervisor.WorkerStart(
                        local_rank=local_rank,
                        env=env,
                        cpus=cpus.get(local_rank, ()),
                        stdout=streams[local_rank][0],
                        stderr=streams[local_rank][1],
                    )
                    for local_rank, env in envs.items()
                ),
            )
        )

    def _bind_workers(self) -> Mapping[int, tuple[int, ...]]:
        """Return the CPUs of each worker that is bound to some, and tell people what is new."""
        bindings, is_new = self._devices.bind(self._config.local_world_size)
        if is_new:
            for note in bindings.notes:
                log.warning("NUMA binding", reason=note)
            shown = {str(rank): format_cpu_list(cpus) for rank, cpus in bindings.cpus.items()}
            log.info("workers bound to CPUs", mode=str(self._config.numa_binding), cpus=shown)
        return bindings.cpus

    async def _await_gpu_memory(self) -> None:
        assert self._devices.memory is not None, "a wait for nobody's memory"
        note = await self._devices.memory.wait(self._config.gpu_memory_wait_s)
        self._submit(GpuMemoryFree(note=note))

    def _on_supervisor_event(self, event: supervisor.SupervisorEvent) -> None:
        match event:
            case supervisor.WorkersStarted():
                self._explainer.note_workers(event.pids.values())
                self._submit(WorkersStarted(round_id=event.round_id, pids=event.pids))
            case supervisor.WorkerStartFailed():
                self._submit(
                    WorkerStartFailed(
                        round_id=event.round_id,
                        local_rank=event.local_rank,
                        message=event.message,
                    )
                )
            case supervisor.WorkerExited():
                self._on_worker_exited(event)
            case supervisor.WorkersStopped():
                self._submit(WorkersStopped(round_id=event.round_id, stuck_pids=event.stuck_pids))

    def _on_worker_exited(self, event: supervisor.WorkerExited) -> None:
        self._output.ended(event.round_id, event.local_rank)
        exited = WorkerExited(
            round_id=event.round_id,
            local_rank=event.local_rank,
            pid=event.pid,
            exit_code=event.exit_code,
            is_stopped=event.is_stopped,
            ended_at=event.ended_at,
        )
        self._submit(self._examined(exited) if event.exit_code else exited)

    def _examined(self, exited: WorkerExited) -> WorkerExited:
        """Add what a worker that ended badly left behind, and what that says."""
        path = self._output.error_file(exited.round_id, exited.local_rank)
        stacks = read_faults(path) if path is not None else ""
        error = read_error_file(path) if path is not None else None
        if stacks:
            # Python writes them to one place only, and users look for them here.
            with suppress(OSError, ValueError):  # closed, or nobody reads it any more
                print(stacks, file=sys.stderr, flush=True)
        return replace(
            exited,
            error=error,
            explanation=self._explainer.explain(
                exited.exit_code,
                exited.pid,
                is_stopped=exited.is_stopped,
                error=error,
                stacks=stacks,
            ),
            stderr_tail=self._output.last_lines(exited.round_id, exited.local_rank),
        )

    def _on_supervisor_death(self, returncode: int) -> None:
        self._commands.clear()
        name = signal_name(returncode)
        ending = f"was ended by {name}" if name else f"exited with code {returncode}"
        why = self._explainer.explain_supervisor(returncode)
        self._submit(SupervisorDied(ending=ending, explanation=why))
