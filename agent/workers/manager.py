"""Shell. This host's workers: what the core wants of them, and what becomes of them."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from agent.core import effects as fx
from agent.core.events import (
    Event,
    GpuMemoryFree,
    SupervisorDied,
    SupervisorNotStarted,
    WorkerStartFailed,
)
from agent.core.model import Assignment
from agent.runtime.file_thread import FilesStalled, FileThread
from agent.runtime.preflight import inherited_environment
from agent.settings.config import AgentConfig
from agent.watchdog.core.model import WorkerKey
from agent.watchdog.runner import Watchdog
from agent.workers.devices.binding import format_cpu_list
from agent.workers.devices.gpus import VISIBLE_DEVICES, device_of
from agent.workers.devices.host import HostDevices
from agent.workers.devices.nvml import visible_gpus
from agent.workers.failures.error_file import read_error_file, read_faults
from agent.workers.failures.evidence import Explainer
from agent.workers.failures.exit_status import describe_ending
from agent.workers.output.files import OutputError, WorkerOutput
from agent.workers.output.lines import exception_in
from agent.workers.supervisor.client import SupervisorClient
from agent.workers.supervisor.messages import (
    Command,
    SignalWorkers,
    StartWorkers,
    SupervisorEvent,
    WorkerError,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerStart,
)
from drumbeat.command.console import write_text
from drumbeat.format import printable
from worker_sdk import context

log = structlog.get_logger()

T = TypeVar("T")

# With which Python ends for an exception that nothing caught.
EXIT_EXCEPTION = 1

PREPARE_TIMEOUT_S = 30.0
"""How long the files of a round may take to be made; then its workers count as not startable."""

EXAMINE_TIMEOUT_S = 2.0
"""How long a failure is not told because what the worker left is still being read."""

CLOSE_TIMEOUT_S = 60.0
"""How long the end may take to show and tidy up: more than a slow console needs."""

STALLED_CLOSE_TIMEOUT_S = 1.0
"""The same on a file system that stands still already."""

BECAUSE_IT_HUNG = "it hung, and this agent ended it; see message and stacks"


class Workers:
    """Starts and stops workers through a supervisor; what happens goes to ``on_event``.

    A mistake of our own on the way there goes to ``on_mistake``.
    """

    def __init__(
        self,
        config: AgentConfig,
        output: WorkerOutput,
        devices: HostDevices,
        on_event: Callable[[Event], None],
        *,
        on_mistake: Callable[[BaseException], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._config = config
        self._output = output
        self._spawn = spawn
        # All that touches `output`, and what workers leave behind, is done by this thread.
        self._files = FileThread()
        self._preparation: asyncio.Task[None] | None = None
        self._behind: list[Command] = []
        self._news: deque[SupervisorEvent | int] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._is_closing = False
        self._devices = devices
        self._submit = on_event
        self._base_environment = inherited_environment()
        self._explainer = Explainer(config.program.script)
        self._supervisor = SupervisorClient(
            on_event=self._hear,
            on_death=self._on_supervisor_death,
            on_mistake=on_mistake,
        )
        self.watchdog = Watchdog(
            config.watchdog,
            output.directory,
            self._signal_worker,
            on_event,
            self._base_environment,
        )

    async def start(self, delay_s: float = 0.0) -> None:
        """Start a supervisor after ``delay_s``, and hand it what was asked for meanwhile."""
        await asyncio.sleep(delay_s)
        try:
            await self._supervisor.start()
        except OSError as error:
            self._submit(SupervisorNotStarted(reason=error.strerror or str(error)))

    async def close(self) -> None:
        """End the supervisor, and with it every worker; then show all they wrote.

        The latter waits for no console and no file system that stands still.
        """
        self._is_closing = True
        self._abandon_start()
        self.watchdog.stopping()
        await self._supervisor.close()
        await self.watchdog.close()
        with suppress(FilesStalled):
            timeout_s = STALLED_CLOSE_TIMEOUT_S if self._files.is_stalled else CLOSE_TIMEOUT_S
            await self._files.run(self._output.close, timeout_s=timeout_s)
        self._files.close()
        self._explainer.close()

    def tell_settings(self) -> None:
        """Log what users may not expect: once, before the first round."""
        if needs_omp_default(self._base_environment, self._config.nproc_per_node):
            log.info(
                "OMP_NUM_THREADS set to 1",
                reason="several workers share this machine's cores; set it yourself to tune it",
            )
        gpus, mode = self._devices.gpus, self._config.numa_binding
        if gpus:
            names = [f"{gpu.index}: {gpu.name}" for gpu in gpus]
            log.info("GPUs found", reason=", ".join(names), gpus=names)
        elif mode and visible_gpus(self._base_environment.get(VISIBLE_DEVICES)):
            why = "the GPUs can't be asked where they are; is nvidia-ml-py installed?"
            log.warning("NUMA binding", reason=f"workers not bound: {why}")

    def execute(self, effect: fx.WorkersEffect) -> None:
        """Do what the core wants of the workers."""
        match effect:
            case fx.StartSupervisor():
                if not effect.is_command_kept:
                    self._forget_commands()
                self._spawn(self.start(effect.delay_s))
            case fx.AwaitGpuMemory():
                self._spawn(self._await_gpu_memory())
            case fx.StartRound():
                self._preparation = self._spawn(self._start_workers(effect.assignment))
            case fx.StopWorkers() | fx.KillWorkers():
                self._abandon_start()
                self.watchdog.stopping(
                    effect.round_id if isinstance(effect, fx.StopWorkers) else None
                )
                self._command(effect)
            case fx.SignalWorkers():
                self._command(effect)
            case fx.WorkerOrder():
                self.watchdog.order(effect)

    def _forget_commands(self) -> None:
        """Drop what was meant for a dead supervisor: the core has counted its workers as lost."""
        self._abandon_start()
        self._supervisor.forget()

    def _abandon_start(self) -> None:
        """Start no workers that are still being prepared: they are not wanted any more."""
        if self._preparation is not None:
            self._preparation.cancel()
        self._end_preparation()

    def _end_preparation(self) -> list[Command]:
        """Return the commands that were kept during a preparation, which has ended."""
        self._preparation = None
        behind, self._behind = self._behind, []
        return behind

    def _command(self, command: Command) -> None:
        """Send a command, or keep it until what it is about is prepared."""
        if self._preparation is not None:
            self._behind.append(command)
        else:
            self._supervisor.send(command)

    def _signal_worker(self, worker: WorkerKey, signum: int) -> None:
        """Send a signal to one worker that hangs, or that the others go on without."""
        # A shell around the worker would keep the one of the default escalation to itself.
        is_for_group = signum in (signal.SIGTERM, signal.SIGKILL)
        self._command(
            SignalWorkers(
                round_id=worker.round_id,
                local_rank=worker.local_rank,
                signum=signum,
                is_for_group=is_for_group,
            )
        )

    async def _start_workers(self, assignment: Assignment) -> None:
        config, base, round_id = self._config, self._base_environment, assignment.round_id
        envs = worker_environments(config, assignment, base.get(VISIBLE_DEVICES))
        try:
            streams = await self._files.run(
                lambda: self._prepare_files(round_id, envs), timeout_s=PREPARE_TIMEOUT_S
            )
        except (OutputError, FilesStalled) as error:
            self._end_preparation()
            is_log_dir = isinstance(error, FilesStalled) and config.log_dir is not None
            message = f"--log-dir {config.log_dir}: {error}" if is_log_dir else str(error)
            self._submit(WorkerStartFailed(round_id=round_id, local_rank=0, message=message))
            return
        for local_rank, env in self.watchdog.prepare(round_id, envs).items():
            envs[local_rank].update(env)
        cpus = self._bind_workers()
        workers = tuple(
            WorkerStart(
                local_rank=local_rank,
                env=env,
                cpus=cpus.get(local_rank, ()),
                stdout=streams[local_rank][0],
                stderr=streams[local_rank][1],
            )
            for local_rank, env in envs.items()
        )
        common = common_environment(base, config.nproc_per_node)
        start = StartWorkers(round_id=round_id, argv=config.command, env=common, workers=workers)
        for command in (start, *self._end_preparation()):
            self._command(command)

    def _prepare_files(
        self, round_id: int, envs: dict[int, dict[str, str]]
    ) -> dict[int, tuple[str, str]]:
        streams = self._output.prepare(round_id, envs)
        self._explainer.begin_round()
        return streams

    def _bind_workers(self) -> Mapping[int, tuple[int, ...]]:
        """Return the CPUs of each worker that is bound to some, and log what is new."""
        bindings, is_new = self._devices.bind(self._config.nproc_per_node)
        if is_new:
            for note in bindings.notes:
                log.warning("NUMA binding", reason=note)
            shown = {str(rank): format_cpu_list(cpus) for rank, cpus in bindings.cpus.items()}
            text = "; ".join(f"local rank {rank}: {cpus}" for rank, cpus in shown.items())
            mode = str(self._config.numa_binding)
            log.info("workers bound to CPUs", reason=f"{mode}, {text}", mode=mode, cpus=shown)
        return bindings.cpus

    async def _await_gpu_memory(self) -> None:
        """Wait, for a bounded time, until the memory of dead workers is free."""
        assert self._devices.memory is not None, "no GPU memory to wait for"
        note = await self._devices.memory.wait(self._config.gpu_memory_wait)
        self._submit(GpuMemoryFree(note=note))

    def _on_supervisor_death(self, returncode: int) -> None:
        self._forget_commands()
        self._hear(returncode)

    def _hear(self, news: SupervisorEvent | int) -> None:
        """Take what the supervisor says, in order: an exit may take a while to be examined."""
        if self._is_closing:
            return
        self._news.append(news)
        if self._reader is None:
            self._reader = self._spawn(self._read_news())

    async def _read_news(self) -> None:
        while self._news:
            match news := self._news.popleft():
                case int(returncode):
                    self._submit(await self._supervisor_died(returncode))
                    continue
                case WorkerExited():
                    news = await self._examine(news)
                case WorkersStarted():
                    self._files.submit(partial(self._explainer.note_workers, news.pids.values()))
                    self.watchdog.started(news.round_id, news.pids)
                case WorkersStopped():
                    self.watchdog.ended(news.round_id)
            self._submit(news)
        self._reader = None

    async def _supervisor_died(self, returncode: int) -> SupervisorDied:
        self.watchdog.ended()
        why = ""
        with suppress(FilesStalled):
            why = await self._read_files(partial(self._explainer.explain, returncode))
        return SupervisorDied(ending=describe_ending(returncode), explanation=why)

    async def _examine(self, exited: WorkerExited) -> WorkerExited:
        """Add why a worker ended; says on the console what stands nowhere else."""
        round_id, local_rank = exited.round_id, exited.local_rank
        hang = self.watchdog.gone(round_id, local_rank, exited.exit_code)
        exited = replace(exited, hang=hang)
        if exited.exit_code == 0 and hang is None:
            self._files.submit(partial(self._output.ended, round_id, local_rank))
            return exited
        try:
            exited, stacks = await self._read_files(partial(self._read_remains, exited))
        except FilesStalled as error:
            why = BECAUSE_IT_HUNG if hang else f"what it left could not be read: {error}"
            return replace(exited, explanation=why)
        if stacks:
            # Python writes them to one place only, and users look for them here.
            write_text(f"{printable(stacks)}\n")
        return exited

    async def _read_files(self, read: Callable[[], T]) -> T:
        """Read what a process left behind, in the thread; at once no more if that stands still."""
        timeout_s = 0.0 if self._files.is_stalled else EXAMINE_TIMEOUT_S
        return await self._files.run(read, timeout_s=timeout_s)

    def _read_remains(self, exited: WorkerExited) -> tuple[WorkerExited, str]:
        """Add what a worker that ended badly left behind, and what that says; blocks.

        Returns the stacks of its crash as well.
        """
        path, kept_error_file, stderr_tail = self._output.ended(exited.round_id, exited.local_rank)
        stacks = read_faults(path) if path is not None else ""
        error = read_error_file(path) if path is not None else None
        is_python = exited.exit_code == EXIT_EXCEPTION  # another traceback is not this one's end
        if error is None and is_python and (what := exception_in(stderr_tail)):
            error = WorkerError(message=what)
        why = BECAUSE_IT_HUNG
        if exited.hang is None:
            why = self._explainer.explain(
                exited.exit_code,
                exited.pid,
                is_stopped=exited.is_stopped,
                error=error,
                stacks=stacks,
            )
        found = replace(
            exited,
            error=error,
            explanation=why,
            stderr_tail=stderr_tail,
            error_file=kept_error_file,
        )
        return found, stacks


def needs_omp_default(base: Mapping[str, str], local_world_size: int) -> bool:
    """Return whether ``OMP_NUM_THREADS`` has to be set: unset, and several workers share cores."""
    return local_world_size > 1 and context.OMP_NUM_THREADS not in base


def common_environment(base: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    """Return what all workers of this host get in every round: ``base``, and some defaults."""
    environment = {context.NCCL_ASYNC_ERROR_HANDLING: "1", **base}
    if needs_omp_default(base, local_world_size):
        environment[context.OMP_NUM_THREADS] = "1"
    return environment


def worker_environments(
    config: AgentConfig, assignment: Assignment, visible_devices: str | None = None
) -> dict[int, dict[str, str]]:
    """Return what each worker is told of a round, by local rank: torchrun's contract, and ours.

    ``visible_devices`` is the agent's own ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    Source of the names and meanings: ``worker_sdk.context``.
    """
    of_round: dict[str, object] = {
        context.WORLD_SIZE: assignment.world_size,
        context.LOCAL_WORLD_SIZE: config.nproc_per_node,
        context.GROUP_RANK: assignment.group_rank,
        context.GROUP_WORLD_SIZE: assignment.group_world_size,
        context.ROLE_NAME: config.role,
        context.ROLE_WORLD_SIZE: assignment.role_world_size,
        context.MASTER_ADDR: assignment.master_addr,
        context.MASTER_PORT: assignment.master_port,
        context.RESTART_COUNT: assignment.restart_count,
        context.MAX_RESTARTS: config.max_restarts,
        context.TORCH_RUN_ID: config.run_id,
        context.SIGNALS_TO_HANDLE: ",".join(config.signals_to_handle),
        context.USE_AGENT_STORE: False,
        context.RUN_ID: config.run_id,
        context.ROUND: assignment.round_id,
    }
    is_virtual, environments = config.virtual_local_rank, {}
    for local_rank in range(config.nproc_per_node):
        own: dict[str, object] = {
            context.LOCAL_RANK: 0 if is_virtual else local_rank,
            context.RANK: assignment.rank_first + local_rank,
            context.ROLE_RANK: assignment.role_rank_first + local_rank,
        }
        if is_virtual:
            own[VISIBLE_DEVICES] = device_of(local_rank, visible_devices)
        environments[local_rank] = {name: str(value) for name, value in (of_round | own).items()}
    return environments
