"""Shell. Starts, stops and examines this host's workers, as the core wants."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from textwrap import indent
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from drumbeat.access.redactor import Redactor
from drumbeat.agent.core import effects as fx
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.preflight import findings_in
from drumbeat.agent.core.redacted_events import redacted
from drumbeat.agent.core.watchdog.model import WatchdogPolicy, WorkerKey
from drumbeat.agent.failures.error_file import read_error_file, read_faults, with_stacks
from drumbeat.agent.failures.error_rules import ErrorRules
from drumbeat.agent.failures.evidence import Explainer, space_of
from drumbeat.agent.failures.exit_status import (
    ExitEvidence,
    describe_ending,
    describe_full,
    explain,
    out_of_memory,
)
from drumbeat.agent.host.cgroup import WorkersCgroup
from drumbeat.agent.host.environment import inherited_environment
from drumbeat.agent.host.file_thread import FilesStalled, FileThread
from drumbeat.agent.host.memory.growth import LastMemory
from drumbeat.agent.model import messages
from drumbeat.agent.settings import kinds
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.watchdog.runner import Watchdog
from drumbeat.agent.watchdog.stacks import describe_process
from drumbeat.agent.workers.devices.gpus import VISIBLE_DEVICES, device_of
from drumbeat.agent.workers.devices.host import HostDevices
from drumbeat.agent.workers.output.files import OutputError, WorkerOutput
from drumbeat.agent.workers.output.lines import exception_in
from drumbeat.agent.workers.output.rules import describe_fatal
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from drumbeat.agent.workers.supervisor.launch import take_supervisor
from drumbeat.command.console import write_text
from drumbeat.model import Assignment, ReplicaGroup
from drumbeat.restart_rules import parse_rules
from drumbeat.text.format import printable
from worker_sdk import context

log = structlog.get_logger()

T = TypeVar("T")

# Of exec: no later attempt has another answer.
NOT_EXECUTABLE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP}
)
EXIT_EXCEPTION = 1  # with which Python ends for an exception that nothing caught

PREPARE_TIMEOUT_S = 30.0  # for a round's files; then its workers count as not startable
EXAMINE_TIMEOUT_S = 2.0  # for reading what a worker left; its failure is reported after that
CLOSE_TIMEOUT_S = 60.0  # to show and tidy up at the end: more than a slow console needs
STALLED_CLOSE_TIMEOUT_S = 1.0  # the same on a file system that stands still already

OWN_VARIABLES = (
    *(context.RANK, context.LOCAL_RANK, context.WORLD_SIZE, context.LOCAL_WORLD_SIZE),
    *(context.GROUP_RANK, context.GROUP_WORLD_SIZE, context.MASTER_ADDR, context.MASTER_PORT),
    *(context.ROLE_RANK, context.ROLE_NAME, context.ROLE_WORLD_SIZE),
    *(context.RESTART_COUNT, context.MAX_RESTARTS, context.TORCH_RUN_ID, context.USE_AGENT_STORE),
    *(context.SIGNALS_TO_HANDLE, context.RUN_ID, context.ROUND, context.ERROR_FILE),
    *(context.WORKER_DIR, context.WORKER_SOCKET, context.WORKER_TOKEN),
    context.OBSERVER,
)
"""Variables that each worker gets for itself; a module that reads one can't be preloaded."""

# Of torch's flight recorder: to read its default of 2,000 calls takes 60 ms, to read these 5 ms.
RECORDED_CALLS = "200"
UNKILLED_SHOWN_MAX = 8  # of processes that do not die of SIGKILL; more are counted
BECAUSE_OF_A_LINE = "it wrote a line that a fatal pattern matches, and this agent ended it"
BECAUSE_IT_HUNG = "it hung, and this agent ended it; see message and stacks"


class Workers:
    """Starts and stops workers through a supervisor; mistakes of our own go to ``on_mistake``."""

    def __init__(
        self,
        config: AgentConfig,
        output: WorkerOutput,
        devices: HostDevices,
        on_event: Callable[[ev.Event], None],
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
        self._preflight: int | None = None  # the round of it, while that is the latest
        self._news_order = asyncio.Lock()  # it is fair
        self._is_closing = False
        self._full_logged_in: int | None = None  # the latest round in which a full disk was logged
        self._devices = devices
        self._base_environment = base = inherited_environment()
        self._redact = redact = Redactor(base, os.path.exists)
        # All that is known of workers goes this way: to records, telemetry and the console.
        self._error_rules = ErrorRules(parse_rules(tuple(config.restart_rule)))
        self._submit: Callable[[ev.Event], None] = lambda event: on_event(redacted(event, redact))
        # What workers get in every round, without their ranks; complete before the first `start`.
        self.environment = common_environment(
            base, config.nproc_per_node, is_observing=not config.no_observer
        )
        self.environment[context.AGENT_DIR] = str(output.directory.path)
        self.environment |= group_environment(config.group)
        self._cgroup = WorkersCgroup(output.directory.path)
        if context.OMP_NUM_THREADS not in base and context.OMP_NUM_THREADS in self.environment:
            log.info(
                "OMP_NUM_THREADS set to 1",
                reason="several workers share this machine's cores; set it yourself to tune it",
            )
        program = config.program
        self._explainer = Explainer(program.target if program.kind == "script" else None)
        self._supervisor = SupervisorClient(
            on_event=self._hear,
            on_death=self._on_supervisor_death,
            on_mistake=on_mistake,
            launch=self._launch_supervisor,
        )
        self.watchdog = Watchdog(
            watchdog_policy(config),
            output.directory,
            self._signal_worker,
            self._submit,
            base,
            redact=redact,
        )
        if output.rules is not None:
            self.watchdog.look_at_output(output.rules, asyncio.get_running_loop())

    async def start(self, delay_s: float = 0.0) -> None:
        """Start a supervisor after ``delay_s``, and hand it what was asked for meanwhile."""
        await asyncio.sleep(delay_s)
        try:
            await self._supervisor.start(preload_of(self._config, self.environment))
        except OSError as error:
            is_final = error.errno in NOT_EXECUTABLE
            what = f"{sys.executable}: " if is_final else ""
            ending = f"could not be started: {what}{error.strerror or error}"
            self._submit(ev.SupervisorDied(ending=ending, has_lived=False, is_final=is_final))

    async def close(self) -> None:
        """End the supervisor, and with it every worker; then show all they wrote.

        The latter waits for no console and no file system that stands still.
        """
        self._is_closing = True
        self._abandon_start()
        self.watchdog.stopping()
        await self._supervisor.close()
        self._cgroup.close()
        await self.watchdog.close()
        with suppress(FilesStalled):
            timeout_s = STALLED_CLOSE_TIMEOUT_S if self._files.is_stalled else CLOSE_TIMEOUT_S
            await self._files.run(self._output.close, timeout_s=timeout_s)
        self._files.close()
        self._explainer.close()

    async def examined(self) -> None:
        """Return once the last output of workers that are gone is taken in, if it can be."""
        with suppress(FilesStalled):
            await self._read_files(lambda: None)

    def execute(self, effect: fx.WorkersEffect) -> None:
        """Do what the core wants of the workers."""
        match effect:
            case fx.StartSupervisor():
                if not effect.is_command_kept:  # the core has counted its workers as lost
                    self._abandon_start()
                    self._supervisor.forget()
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
                self._supervisor.send(effect)
            case fx.SignalWorkers():
                if self._preparation is None:
                    self._supervisor.send(effect)
                else:  # for workers that are about to be started
                    self._preparation.add_done_callback(lambda _: self._supervisor.send(effect))
            case fx.WorkerOrder():
                self.watchdog.order(effect)
            case fx.ShowNotice(notice=notice):
                self.watchdog.show_notice(notice)
            case fx.JudgeKnown() | fx.HeldReleased():
                self.watchdog.feed(effect)

    def _launch_supervisor(self) -> tuple[int, socket.socket]:
        pid, connection = take_supervisor()
        self._cgroup.add(pid)
        return pid, connection

    def _abandon_start(self) -> None:
        """Start no workers that are still being prepared: they are not wanted any more."""
        if self._preparation is not None:
            self._preparation.cancel()
            self._preparation = None

    def _signal_worker(self, worker: WorkerKey, signum: int) -> None:
        """Send a signal to one worker that hangs, or that the others go on without."""
        self._supervisor.send(
            messages.SignalWorkers(
                round_id=worker.round_id,
                local_rank=worker.local_rank,
                signum=signum,
                # A shell around the worker would keep one of the default escalation to itself.
                is_for_group=signum in (signal.SIGTERM, signal.SIGKILL),
            )
        )

    async def _start_workers(self, assignment: Assignment) -> None:
        config, round_id = self._config, assignment.round_id
        self._preflight = round_id if assignment.is_preflight else None
        envs = worker_environments(config, assignment, self._base_environment.get(VISIBLE_DEVICES))
        self._files.submit(self._explainer.begin_round)
        try:
            streams = await self._files.run(
                lambda: self._output.prepare(round_id, envs), timeout_s=PREPARE_TIMEOUT_S
            )
        except (OutputError, FilesStalled) as error:
            self._preparation = None
            is_log_dir = isinstance(error, FilesStalled) and config.log_dir is not None
            why = f"--log-dir {config.log_dir}: {error}" if is_log_dir else str(error)
            failed = messages.WorkerStartFailed(round_id=round_id, local_rank=0, message=why)
            self._submit(failed)
            return
        for local_rank, env in self.watchdog.prepare(round_id, envs).items():
            envs[local_rank].update(env)
        cpus = self._devices.bind(config.nproc_per_node)
        workers = tuple(
            messages.WorkerStart(
                local_rank=local_rank,
                env=env,
                cpus=cpus.get(local_rank, ()),
                stdout=streams[local_rank][0],
                stderr=streams[local_rank][1],
            )
            for local_rank, env in envs.items()
        )
        self._preparation = None
        self._supervisor.send(
            messages.StartWorkers(
                round_id=round_id,
                argv=config.preflight_command if assignment.is_preflight else config.command,
                env=self.environment,
                workers=workers,
                ignored=ignored_by_workers(config),
            )
        )

    async def _await_gpu_memory(self) -> None:
        note = await self._devices.wait_for_memory(self._config.gpu_memory_wait)
        self._submit(ev.GpuMemoryFree(note=note))

    def _on_supervisor_death(self, returncode: int) -> None:
        self._abandon_start()
        self._hear(returncode)

    def _hear(self, news: messages.SupervisorEvent | int) -> None:
        """Take what the supervisor says, or its exit code."""
        if not self._is_closing:
            self._spawn(self._pass_on(news))

    async def _pass_on(self, news: messages.SupervisorEvent | int) -> None:
        async with self._news_order:  # an exit may take a while to be examined
            match news:
                case int(returncode):
                    self.watchdog.ended()
                    why, ended = "", ExitEvidence(exit_code=returncode)
                    with suppress(FilesStalled):
                        why = await self._read_files(partial(self._explainer.explain, ended))
                    ending = describe_ending(returncode)
                    self._submit(ev.SupervisorDied(ending=ending, explanation=why))
                    return
                case messages.TemplateReported():
                    tell_of_template(news)
                    return
                case messages.WorkersUnkilled():
                    tell_of_unkilled(news)
                    return
                case messages.WorkerExited():
                    news = await self._examine(news)
                case messages.WorkersStarted():
                    self._files.submit(partial(self._explainer.note_workers, news.pids.values()))
                    is_preflight = news.round_id == self._preflight
                    self.watchdog.started(news.round_id, news.pids, is_preflight=is_preflight)
                case messages.WorkersStopped():
                    self.watchdog.ended(news.round_id)
            self._submit(news)

    async def _examine(self, exited: messages.WorkerExited) -> messages.WorkerExited:
        """Add why a worker ended."""
        worker = exited.round_id, exited.local_rank
        exited = replace(exited, hang=self.watchdog.gone(*worker, exited.exit_code))
        if (line := self.watchdog.fatal_line(*worker)) is not None:
            error = messages.WorkerError(message=describe_fatal(line))
            exited = replace(exited, fatal_at=line.at, error=error)
        if exited.round_id == self._preflight:
            with suppress(FilesStalled):
                lines = await self._read_files(partial(self._output.last_lines, *worker))
                exited = replace(exited, preflight=findings_in(lines))
        if exited.exit_code == 0 and not exited.is_faulty:
            self._files.submit(partial(self._output.ended, *worker))
            return exited
        try:
            last = self.watchdog.memory.last_of(*worker, now=exited.ended_at)
            return await self._read_files(partial(self._read_remains, exited, last))
        except FilesStalled as error:
            why = f"its error file and output could not be read: {error}"
            return replace(exited, explanation=_why_ended(exited) or why)

    async def _read_files(self, read: Callable[[], T]) -> T:
        """Read what a process left behind, in the thread; at once no more if that stands still."""
        timeout_s = 0.0 if self._files.is_stalled else EXAMINE_TIMEOUT_S
        return await self._files.run(read, timeout_s=timeout_s)

    def _read_remains(
        self, exited: messages.WorkerExited, last_memory: LastMemory | None
    ) -> messages.WorkerExited:
        """Add what a worker that ended badly left behind, and what that says; blocks."""
        examined = self._read_files_of(exited, last_memory)
        if examined.error is not None:
            matched = self._error_rules.matching(examined.error.message)
            examined = replace(examined, matched_rules=matched)
        space = None if exited.is_stopped else space_of(self._output.log_dir)
        if space is None or not space.is_full:
            return examined
        full = describe_full(space)
        if self._full_logged_in != exited.round_id:
            self._full_logged_in = exited.round_id
            log.warning("log directory full", reason=full)
        return replace(examined, explanation="; ".join(filter(None, (full, examined.explanation))))

    def _read_files_of(
        self, exited: messages.WorkerExited, last_memory: LastMemory | None
    ) -> messages.WorkerExited:
        path, kept, tail = self._output.ended(exited.round_id, exited.local_rank)
        files = self._output.files_of(exited.round_id, exited.local_rank)
        stacks, error = (read_faults(path), read_error_file(path)) if path else ("", None)
        if stacks:
            # Python writes them to one place only, and users look for them here.
            write_text(f"{indent(printable(self._redact(stacks)), '  ')}\n")
        is_python = exited.exit_code == EXIT_EXCEPTION  # another traceback is not this one's end
        if error is None and not stacks and is_python and (what := exception_in(tail)):
            error = messages.WorkerError(message=what)
        if exited.error is not None:  # the line it was ended for comes first
            before = f"\n{error.message}" if error else ""
            error = replace(error or exited.error, message=f"{exited.error.message}{before}")
        examined = replace(
            exited,
            error=with_stacks(error, stacks),
            stderr_tail=tail,
            error_file=kept,
            output_files=files,
        )
        if exited.is_faulty:
            return replace(examined, explanation=_why_ended(exited))
        ended = ExitEvidence(
            exit_code=exited.exit_code,
            pid=exited.pid,
            is_stopped=exited.is_stopped,
            has_error=error is not None,
            has_stacks=bool(stacks),
            last_memory=last_memory,
        )
        ended = self._explainer.completed(ended)
        if what := out_of_memory(ended):
            error = error or messages.WorkerError(message=what)
            examined = replace(examined, error=error, is_out_of_memory=True)
        return replace(examined, explanation=explain(ended))


def _why_ended(exited: messages.WorkerExited) -> str:
    """Return why the agent ended a worker; nothing if it did not."""
    return BECAUSE_IT_HUNG if exited.hang else BECAUSE_OF_A_LINE if exited.fatal_at else ""


def preload_of(config: AgentConfig, env: Mapping[str, str]) -> messages.Preload | None:
    """Return what a supervisor is to keep ready for workers, None for nothing."""
    if not config.is_preloading:
        return None
    return messages.Preload(
        argv=config.command,
        env=env,
        modules=tuple(config.preload),
        script=config.preload_script or "",
        path=config.preload_path,
        own=OWN_VARIABLES,
        is_refreshed=config.preload_refresh,
        timeout_s=config.preload_timeout,
        ignored=ignored_by_workers(config),
    )


def ignored_by_workers(config: AgentConfig) -> tuple[int, ...]:
    """Return the signal that announces the end of the host, unless workers are stopped by it.

    Batch systems send it to all processes of a job: workers that die of it could not save.
    """
    name = config.preemption_signal
    return () if name is None or name in kinds.SIGNALS_HANDLED else (signal.Signals[name],)


def tell_of_unkilled(unkilled: messages.WorkersUnkilled) -> None:
    """Say on the console which processes do not die of SIGKILL, and in what they wait."""
    states = [describe_process(pid) for pid in unkilled.pids[:UNKILLED_SHOWN_MAX]]
    more = len(unkilled.pids) - len(states)
    parts = [*states, *([f"and {more} more"] if more else [])]
    why = f"they are still alive {unkilled.after_s:.0f} s after SIGKILL"
    log.warning(
        "processes can't be killed",
        reason=f"{why}; {'; '.join(parts)}",
        **{"run.round": unkilled.round_id},
    )


def tell_of_template(report: messages.TemplateReported) -> None:
    """Say on the console what became of preloading."""
    is_fine = report.news in (messages.TemplateNews.READY, messages.TemplateNews.RENEWED)
    tell = log.info if is_fine else log.warning
    tell("preloading", message=report.text, news=report.news.value)


def common_environment(
    base: Mapping[str, str], local_world_size: int, *, is_observing: bool = False
) -> dict[str, str]:
    """Return what all workers of this host get in every round: ``base``, and some defaults."""
    defaults = {context.NCCL_ASYNC_ERROR_HANDLING: "1"}
    if local_world_size > 1:  # they share cores
        defaults[context.OMP_NUM_THREADS] = "1"
    if is_observing and context.NCCL_TRACE_BUFFER_SIZE not in base:
        defaults[context.FLIGHT_RECORDER_SIZE] = RECORDED_CALLS
    return defaults | dict(base)


def group_environment(group: ReplicaGroup | None) -> dict[str, str]:
    """Return the variables that tell all workers of a replica group which one it is."""
    if group is None:
        return {}
    return {
        context.REPLICA_GROUP_ID: str(group.index),
        context.NUM_REPLICA_GROUPS: str(group.count),
    }


def worker_environments(
    config: AgentConfig, assignment: Assignment, visible_devices: str | None = None
) -> dict[int, dict[str, str]]:
    """Return the variables of each worker for a round, by local rank: torchrun's, and ours.

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
        context.USE_AGENT_STORE: assignment.has_store,
        context.RUN_ID: config.run_id,
        context.ROUND: assignment.round_id,
    }
    environments = {}
    for local_rank in range(config.nproc_per_node):
        environment = of_round | {
            context.LOCAL_RANK: 0 if config.virtual_local_rank else local_rank,
            context.RANK: assignment.rank_first + local_rank,
            context.ROLE_RANK: assignment.role_rank_first + local_rank,
        }
        if config.virtual_local_rank:
            environment[VISIBLE_DEVICES] = device_of(local_rank, visible_devices)
        environments[local_rank] = {name: str(value) for name, value in environment.items()}
    return environments


def watchdog_policy(config: AgentConfig) -> WatchdogPolicy:
    """Return when a worker counts as one that hangs."""
    return WatchdogPolicy(
        startup_timeout_s=config.startup_timeout or None,
        runtime_timeout_s=config.runtime_timeout or None,
        progress_timeout_s=config.progress_timeout or None,
        exit_timeout_s=config.exit_timeout or None,
        collective_timeout_s=config.collective_timeout or None,
        kill_grace_s=config.hang_grace,
        tells_step_sums=bool(config.straggler_report),
        observes_workers=not config.no_observer,
    )
