"""Pure. What a program says of the job that it launches.

Fields that ``torch.distributed.launcher.api.LaunchConfig`` (2.13.0) has too have its
names and places. What it says of a rendezvous is left out: ``coordinator`` names the
one place where that is decided.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Literal, cast

from agent.errors import InvalidConfiguration
from agent.settings.config import AgentConfig
from agent.settings.output_config import NOWHERE, OutputConfig
from agent.watchdog.core.model import AUTO, Limit, WatchdogPolicy
from agent.workers.devices.numa import NumaMode
from agent.workers.output.std import Std, StdOrMap
from drumbeat.violation import Violation

_FIELD_OF_AGENT = {
    "agents_max": "max_nodes",
    "agents_min": "min_nodes",
    "coordinator_grace_s": "coordinator_grace",
    "exit_barrier_timeout_s": "exit_barrier_timeout",
    "exit_timeout_s": "exit_timeout",
    "gpu_memory_wait_s": "gpu_memory_wait",
    "join_timeout_s": "join_timeout",
    "kill_grace_s": "hang_grace",
    "last_call_s": "last_call",
    "local_world_size": "nproc_per_node",
    "progress_timeout_s": "progress_timeout",
    "restarts_max": "max_restarts",
    "runtime_timeout_s": "runtime_timeout",
    "shutdown_timeout_s": "shutdown_timeout",
    "startup_timeout_s": "startup_timeout",
}

_STREAMS_ALLOWED = (
    "Std.OUT and the like, a map of these by local rank, or a text of 0 (none), 1 (stdout), "
    '2 (stderr), 3 (both), for each local rank as in "0:3,1:2"'
)

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number of seconds"),
    "float | None": ((int, float, type(None)), "a number of seconds, or None"),
    "float | str | None": ((int, float, str, type(None)), "a number of seconds, a text, or None"),
    "str": ((str,), "a text"),
    "str | None": ((str, type(None)), "a text, or None"),
    "bool": ((bool,), "True or False"),
    "StdOrMap | str": ((int, dict, str), _STREAMS_ALLOWED),
    "set[int] | None": ((set, frozenset, list, tuple, type(None)), "local ranks, or None"),
    "list[str] | None": ((list, tuple, type(None)), "a list of texts, or None"),
    "object": ((object,), ""),
}

AUTO_WORD = "auto"


@dataclass(frozen=True)
class LaunchConfig:
    """One job, as this host takes part in it. Durations are in seconds.

    Raises:
        InvalidConfiguration: Names every field that is impossible.
    """

    min_nodes: int
    """Fewest hosts that train together."""
    max_nodes: int
    """Most hosts; more stand by."""
    nproc_per_node: int
    """Workers on this host."""
    _: KW_ONLY
    coordinator: str | None = None
    """Address "host:port" of ``coordinator serve``; None: this host trains alone."""
    run_id: str = ""
    """Name of the job, the same on all its hosts. Empty: made up, for a job of one host."""
    role: str = "default"
    """Role of this host's workers."""
    max_restarts: int = 3
    """Restarts after failed workers that the whole job may use; torch's default."""
    monitor_interval: float = 0.1
    """No meaning: the end of a worker is told, not looked for."""
    start_method: str = "spawn"
    """Only "spawn": every worker is a new interpreter."""
    local_addr: str | None = None
    """Address at which the other hosts reach this one; None: found."""
    master_addr: str = ""
    """Fixed MASTER_ADDR; empty: the host of rank 0."""
    master_port: int = 0
    """Fixed MASTER_PORT; 0: a free one each round."""
    join_timeout: float = 600.0
    """How long to wait for the coordinator, and for ``min_nodes`` hosts."""
    last_call: float = 30.0
    """How long to wait for more hosts than ``min_nodes``, at most."""
    exit_barrier_timeout: float | None = None
    """How long hosts that are done wait for the others; None: while they are alive."""
    coordinator_grace: float = 600.0
    """How long training goes on while the coordinator is away."""
    shutdown_timeout: float = 30.0
    """From SIGTERM to SIGKILL for workers."""
    virtual_local_rank: bool = False
    """Whether each worker sees its own GPU only, and has LOCAL_RANK 0."""
    numa_binding: str | None = None
    """How workers are bound to CPUs near their GPUs; the modes of ``agent join``."""
    gpu_memory_wait: float = 50.0
    """How long a restart waits for the GPU memory of the workers before it, at most."""
    startup_timeout: float | None = None
    """How long a worker may take to its first heartbeat; None: for ever."""
    progress_timeout: float | str | None = None
    """Longest time between two heartbeats; "auto": learned from those of the job."""
    runtime_timeout: float | None = 300.0
    """How long no thread of a worker's interpreter may run, if it uses ``worker_sdk``."""
    exit_timeout: float | None = 300.0
    """How long a worker's interpreter may take to end, if it uses ``worker_sdk``."""
    hang_grace: float = 5.0
    """From SIGTERM to SIGKILL for a worker that hangs."""
    log_dir: str | None = None
    """Directory for the workers' files, created if needed; None: they are not kept."""
    redirects: StdOrMap | str = Std.NONE
    """Streams of workers that go to files instead of the console."""
    tee: StdOrMap | str = Std.NONE
    """Streams of workers that go to files and, line by line, to the console."""
    local_ranks_filter: set[int] | None = None
    """Only these workers may write to the console; None: all."""
    logs_specs: object = None
    """What decides on the files instead: an object, or the name of an installed package's."""
    log_line_prefix_template: str | None = None
    """What a teed line begins with, as for ``agent join``; None: ``[<role><local rank>]:``."""
    duplicate_stdout_filters: list[str] | None = None
    """Teed lines of stdout that contain one of these are also collected in one file."""
    duplicate_stderr_filters: list[str] | None = None
    """The same for stderr."""
    stderr_capture: bool = True
    """Whether the last lines of stderr are kept for the report where they are in no file."""
    log_format: str = "auto"
    """How the agent's own log is written: auto, console or json."""
    log_level: str = "info"
    """The least that the agent logs: debug, info, warning or error."""
    event_log_handler: str = ""
    """Who takes structured events; empty: jsonl if there is a file, else nobody."""
    event_log_file: str | None = None
    """The file to which "jsonl" appends, created if needed."""

    def __post_init__(self) -> None:
        violations = self._violations_of_types() or self._violations()
        if violations:
            raise InvalidConfiguration(tuple(violations))

    def agent_config(
        self,
        command: tuple[str, ...],
        *,
        run_id: str,
        name: str = "",
        outcome_file: str | None = None,
    ) -> AgentConfig:
        """Return what this host's agent is told: the job as above, with these workers."""
        handler = self.event_log_handler or ("jsonl" if self.event_log_file else "null")
        return AgentConfig(
            coordinator=self.coordinator,
            is_standalone=self.coordinator is None,
            run_id=run_id,
            agents_min=self.min_nodes,
            agents_max=self.max_nodes,
            local_world_size=self.nproc_per_node,
            restarts_max=self.max_restarts,
            role=self.role,
            local_addr=self.local_addr,
            master_addr=self.master_addr,
            master_port=self.master_port,
            join_timeout_s=self.join_timeout,
            last_call_s=self.last_call,
            exit_barrier_timeout_s=self.exit_barrier_timeout,
            coordinator_grace_s=self.coordinator_grace,
            shutdown_timeout_s=self.shutdown_timeout,
            numa_binding=NumaMode(self.numa_binding) if self.numa_binding else None,
            is_local_rank_virtual=self.virtual_local_rank,
            gpu_memory_wait_s=self.gpu_memory_wait,
            watchdog=self._watchdog(),
            output=self._output(),
            log_format=cast("Literal['auto', 'console', 'json']", self.log_format),
            log_level=self.log_level,
            event_log_handler=handler,
            command=command,
            name=name,
            outcome_file=outcome_file,
        )

    def _watchdog(self) -> WatchdogPolicy:
        progress = AUTO if self.progress_timeout == AUTO_WORD else self.progress_timeout
        return WatchdogPolicy(
            startup_timeout_s=self.startup_timeout,
            progress_timeout_s=cast("Limit", progress),
            runtime_timeout_s=self.runtime_timeout,
            exit_timeout_s=self.exit_timeout,
            kill_grace_s=self.hang_grace,
        )

    def _output(self) -> OutputConfig:
        ranks = self.local_ranks_filter
        return OutputConfig(
            redirects=_streams(self.redirects),
            tee=_streams(self.tee),
            # An empty filter means all, as in torch.
            local_ranks_filter=frozenset(ranks) if ranks else None,
            line_prefix_template=self.log_line_prefix_template,
            stdout_filters=tuple(self.duplicate_stdout_filters or ()),
            stderr_filters=tuple(self.duplicate_stderr_filters or ()),
            logs_specs=self.logs_specs if isinstance(self.logs_specs, str) else None,
            is_stderr_captured=self.stderr_capture,
        )

    def _violations_of_types(self) -> list[Violation]:
        found = []
        for field in fields(self):
            kinds, allowed = _KINDS[cast("str", field.type)]
            value = getattr(self, field.name)
            is_wrong_bool = isinstance(value, bool) and bool not in kinds
            if is_wrong_bool or not isinstance(value, kinds):
                found.append(Violation(field.name, repr(value), allowed))
        return found

    def _violations(self) -> list[Violation]:
        found: list[Violation] = []
        if self.start_method != "spawn":
            allowed = '"spawn", for every worker is a new interpreter'
            found.append(Violation("start_method", self.start_method, allowed))
        if self.max_nodes > 1 and self.coordinator is not None and not self.run_id:
            allowed = "a name that all hosts of this job give, and those of no other"
            found.append(Violation("run_id", self.run_id, allowed))
        if of_output := self._violations_of_output():
            return [*found, *of_output]
        if isinstance(self.progress_timeout, str) and self.progress_timeout != AUTO_WORD:
            allowed = f'a number of seconds, "{AUTO_WORD}", or None'
            return [*found, Violation("progress_timeout", repr(self.progress_timeout), allowed)]
        modes = [mode.value for mode in NumaMode]
        if self.numa_binding is not None and self.numa_binding not in modes:
            allowed = f"None, or one of {', '.join(modes)}"
            return [*found, Violation("numa_binding", self.numa_binding, allowed)]
        config = self.agent_config(("worker",), run_id=self.run_id or "made-up")
        return found + [
            Violation(_FIELD_OF_AGENT.get(rule.field, rule.field), rule.value, rule.allowed)
            for rule in config.validate()
            # Only a host knows where a file is; that rule is for what the host has found.
            if rule.field != "event_log_file" or self.event_log_file is None
        ]

    def _violations_of_output(self) -> list[Violation]:
        found: list[Violation] = []
        for name in ("redirects", "tee"):
            value = getattr(self, name)
            try:
                Std.from_str(_streams(value))
            except (TypeError, ValueError):
                found.append(Violation(name, value, _STREAMS_ALLOWED))
        for name, kind, allowed in (
            ("local_ranks_filter", int, "local ranks, or None"),
            ("duplicate_stdout_filters", str, "a list of texts, or None"),
            ("duplicate_stderr_filters", str, "a list of texts, or None"),
        ):
            value = getattr(self, name)
            if not all(isinstance(each, kind) for each in value or ()):
                found.append(Violation(name, value, allowed))
        specs = self.logs_specs
        if specs is None or isinstance(specs, str):
            return found
        if not callable(getattr(specs, "reify", None)):
            allowed = "logs specs, which have a method reify, the name of some, or None"
            return [*found, Violation("logs_specs", specs, allowed)]
        allowed = "nothing beside logs_specs, which decide on the files"
        return found + [
            Violation(name, getattr(self, name), allowed)
            for name in ("log_dir", "redirects", "tee", "local_ranks_filter")
            if getattr(self, name)
        ]


def _streams(value: StdOrMap | str) -> str:
    """Return streams as a command line says them."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in value.items()) or NOWHERE
    return str(int(value))
