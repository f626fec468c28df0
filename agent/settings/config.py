"""Pure. What one agent is told: every setting, and the rules that tie them together.

Command line and environment are read in ``drumbeat.agent.cli``, what depends on the host
(devices, files) in ``drumbeat.agent.runtime.preflight``. Argument over environment over default.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal

from drumbeat.access.settings import AccessSettings
from drumbeat.agent.settings import kinds
from drumbeat.agent.settings.placement import SLURM, labels_of
from drumbeat.agent.settings.program import Program as Program  # noqa: PLC0414 - beside it
from drumbeat.agent.settings.rules import job_violations, placement_violations
from drumbeat.command import settings
from drumbeat.command.settings import FLAG, declare, limit, printable, seconds, setting, switch
from drumbeat.model import ReplicaGroup
from drumbeat.text.addresses import parse_addresses
from drumbeat.text.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumbeat.agent.settings.std import StdOrMap


# Unless `--coordinator-grace` is given: time to move a coordinator; and for a machine that reaches
# none of several, which is most likely cut off, while its ranks have been taken over elsewhere.
GRACE_S, ISOLATION_GRACE_S = 600.0, 60.0


def _section(name: str) -> Callable[..., Any]:
    """Return what declares the settings of one section of the help, and shows "none" for None."""

    def declared(default: Any, kind: settings.Kind, about: str, **more: Any) -> Any:
        shown = more.pop("shown_default", "none" if default in (None, ()) else "")
        return setting(default, kind, name, about, shown_default=shown, **more)

    return declared


_run, _workers, _hangs, _output = map(_section, ("Run", "Workers", "Hangs", "Output"))
_network, _waiting, _log, _health = map(_section, ("Network", "Waiting", "Log", "Health"))


@dataclass(frozen=True, kw_only=True, init=False, eq=False, repr=False)
class JobSettings(AccessSettings):
    """What both a command line and a program can say. Durations are in seconds.

    Names are torch's where torch has the same; those of options otherwise.
    """

    coordinator: str | None = _run(
        None,
        settings.ADDRESSES,
        "Address of the coordinator. The port is 29400 unless given. For several coordinators, "
        "list all addresses: the agent finds the leader.",
        shown_default="",
    )
    use_proxy: bool = declare(settings.USE_PROXY._replace(section="Run"))
    run_id: str = _run(
        "",
        kinds.RUN_ID,
        "Name of the job, the same on all its machines: up to 128 characters of A-Z, a-z, 0-9, "
        "'.', '_' and '-'. A job on one machine gets a name such as train-k7f2qd.",
        flags=("--run-id", "--rdzv-id"),
        variables=("PET_RDZV_ID",),
    )
    replica_group: tuple[int, int] | None = _run(
        None,
        kinds.REPLICA_GROUP,
        "Which replica group of the job this machine belongs to, e.g. 0/4. Each group is a run of "
        "its own, e.g. ft.0: a failure restarts only its group. Needs --coordinator and --run-id.",
        shown_default="the job has no groups",
    )
    min_groups: int = _run(
        1,
        kinds.GROUPS_MIN,
        "End the job once fewer replica groups than this can still train or have succeeded. All "
        "groups need the same value.",
    )
    name: str = _run(
        "",
        kinds.AGENT_NAME,
        "Name of this agent in logs and reports.",
        shown_default="the host's, numbered if another agent has it",
    )
    labels: Sequence[str] = _run(
        (),
        kinds.LABELS,
        "Labels shown by `status` and the page, e.g. rack=b7,zone=a. Only --rank-order and "
        "--block-label give them a meaning.",
    )
    rank_order: Sequence[str] = _run(
        (),
        kinds.RANK_ORDER,
        "Give hosts with the same value of these labels neighbouring ranks, by the first label "
        "first, e.g. zone,rack. slurm: by the switches that Slurm names, else by task. All "
        "machines of the run need the same value.",
    )
    block_label: str | None = _run(
        None,
        kinds.LABEL_NAME,
        "Seat hosts with the same value of this label together or not at all, --block-size of "
        "them, e.g. the hosts of an NVLink domain. The others stand by.",
    )
    block_size: int = _run(
        0,
        kinds.BLOCK_SIZE,
        "Machines of a block. Both numbers of --nnodes must be multiples of it.",
    )
    preflight: str | None = _run(
        None,
        kinds.COMMAND,
        "Command that all machines run once before the first round, started like the workers. "
        "Ranks that the last line of a worker names (drumbeat: exclude 3,5: reason) are left out "
        "of the run with their machines. Without such a line a failure is one of a worker.",
    )
    preflight_timeout: float = _run(
        600.0, seconds(0.1), "Time limit of the preflight; one that exceeds it has failed."
    )
    min_nodes: int = setting(1, kinds.NODES, "", "Minimum number of machines.", flags=("--nnodes",))
    max_nodes: int = setting(
        1, kinds.NODES, "", "Maximum number of machines; others stand by.", flags=("--nnodes",)
    )
    max_restarts: int = _run(
        # 0 as in torchrun: a script that loads no checkpoints must not start over in silence.
        0,
        kinds.RESTARTS,
        "How often all workers may restart after a failure, in the whole run. Machines that "
        "join or leave are not counted.",
    )
    restart_delay_max: float = _run(
        60.0,
        seconds(),
        "Longest wait before a restart. The first restart is immediate; without progress the next "
        "ones wait 1 s, 2 s, 4 s and so on. 0: never wait.",
    )
    restart_window: float | None = _run(
        None,
        seconds(0.1),
        "Count only restarts within this time against --max-restarts, which is 10000 at most then.",
        shown_default="the whole run",
    )
    no_progress_limit: int = _run(
        0,
        kinds.RESTARTS,
        "End the run with exit code 5 after N restarts in a row without a new farthest step. "
        "0: no limit.",
    )
    restart_rule: Sequence[str] = _run(
        (),
        kinds.RESTART_RULES,
        "What to do after a failure, by its root cause; the first rule that matches counts. "
        "Repeatable. Example: exit=42:fail",
    )
    restart_rules: str | None = _run(
        None, kinds.FILE, "File with restart rules, one per line; # begins a comment."
    )
    free_restarts_max: int = _run(
        20, kinds.RESTARTS, "How many restarts rules may leave uncharged; more are charged."
    )
    exclude_after: int = _run(
        0,
        kinds.EXCLUDE_AFTER,
        "Exclude a host for a while that is blamed for N failed rounds in a row. 0: never.",
    )
    exclude_window: float = _run(
        3600.0, seconds(0.1), "Time within which these rounds have to fail."
    )
    exclude_for: float = _run(3600.0, seconds(0.1), "How long such a host is excluded.")
    host_identity: str | None = _run(
        None,
        kinds.LABEL_NAME,
        "Label of --labels whose value identifies this machine, e.g. serial: a replacement under "
        "the same name is not excluded.",
        shown_default="the kernel's boot id",
    )
    nproc_per_node: int = _workers(
        1,
        kinds.WORKERS,
        "Workers on this machine: a number, or one per device of a torch type such as xpu. "
        "auto: one per accelerator, or per core if there is none.",
    )
    role: str = _workers("default", printable(128), "Role of the workers.")
    virtual_local_rank: bool = _workers(
        False, FLAG, "Each worker sees only its own GPU, as device 0, with LOCAL_RANK=0."
    )
    numa_binding: str | None = _workers(
        None,
        kinds.NUMA,
        "Bind each worker to cores near its GPU: the NUMA node, the socket, an exclusive part "
        "of the node, or one core complex.",
        shown_default="workers may run on any core",
    )
    gpu_memory_wait: float = _workers(  # by default as NVRx
        50.0,
        seconds(),
        "How long a restart waits for the previous workers' GPU memory to be freed.",
    )
    shutdown_timeout: float = _workers(
        30.0,  # torchrun's value
        seconds(),
        "Grace period between SIGTERM and SIGKILL.",
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    )
    preload: Sequence[str] = _workers(
        (),
        kinds.MODULES,
        "Import these modules once on this machine and fork the workers from that process, so "
        "that a restart does not wait for imports. torch includes what DistributedDataParallel "
        "and FSDP import later.",
    )
    preload_script: str | None = _workers(
        None, kinds.FILE, "Python script to run once before workers are forked, after --preload."
    )
    preload_refresh: bool = _workers(
        False,
        FLAG,
        "Preload again after each round, not only after a file outside site-packages changed.",
    )
    preload_timeout: float = _workers(
        300.0,  # a shared file system that a thousand machines read at once
        seconds(0.1),
        "Time limit of preloading; after it workers start without.",
    )
    no_observer: bool = _hangs(
        False,
        FLAG,
        "Do not run the thread in each Python worker that answers for its stacks and collectives.",
    )
    startup_timeout: float | None = _hangs(
        None,
        limit(),
        "Time limit for a worker's first heartbeat. A worker that exceeds this limit is "
        "reported with its stacks and killed.",
    )
    progress_timeout: float | Literal["auto", "report"] | None = _hangs(
        "report",
        limit("auto", "report"),
        "Time limit between two heartbeats. A worker that exceeds a duration, or auto (a limit "
        "learned from the run), is killed; with report it is only reported.",
    )
    collective_timeout: float | Literal["report"] | None = _hangs(
        "report",
        limit("report"),
        "How long no process group of any rank may move while a rank waits in a collective. With "
        "a duration the run is restarted or ends; with report it is only reported, after 5 min.",
    )
    runtime_timeout: float | None = _hangs(
        300.0,
        limit(),
        "How long the interpreter of a worker that uses the SDK may run no thread, e.g. because "
        "native code holds the GIL.",
    )
    exit_timeout: float | Literal["report"] | None = _hangs(
        "report",
        limit("report"),
        "Time limit for the interpreter of a worker that uses the SDK to exit. A worker that "
        "exceeds a duration is killed; with report it is only reported, after 5 min.",
    )
    hang_grace: float = _hangs(
        5.0, seconds(), "Grace period between SIGTERM and SIGKILL of a worker that hangs."
    )
    hang_pattern: Sequence[str] = _hangs(
        (),
        kinds.HANG_PATTERNS,
        "A line of each worker's output must match REGEX at least once per DURATION. A worker "
        "that exceeds it is reported with its stacks and killed. Repeatable. Counting begins "
        "with the worker's first match; --startup-timeout limits the time before, for workers "
        "with heartbeats.",
    )
    fatal_pattern: Sequence[str] = _hangs(
        (),
        kinds.FATAL_PATTERNS,
        "End a worker at once when a line of its output matches REGEX: only a restart helps. "
        "Repeatable.",
    )
    health_check: Sequence[str] = _health(
        (),
        kinds.HEALTH_COMMANDS,
        "Command that checks this machine before its first round and after each failure on it. "
        "Exit code 0: the machine is healthy; else it takes part in no round until a later try "
        "succeeds. Repeatable: commands run one after the other.",
    )
    health_check_timeout: float = _health(
        60.0, seconds(0.1), "Time limit of each --health-check; after it the command is killed."
    )
    health_checks: Sequence[str] = _health(
        kinds.HEALTH_CHECKS,
        kinds.HEALTH_NAMES,
        "Built-in checks, run at the same times; clock only warns, when the agent connects.",
        shown_default="those of gpu,nic,disk,memory,clock that apply to this machine",
    )
    health_path: Sequence[str] = _health(
        (),
        kinds.HEALTH_PATHS,
        "Directory that the check disk looks at too: it must be writable and have SIZE free, by "
        "default 100 MB. Repeatable.",
    )
    straggler_report: tuple[float, int] | float | bool | None = _hangs(
        None,
        kinds.STRAGGLER,
        "Report ranks whose steps take longer than FACTOR times the median of their role, for "
        "STEPS steps in a row (1.5 and 20 unless given). All machines of the run need the same "
        "value.",
        shown_default="none is reported",
        bare="1.5,20",
    )
    log_dir: str | None = _output(
        None,
        kinds.PATH,
        "Directory for output files of workers; created if needed.",
        shown_default="",
    )
    redirects: StdOrMap | str = _output(  # noqa: RUF009
        kinds.NOWHERE,
        kinds.STREAMS,
        "Write these streams of workers to files instead of the console: 0 none, 1 stdout, 2 "
        "stderr, 3 both; or by local rank, 0:3,1:2.",
        flags=("-r", "--redirects"),
    )
    tee: StdOrMap | str = _output(  # noqa: RUF009
        kinds.NOWHERE,
        kinds.STREAMS,
        "Write these streams to files and to the console, as for --redirects.",
        flags=("-t", "--tee"),
    )
    local_ranks_filter: AbstractSet[int] | None = _output(
        None,
        kinds.RANKS,
        "Show only the output of these local ranks on the console; files are not affected.",
        shown_default="all",
    )
    log_line_prefix_template: str | None = _output(
        None,
        kinds.TEXT,
        "Prefix of lines shown by --tee; ${rank} and ${run_id} can be used, too.",
        variables=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
        shown_default="[${role_name}${local_rank}]:",
    )
    duplicate_stdout_filters: Sequence[str] | None = _output(
        None,
        kinds.FILTERS,
        "Also collect lines of stdout shown by --tee that contain one of these texts in one "
        "file; ',,' stands for a comma.",
    )
    duplicate_stderr_filters: Sequence[str] | None = _output(
        None, kinds.FILTERS, "The same for stderr."
    )
    logs_specs: object = _output(
        None,
        kinds.LOGS_SPECS,
        "Class that decides where output goes: an entry point of the group drumbeat.logs_specs "
        "or torchrun.logs_specs.",
        shown_default="ours",
    )
    stderr_capture: bool = _output(
        True,
        switch("on", "off"),
        "Keep the last lines of stderr for the failure report. off: workers write to the "
        "agent's own stderr.",
    )
    stdout_capture: bool = _output(
        True,
        switch("on", "off"),
        "Keep the end of stdout for `coordinator logs`. off: workers write to the agent's own "
        "stdout.",
    )
    preemption_signal: str | None = _workers(
        None,
        kinds.SIGNAL,
        "Signal that announces that this machine will go away. Training gets a notice and may "
        "save, then this agent leaves and the others go on. Workers ignore SIGUSR1 and the like "
        "unless they handle them.",
    )
    preemption_grace: float = _workers(
        30.0,  # that of Kubernetes
        seconds(),
        "How long the machine stays after that signal. The last quarter, at most "
        "--shutdown-timeout, is for stopping workers.",
    )
    local_addr: str | None = _network(
        None,
        kinds.HOST,
        "Address at which other machines reach this one; detected unless given.",
        shown_default="",
    )
    master_addr: str = _network(
        "",
        kinds.HOST_OR_EMPTY,
        "MASTER_ADDR of the workers.",
        shown_default="the machine of rank 0",
    )
    master_port: int = _network(
        0, settings.PORT, "MASTER_PORT of the workers. 0: a free port, reserved for each round."
    )
    port_range: str = _network(
        "",
        kinds.PORT_RANGE,
        "Ports from which that free port is taken, for firewalls; on one machine several jobs may "
        "share them.",
        shown_default="any port",
    )
    agent_store: bool = _network(
        True,
        switch("on", "off"),
        "Agents serve torch's store at MASTER_PORT, so that it outlives rank 0. off: rank 0 "
        "listens there itself.",
    )
    join_timeout: float = _waiting(  # as torchrun; a wait of zero would fail every run at its start
        600.0,
        seconds(0.1),
        "How long to wait for the coordinator and for the minimum number of machines.",
    )
    last_call: float = _waiting(  # as torchrun
        30.0,
        seconds(),
        "How long to wait for more machines than the minimum. The wait also ends when no "
        "machine has joined for a tenth of this time.",
    )
    exit_barrier_timeout: float | None = _waiting(
        None,
        seconds(0.1),
        "How long a machine whose workers have succeeded waits for the others. Then it exits "
        "with 0, and they train on.",
        shown_default="no limit while they are alive",
    )
    coordinator_grace: float | None = _waiting(
        None,
        seconds(),
        "How long training goes on while the coordinator cannot be reached.",
        shown_default="10m; of several coordinators 1m while this machine reaches none",
    )
    log_format: str = declare(settings.LOG_FORMAT)
    log_level: str = declare(settings.LOG_LEVEL)
    event_log_handler: str = _log(
        "",
        printable(128, is_optional=True)._replace(metavar="null|console|jsonl|NAME"),
        "Handler of structured events and metrics; NAME is an installed handler.",
        shown_default="jsonl with --event-log-file, else null",
    )
    event_log_file: str | None = _log(
        None,
        kinds.FILE,
        "File that the handler jsonl appends to; created if needed.",
        shown_default="",
    )
    metrics_port: str | None = _log(
        None,
        kinds.METRICS_PORT,
        "Serve metrics of this machine for Prometheus at http://ADDR:PORT/metrics, on the loopback "
        "address unless another one is given; 0 takes a free port. Needs the extra "
        "drumbeat[metrics].",
    )
    metrics_cert: str | None = _log(
        None,
        kinds.FILE,
        "Certificate for --metrics-port, in PEM. Certificate, key and token are read again at "
        "each scrape.",
        shown_default="none; metrics are in plain text",
    )
    metrics_key: str | None = _log(None, kinds.FILE, "Key of --metrics-cert, in PEM.")
    metrics_token_file: str | None = _log(
        None,
        kinds.FILE,
        "File with the token that a scrape must send (Authorization: Bearer); mode 0600.",
        shown_default="none; everyone who reaches the port may scrape",
    )

    @property
    def is_standalone(self) -> bool:
        """Whether the agent brings its own coordinator and trains on this machine alone."""
        return self.coordinator is None

    @property
    def grace_s(self) -> float:
        """How long training goes on while the coordinator is away."""
        return GRACE_S if self.coordinator_grace is None else self.coordinator_grace

    @property
    def isolation_grace_s(self) -> float:
        """The same while no host of a coordinator answers."""
        is_told = self.coordinator_grace is not None
        return self.grace_s if is_told or not self.knows_several else ISOLATION_GRACE_S

    @property
    def knows_several(self) -> bool:
        """Whether it was given the addresses of several coordinators."""
        return self.coordinator is not None and len(parse_addresses(self.coordinator)) > 1

    @property
    def serves_store(self) -> bool:
        """Whether it serves torch's store; at a port that is given rank 0 makes it, as ever."""
        return self.agent_store and not self.master_port

    @property
    def store_loopback(self) -> str:
        """MASTER_ADDR of a store that only this host needs: a loopback address, else empty."""
        alone = "127.0.0.1" if self.is_standalone else ""
        address = self.master_addr or self.local_addr or alone
        try:
            return address if ip_address(address).is_loopback else ""
        except ValueError:
            return ""

    @property
    def straggler_rule(self) -> tuple[float, int]:
        """The factor and the steps after which a rank is reported as slow; zeros: none is."""
        return kinds.STRAGGLER.read(self.straggler_report) or (0.0, 0)

    @property
    def output_patterns(self) -> tuple[kinds.OutputPattern, ...]:
        """What is looked for in the output of workers."""
        hang, fatal = map(kinds.hang_pattern, self.hang_pattern), self.fatal_pattern
        return (*hang, *map(kinds.fatal_pattern, fatal))

    @property
    def is_preloading(self) -> bool:
        """Whether workers are to be forked from a process that has imported something."""
        return bool(self.preload or self.preload_script)

    @property
    def event_handler(self) -> str:
        """The handler of structured events: that which was named, else what a file asks for."""
        return self.event_log_handler or ("jsonl" if self.event_log_file else "null")

    def validate(self) -> list[Violation]:
        """All rules that the settings break, none if they are sound."""
        return settings.read_settings(self)[1] or placement_violations(self) or job_violations(self)


@dataclass(frozen=True, kw_only=True)
class AgentConfig(JobSettings):
    """What one agent process is told. Immutable."""

    signals_to_handle: tuple[str, ...] = _workers(
        kinds.SIGNALS_HANDLED,
        kinds.SIGNALS,
        "Signals that end this agent, and with it its workers, who get the same. "
        "SIGUSR1 and SIGUSR2 go to the workers alone if they are not among them.",
    )

    job: str = ""  # the id of the job, once ``run_id`` is that of its replica group
    slurm_place: tuple[str, ...] = ()  # of this host, if ranks are ordered by it
    preflight_command: tuple[str, ...] = ()  # the argument vector of a worker of the preflight
    is_run_id_made_up: bool = False  # no other agent comes for this run
    program: Program
    python: str = "python"  # interpreter of the workers
    notes: tuple[str, ...] = ()  # for the user: what of the command line is not needed here
    preload_path: tuple[str, ...] = ()  # what the program puts first on its path for modules
    outcome_file: str | None = None  # for a program that launched this agent: how that ended

    @property
    def group(self) -> ReplicaGroup | None:
        """The replica group that the run is."""
        if self.replica_group is None:
            return None
        index, count = self.replica_group
        job = self.job or self.run_id
        return ReplicaGroup(job=job, index=index, count=count, groups_min=self.min_groups)

    def in_group(self) -> AgentConfig:
        """Return the same with the run id of the replica group, if it has one."""
        group = self.group
        return self if group is None else replace(self, run_id=group.run_id, job=group.job)

    @property
    def placement(self) -> tuple[str, ...]:
        """Where this host is, the outermost place first."""
        labels = labels_of(self.labels)
        is_slurm = self.rank_order == (SLURM,)
        return self.slurm_place if is_slurm else tuple(labels[name] for name in self.rank_order)

    @property
    def block(self) -> str:
        """The block that this host belongs to; empty if there are none."""
        return labels_of(self.labels)[self.block_label] if self.block_label is not None else ""

    @property
    def identity(self) -> str:
        """What tells this machine from another of its name; empty: the boot id is to."""
        return labels_of(self.labels)[self.host_identity] if self.host_identity else ""

    @property
    def command(self) -> tuple[str, ...]:
        """The complete argument vector of a worker."""
        return self.program.command(self.python)

    def validate(self) -> list[Violation]:
        """All rules that the configuration breaks, none if it is sound."""
        missing = [] if self.run_id else [Violation("run_id", self.run_id, kinds.RUN_ID.allowed)]
        return [*super().validate(), *missing]
