"""Shell. This host's workers: what the core wants of them, and what becomes of them."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from agent.core import effects as fx
from agent.core.events import (
    Event,
    GpuMemoryFree,
    InprocessStepTaken,
    SupervisorDied,
    SupervisorNotStarted,
    WorkerStartFailed,
)
from agent.core.inprocess.model import WorkerStep
from agent.core.model import Assignment
from agent.runtime.file_thread import FilesStalled, FileThread
from agent.runtime.preflight import inherited_environment
from agent.settings.config import AgentConfig
from agent.watchdog.core.model import WorkerKey
from agent.watchdog.runner import Watchdog
from agent.workers.devices.gpus import visible_gpus
from agent.workers.devices.host import HostDevices
from agent.workers.devices.model import format_cpu_list
from agent.workers.devices.visible import VISIBLE_DEVICES
from agent.workers.environment import (
    common_environment,
    needs_omp_default,
    worker_environments,
)
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
from drumbeat.command.logs import write_text
from drumbeat.format import printable

log = structlog.get_logger()

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
            self._on_step,
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

    def forget_commands(self) -> None:
        """Drop what was meant for a dead supervisor: the core has counted its workers as lost."""
        self._abandon_start()
        self._supervisor.forget()

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
                    self.forget_commands()
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
            case fx.OrderWorker():
                key = WorkerKey(effect.round_id, effect.local_rank)
                self.watchdog.order(key, effect.order)

    def _abandon_start(self) -> None:
        """Start no workers that are still being prepared: they are not wanted any more."""
        if self._preparation is not None:
            self._preparation.cancel()
            self._preparation = None
        self._behind.clear()

    def _command(self, command: Command) -> None:
        """Send a command, or keep it until what it is about is prepared."""
        if self._preparation is not None:
            self._behind.append(command)
        else:
            self._supervisor.send(command)

    def _signal_worker(self, worker: WorkerKey, signum: int) -> None:
        """Send a signal to one worker that hangs, or that the others go on without."""
        self._command(
            SignalWorkers(
                round_id=worker.round_id,
                local_rank=worker.local_rank,
                signum=signum,
                # A shell around the worker would keep the one of the default escalation to itself.
                is_for_group=signum in (signal.SIGTERM, signal.SIGKILL),
            )
        )

    def _on_step(self, worker: WorkerKey, step: WorkerStep) -> None:
        self._submit(
            InprocessStepTaken(round_id=worker.round_id, local_rank=worker.local_rank, step=step)
        )

    async def _start_workers(self, assignment: Assignment) -> None:
        config, base = self._config, self._base_environment
        envs = worker_environments(config, assignment, base.get(VISIBLE_DEVICES))
        try:
            streams = await self._files.run(
                lambda: self._prepare_files(assignment.round_id, envs),
                timeout_s=PREPARE_TIMEOUT_S,
            )
        except (OutputError, FilesStalled) as error:
            self._preparation = None
            self._behind.clear()
            self._submit(
                WorkerStartFailed(
                    round_id=assignment.round_id, local_rank=0, message=self._where(error)
                )
            )
            return
        for local_rank, env in self.watchdog.prepare(assignment.round_id, envs).items():
            envs[local_rank].update(env)
        cpus = self._bind_workers()
        behind, self._preparation = tuple(self._behind), None
        self._behind.clear()
        self._command(
            StartWorkers(
                round_id=assignment.round_id,
                argv=config.command,
                env=common_environment(base, config.nproc_per_node),
                workers=tuple(
                    WorkerStart(
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
        for command in behind:
            self._command(command)

    def _prepare_files(
        self, round_id: int, envs: dict[int, dict[str, str]]
    ) -> dict[int, tuple[str, str]]:
        streams = self._output.prepare(round_id, envs)
        self._explainer.begin_round()
        return streams

    def _where(self, error: OutputError | FilesStalled) -> str:
        """Say what was wrong with the workers' files, and with which."""
        if isinstance(error, FilesStalled) and self._config.log_dir is not None:
            return f"--log-dir {self._config.log_dir}: {error}"
        return str(error)

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
        self.forget_commands()
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
                    await self._on_death(returncode)
                case WorkerExited():
                    await self._on_worker_exit(news)
                case _:
                    self._on_report(news)
        self._reader = None

    def _on_report(self, report: WorkersStarted | WorkerStartFailed | WorkersStopped) -> None:
        match report:
            case WorkersStarted():
                self._files.submit(partial(self._explainer.note_workers, report.pids.values()))
                self.watchdog.started(report.round_id, report.pids)
            case WorkersStopped():
                self.watchdog.ended(report.round_id)
            case WorkerStartFailed():
                pass
        self._submit(report)

    async def _on_worker_exit(self, exited: WorkerExited) -> None:
        round_id, local_rank = exited.round_id, exited.local_rank
        hang = self.watchdog.gone(round_id, local_rank, exited.exit_code)
        exited = replace(exited, hang=hang)
        if exited.exit_code == 0 and hang is None:
            self._files.submit(partial(self._output.ended, round_id, local_rank))
            self._submit(exited)
            return
        timeout_s = 0.0 if self._files.is_stalled else EXAMINE_TIMEOUT_S
        stacks = ""
        try:
            exited, stacks = await self._files.run(
                partial(self._examined, exited), timeout_s=timeout_s
            )
        except FilesStalled as error:
            why = BECAUSE_IT_HUNG if hang else f"what it left could not be read: {error}"
            exited = replace(exited, explanation=why)
        self._submit(exited)
        if stacks:
            # Python writes them to one place only, and users look for them here.
            write_text(f"{printable(stacks)}\n")

    def _examined(self, exited: WorkerExited) -> tuple[WorkerExited, str]:
        """Add what a worker that ended badly left behind, and what that says; in the thread.

        Returns the stacks of its crash as well.
        """
        self._output.ended(exited.round_id, exited.local_rank)
        path = self._output.error_file(exited.round_id, exited.local_rank)
        stacks = read_faults(path) if path is not None else ""
        error = read_error_file(path) if path is not None else None
        stderr_tail = self._output.last_lines(exited.round_id, exited.local_rank)
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
        kept = self._output.kept_error_file(exited.round_id, exited.local_rank)
        found = replace(
            exited, error=error, explanation=why, stderr_tail=stderr_tail, error_file=kept
        )
        return found, stacks

    async def _on_death(self, returncode: int) -> None:
        self.watchdog.ended()
        why = ""
        with suppress(FilesStalled):
            why = await self._files.run(
                partial(self._explainer.explain, returncode),
                timeout_s=0.0 if self._files.is_stalled else EXAMINE_TIMEOUT_S,
            )
        self._submit(SupervisorDied(ending=describe_ending(returncode), explanation=why))
