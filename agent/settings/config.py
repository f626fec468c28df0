"""Pure. What one agent is told: every setting, and the rules that tie them together.

Command line and environment are read in ``agent.settings.cli``, what depends on the host
(devices, files) in ``agent.runtime.preflight``. Argument over environment over default.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from agent.settings.kinds import (
    AGENT_NAME,
    AGENTS_MAX,
    FILTERS,
    HOST,
    HOST_OR_EMPTY,
    LABELS,
    LOGS_SPECS,
    NOWHERE,
    PATH,
    RANKS,
    RESTARTS_MAX,
    RUN_ID,
    SIGNALS,
    SIGNALS_HANDLED,
    STREAMS,
    TEXT,
    WORKERS,
    NumaMode,
)
from drumbeat.command.settings import (
    ADDRESS,
    FLAG,
    LOG_FORMAT,
    LOG_LEVEL,
    PORT,
    USE_PROXY,
    declare,
    limit,
    number,
    one_of,
    printable,
    read_settings,
    seconds,
    setting,
    switch,
)
from drumbeat.violation import Violation

if TYPE_CHECKING:
    from agent.watchdog.core.model import WatchdogPolicy
    from agent.workers.output.std import StdOrMap


class Program(NamedTuple):
    """What the workers run, as it was launched."""

    kind: Literal["script", "module", "program", "function"]
    target: str
    """Path of a script, name of a module, program or function."""
    args: tuple[str, ...] = ()
    """Its arguments; of a function those of the interpreter that runs it."""

    @property
    def script(self) -> str | None:
        """Path of the Python script, None if it is something else."""
        return self.target if self.kind == "script" else None

    @property
    def title(self) -> str:
        """It with its arguments, without the interpreter."""
        if self.kind == "function":
            return self.target
        return " ".join(("-m",) * (self.kind == "module") + (self.target, *self.args))

    def command(self, python: str) -> tuple[str, ...]:
        """Return the argument vector of a worker.

        Python writes unbuffered (``-u``), so that the last lines of a worker that is
        killed are not lost.
        """
        match self.kind:
            case "script":
                return (python, "-u", self.target, *self.args)
            case "module":
                return (python, "-u", "-m", self.target, *self.args)
            case "function":
                return (python, "-P", "-u", *self.args)
        return (self.target, *self.args)


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class JobSettings:
    """What both a command line and a program can say. Durations are in seconds.

    Names are torch's where torch has the same; those of options otherwise.
    """

    coordinator: str | None = setting(
        None, ADDRESS, "Run", "Where the coordinator listens; port 29400 if none is given."
    )
    use_proxy: bool = declare(USE_PROXY._replace(section="Run"))
    run_id: str = setting(
        "",
        RUN_ID,
        "Run",
        "Name of the training job, the same on all its machines: up to 128 characters of "
        "A-Z, a-z, 0-9, '.', '_' and '-'. Made up for a job of one machine.",
        flags=("--run-id", "--rdzv-id"),
        variables=("PET_RDZV_ID",),
    )
    name: str = setting(
        "",
        AGENT_NAME,
        "Run",
        "What reasons and reports call this agent, e.g. to tell several on one host apart.",
        shown_default="the host's, numbered if another agent has it",
    )
    labels: Sequence[str] = setting(
        (),
        LABELS,
        "Run",
        "What readers are told of this machine, e.g. rack=b7,zone=a; nothing is decided by it.",
        shown_default="none",
    )
    min_nodes: int = setting(
        1, number(1, AGENTS_MAX), "", "Machines that train together, at least.", flags=("--nnodes",)
    )
    max_nodes: int = setting(
        1,
        number(1, AGENTS_MAX),
        "",
        "Machines that train together, at most; more stand by.",
        flags=("--nnodes",),
    )
    max_restarts: int = setting(
        # 0 as in torchrun: a script that loads no checkpoints must not start over in silence.
        0,
        number(0, RESTARTS_MAX),
        "Run",
        "Restarts of all workers after one failed, in the whole run. Machines that come "
        "and go cost none.",
        variables=("PET_MAX_RESTARTS",),
    )
    nproc_per_node: int = setting(
        1,
        WORKERS,
        "Workers",
        "Workers on this machine; auto: one per GPU, or per core if there is none.",
        variables=("PET_NPROC_PER_NODE",),
    )
    role: str = setting(
        "default", printable(128), "Workers", "Their role.", variables=("PET_ROLE",)
    )
    virtual_local_rank: bool = setting(
        False,
        FLAG,
        "Workers",
        "Let each worker see its own GPU only, as device 0, and LOCAL_RANK=0.",
        variables=("PET_VIRTUAL_LOCAL_RANK",),
    )
    numa_binding: str | None = setting(
        None,
        one_of([mode.value for mode in NumaMode]),
        "Workers",
        "Run each worker on cores near its GPU: all of its NUMA node or socket, or an "
        "exclusive part or one core complex of its node.",
        shown_default="workers may run on any core",
    )
    gpu_memory_wait: float = setting(
        50.0,  # NVRx's value
        seconds(),
        "Workers",
        "How long a restart waits for the GPU memory of the workers before it, at most.",
    )
    shutdown_timeout: float = setting(
        30.0,  # torchrun's value
        seconds(),
        "Workers",
        "Time that workers have between SIGTERM and SIGKILL.",
        variables=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    )
    startup_timeout: float | None = setting(
        None,
        limit(),
        "Hangs",
        "How long a worker may take to its first heartbeat. What counts as hanging gets its "
        "stacks taken, and is ended.",
        shown_default="none",
    )
    progress_timeout: float | str | None = setting(
        None,
        limit(is_learnable=True),
        "Hangs",
        "Longest time between two heartbeats; auto: learned from those of the run.",
        shown_default="none",
    )
    runtime_timeout: float | None = setting(
        300.0,
        limit(),
        "Hangs",
        "How long no thread of a worker's interpreter may run, e.g. because native code "
        "holds its lock. For workers that use the SDK.",
    )
    exit_timeout: float | None = setting(
        300.0,
        limit(),
        "Hangs",
        "How long a worker's interpreter may take to end. For workers that use the SDK.",
    )
    hang_grace: float = setting(
        5.0, seconds(), "Hangs", "Time that a worker which hangs has between SIGTERM and SIGKILL."
    )
    log_dir: str | None = setting(
        None,
        PATH,
        "Output",
        "Directory for the files of the workers; created if needed.",
        variables=("PET_LOG_DIR",),
    )
    redirects: StdOrMap | str = setting(  # noqa: RUF009
        NOWHERE,
        STREAMS,
        "Output",
        "Streams of the workers that go to files instead of the console: 0 none, 1 stdout, "
        "2 stderr, 3 both; or by local rank, 0:3,1:2.",
        flags=("-r", "--redirects"),
        variables=("PET_REDIRECTS",),
    )
    tee: StdOrMap | str = setting(  # noqa: RUF009
        NOWHERE,
        STREAMS,
        "Output",
        "Streams that go to files and, line by line, to the console; as for --redirects.",
        flags=("-t", "--tee"),
        variables=("PET_TEE",),
    )
    local_ranks_filter: AbstractSet[int] | None = setting(
        None,
        RANKS,
        "Output",
        "Workers whose output is shown on the console; files are not affected.",
        variables=("PET_LOCAL_RANKS_FILTER",),
        shown_default="all",
    )
    log_line_prefix_template: str | None = setting(
        None,
        TEXT,
        "Output",
        "What a line shown by --tee begins with; ${rank} and ${run_id} are known, too.",
        variables=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
        shown_default="[${role_name}${local_rank}]:",
    )
    duplicate_stdout_filters: Sequence[str] | None = setting(
        None,
        FILTERS,
        "Output",
        "Lines of stdout shown by --tee that contain one of these are also collected in one "
        "file; ',,' stands for a comma.",
        variables=("PET_DUPLICATE_STDOUT_FILTERS",),
        shown_default="none",
    )
    duplicate_stderr_filters: Sequence[str] | None = setting(
        None,
        FILTERS,
        "Output",
        "The same for stderr.",
        variables=("PET_DUPLICATE_STDERR_FILTERS",),
        shown_default="none",
    )
    logs_specs: object = setting(
        None,
        LOGS_SPECS,
        "Output",
        "Class of an installed package that decides on the files: an entry point of the "
        "group drumbeat.logs_specs or torchrun.logs_specs.",
        shown_default="ours",
    )
    stderr_capture: bool = setting(
        True,
        switch("on", "off"),
        "Output",
        "Whether the failure report has the last lines of stderr where it is in no file; "
        "off: workers write to the agent's own stderr.",
    )
    local_addr: str | None = setting(
        None,
        HOST,
        "Network",
        "Address at which the other machines reach this one; found if not given.",
        variables=("PET_LOCAL_ADDR",),
    )
    master_addr: str = setting(
        "",
        HOST_OR_EMPTY,
        "Network",
        "MASTER_ADDR of the workers.",
        variables=("PET_MASTER_ADDR",),
        shown_default="the machine of rank 0",
    )
    master_port: int = setting(
        0,
        PORT,
        "Network",
        "MASTER_PORT of the workers; 0: a free one, reserved for each round.",
        variables=("PET_MASTER_PORT",),
    )
    join_timeout: float = setting(
        600.0,  # torchrun's value; a wait of zero would fail every run at its start
        seconds(0.1),
        "Waiting",
        "How long to wait for the coordinator, and for the minimum of machines.",
    )
    last_call: float = setting(
        30.0,  # torchrun's value
        seconds(),
        "Waiting",
        "How long to wait for more machines than the minimum, at most.",
    )
    exit_barrier_timeout: float | None = setting(
        None,
        seconds(0.1),
        "Waiting",
        "How long a machine that is done waits for the others; then it ends with success, "
        "and they train on.",
        shown_default="no limit while they are alive",
    )
    coordinator_grace: float = setting(
        600.0,  # time to move it
        seconds(),
        "Waiting",
        "How long training goes on while the coordinator is away.",
    )
    log_format: str = declare(LOG_FORMAT)
    log_level: str = declare(LOG_LEVEL)
    event_log_handler: str = setting(
        "",
        printable(128, is_optional=True)._replace(metavar="null|console|jsonl|NAME"),
        "Log",
        "Who takes structured events and metrics; NAME is that of an installed handler.",
        variables=("PET_EVENT_LOG_HANDLER",),
        shown_default="jsonl with --event-log-file, else null",
    )
    event_log_file: str | None = setting(
        None,
        PATH._replace(metavar="FILE"),
        "Log",
        "File to which the handler jsonl appends; created if needed.",
    )

    @property
    def is_standalone(self) -> bool:
        """Whether the agent brings its own coordinator and trains on this machine alone."""
        return self.coordinator is None

    @property
    def event_handler(self) -> str:
        """The handler of structured events: that which was named, else what a file asks for."""
        return self.event_log_handler or ("jsonl" if self.event_log_file else "null")

    def validate(self) -> list[Violation]:
        """All rules that the settings break, none if they are sound."""
        found = read_settings(self)[1]
        if found:
            return found
        nodes = f"{self.min_nodes}:{self.max_nodes}"
        if self.is_standalone and nodes != "1:1":
            found.append(Violation("max_nodes", nodes, "1:1, for a standalone agent is alone"))
        elif self.min_nodes > self.max_nodes:
            found.append(Violation("min_nodes", nodes, "a minimum that is not above the maximum"))
        if self.event_handler == "jsonl" and self.event_log_file is None:
            allowed = "the path of a file, for the handler jsonl needs one"
            found.append(Violation("event_log_file", None, allowed))
        return found


@dataclass(frozen=True, kw_only=True)
class AgentConfig(JobSettings):
    """What one agent process is told. Immutable."""

    signals_to_handle: tuple[str, ...] = setting(
        SIGNALS_HANDLED,
        SIGNALS,
        "Workers",
        "Signals that end this agent, and with it its workers, who get the same. "
        "SIGUSR1 and SIGUSR2 go to the workers alone if they are not among them.",
        variables=("PET_SIGNALS_TO_HANDLE",),
    )

    program: Program
    """What the workers run."""

    python: str = "python"
    """The interpreter of the workers."""

    notes: tuple[str, ...] = ()
    """What of the command line is not needed here, for the user."""

    outcome_file: str | None = None
    """Where a program that launched this agent reads how it ended; None: it has not."""

    @property
    def command(self) -> tuple[str, ...]:
        """The complete argument vector of a worker."""
        return self.program.command(self.python)

    @property
    def watchdog(self) -> WatchdogPolicy:
        """When a worker counts as one that hangs."""
        # Imported here: the command line needs none of it.
        from agent.watchdog.core.model import AUTO, WatchdogPolicy  # noqa: PLC0415

        progress = self.progress_timeout
        return WatchdogPolicy(
            startup_timeout_s=self.startup_timeout,
            runtime_timeout_s=self.runtime_timeout,
            progress_timeout_s=AUTO if isinstance(progress, str) else progress,
            exit_timeout_s=self.exit_timeout,
            kill_grace_s=self.hang_grace,
        )

    def validate(self) -> list[Violation]:
        """All rules that the configuration breaks, none if it is sound."""
        found = super().validate()
        if not self.run_id:
            found.append(Violation("run_id", self.run_id, RUN_ID.allowed))
        if not self.program.target:
            found.append(Violation("program", None, "a script, a module or a program to run"))
        return found
