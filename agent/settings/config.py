"""Pure. What one agent was told, and the rules that tie its settings together.

The command line and the environment are read in ``agent.settings.cli``, and what depends
on the host (devices, files) in ``agent.runtime.preflight``; this module only knows values.
Precedence there: argument over environment over default.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.settings.output_config import OutputConfig
from agent.watchdog.core.model import Auto, WatchdogPolicy
from agent.workers.devices.numa import NumaMode
from drumbeat.violation import Violation, check_range

AGENTS_MAX = 1_000_000
"""Bound of what an agent asks for; the coordinator has a lower limit of its own."""

WORKERS_PER_HOST_MAX = 4096
"""More workers than any host has cores; more is a slip of the keyboard."""

RESTARTS_MAX = 1_000_000
"""Practically endless, and still far from the end of the protocol's field."""

DURATION_MAX_S = 30 * 24 * 3600.0
"""A month: more is a slip of the unit."""

RUN_ID_ALLOWED = "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'; not '.' or '..'"

# It names a directory, where dots alone mean another one.
SIGNALS_HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that end an agent unless it is told otherwise; torchrun's."""

SIGNALS_ALLOWED = (
    *SIGNALS_HANDLED,
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGPWR",
    "SIGXCPU",
    "SIGXFSZ",
)
"""Signals that can be handled at all, and that mean nothing else to an agent."""

_RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}", re.ASCII)
_NNODES = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME_LENGTH_MAX = 128
_ADDRESS_LENGTH_MAX = 253  # of a DNS name


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What one agent process was told. Immutable; logged once at the start."""

    coordinator: str | None = None
    """Address "host:port" of the coordinator, IPv6 in brackets; None if standalone."""

    is_proxied: bool = False
    """Whether the coordinator is reached through the proxy that the environment names."""

    is_standalone: bool = False
    """Whether the agent brings its own coordinator and trains on this machine alone."""

    run_id: str
    """Name of the run; the same for all agents of one training job."""

    agents_min: int = 1
    """Fewest agents that may form a round."""

    agents_max: int = 1
    """Most agents in a round; more become standbys. Invariant: ``>= agents_min``."""

    local_world_size: int = 1
    """Workers on this host."""

    restarts_max: int = 0
    """Restarts after worker failures that the whole run may use. 0 as in torchrun: a
    script that does not load checkpoints must not start over in silence."""

    role: str = "default"
    """Role of the workers of this agent; part of rank assignment."""

    local_addr: str | None = None
    """Address at which workers of other hosts reach this one; None: found by the agent."""

    master_addr: str = ""
    """Fixed MASTER_ADDR of every round; empty: the address of group rank 0."""

    master_port: int = 0
    """Fixed MASTER_PORT of every round; 0: a fresh port each round, reserved by its host."""

    join_timeout_s: float = 600.0
    """Seconds the run waits for ``agents_min`` agents; torchrun's value."""

    last_call_s: float = 30.0
    """Seconds to wait for more agents than ``agents_min``, at most; torchrun's value."""

    exit_barrier_timeout_s: float | None = None
    """Seconds that an agent which succeeded waits for the others; None: while they live."""

    coordinator_grace_s: float = 600.0
    """Seconds the workers are kept while the coordinator is away: time to move it."""

    shutdown_timeout_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL for workers, on every path; torchrun's value."""

    numa_binding: NumaMode | None = None
    """How workers are bound to CPUs near their GPUs; None: not at all, as in torchrun."""

    is_local_rank_virtual: bool = False
    """Whether each worker sees its own GPU only and has LOCAL_RANK 0."""

    signals_to_handle: tuple[str, ...] = SIGNALS_HANDLED
    """Names of the signals that end this agent; its workers get the same one."""

    gpu_memory_wait_s: float = 50.0
    """Seconds that a new round waits for the GPU memory of the old one, at most; NVRx's value."""

    watchdog: WatchdogPolicy = field(default_factory=WatchdogPolicy)
    """When a worker counts as one that hangs."""

    log_dir: str | None = None
    """Absolute path of the directory for the workers' files; None: they are not kept."""

    output: OutputConfig = field(default_factory=OutputConfig)
    """Where the output of the workers goes."""

    log_format: Literal["auto", "console", "json"] = "auto"
    """How the agent's own log is written; see ``drumbeat.logs``."""

    log_level: str = "info"
    """The least that is logged: debug, info, warning or error."""

    event_log_handler: str = "null"
    """Who takes structured events and metrics; see ``agent.telemetry``."""

    event_log_file: str | None = None
    """Absolute path of the file of the handler "jsonl"."""

    agent_name: str = ""
    """What people call this agent, in reasons and reports; empty: by its host's name."""

    notes: tuple[str, ...] = ()
    """What of the command line is not needed here, for people."""

    command: tuple[str, ...]
    """The complete argument vector of a worker."""

    name: str = ""
    """What the workers run, for people; empty: as the command says."""

    outcome_file: str | None = None
    """Where a program that launched this agent reads how it ended; None: it has not."""

    @property
    def title(self) -> str:
        """What the workers run, for people: the command without the interpreter."""
        return self.name or " ".join(self._behind_the_interpreter())

    @property
    def script(self) -> tuple[str, ...]:
        """Script, module or program of the workers, and its arguments."""
        words = (self.name,) if self.name else self._behind_the_interpreter()
        return words[1:] if words[0] == "-m" else words

    def _behind_the_interpreter(self) -> tuple[str, ...]:
        return self.command[self.command.index("-u") + 1 if "-u" in self.command[:2] else 0 :]

    def validate(self) -> list[Violation]:
        """All rules that the configuration breaks, none if it is sound."""
        return [
            *self._violations_of_mode(),
            *self._violations_of_sizes(),
            *self._violations_of_names(),
            *self._violations_of_times(),
        ]

    def _violations_of_mode(self) -> list[Violation]:
        found: list[Violation] = []
        if self.is_standalone and self.coordinator is not None:
            allowed = "either a coordinator or standalone, not both"
            found.append(Violation("coordinator", self.coordinator, allowed))
        if not self.is_standalone and not self.coordinator:
            allowed = "HOST:PORT of a coordinator, unless the agent is standalone"
            found.append(Violation("coordinator", self.coordinator, allowed))
        if self.is_standalone and (self.agents_min, self.agents_max) != (1, 1):
            value = f"{self.agents_min}:{self.agents_max}"
            allowed = "1:1, for a standalone agent is alone"
            found.append(Violation("agents_max", value, allowed))
        if not self.command or not self.command[0]:
            found.append(Violation("command", None, "a script, a module or a program to run"))
        return found

    def _violations_of_sizes(self) -> list[Violation]:
        found = check_range("agents_min", self.agents_min, 1, AGENTS_MAX, "agents")
        found += check_range("agents_max", self.agents_max, 1, AGENTS_MAX, "agents")
        if self.agents_min > self.agents_max:
            value = f"{self.agents_min}:{self.agents_max}"
            found.append(Violation("agents_min", value, "a minimum that is not above the maximum"))
        found += check_range(
            "local_world_size", self.local_world_size, 1, WORKERS_PER_HOST_MAX, "workers"
        )
        found += check_range("restarts_max", self.restarts_max, 0, RESTARTS_MAX, "restarts")
        found += check_range("master_port", self.master_port, 0, 65535, "")
        return found

    def _violations_of_names(self) -> list[Violation]:
        found: list[Violation] = []
        if _RUN_ID.fullmatch(self.run_id) is None:
            found.append(Violation("run_id", self.run_id, RUN_ID_ALLOWED))
        if not 1 <= len(self.role) <= _NAME_LENGTH_MAX or not self.role.isprintable():
            allowed = f"1 to {_NAME_LENGTH_MAX} printable characters"
            found.append(Violation("role", self.role, allowed))
        if self.agent_name and not _is_address(self.agent_name):
            allowed = f"up to {_ADDRESS_LENGTH_MAX} printable characters without spaces"
            found.append(Violation("agent_name", self.agent_name, allowed))
        if self.local_addr is not None and not _is_address(self.local_addr):
            found.append(Violation("local_addr", self.local_addr, "a host name or an IP address"))
        if self.master_addr and not _is_address(self.master_addr):
            found.append(Violation("master_addr", self.master_addr, "a host name or an IP address"))
        if self.log_dir is not None and not self.log_dir.startswith("/"):
            found.append(Violation("log_dir", self.log_dir, "an absolute path"))
        if self.log_format not in {"auto", "console", "json"}:
            found.append(Violation("log_format", self.log_format, "auto, console or json"))
        if self.log_level not in {"debug", "info", "warning", "error"}:
            allowed = "debug, info, warning or error"
            found.append(Violation("log_level", self.log_level, allowed))
        found += self._violations_of_telemetry()
        found += self._violations_of_signals()
        return found

    def _violations_of_signals(self) -> list[Violation]:
        names = self.signals_to_handle
        if names and all(name in SIGNALS_ALLOWED for name in names):
            return []
        allowed = f"names separated by commas, of {', '.join(SIGNALS_ALLOWED)}"
        return [Violation("signals_to_handle", ",".join(names), allowed)]

    def _violations_of_telemetry(self) -> list[Violation]:
        found: list[Violation] = []
        handler, file = self.event_log_handler, self.event_log_file
        if not 1 <= len(handler) <= _NAME_LENGTH_MAX or not handler.isprintable():
            allowed = f"1 to {_NAME_LENGTH_MAX} printable characters"
            found.append(Violation("event_log_handler", handler, allowed))
        if handler == "jsonl" and file is None:
            allowed = "the path of a file, for the handler jsonl needs one"
            found.append(Violation("event_log_file", file, allowed))
        if file is not None and not file.startswith("/"):
            found.append(Violation("event_log_file", file, "an absolute path"))
        return found

    def _violations_of_times(self) -> list[Violation]:
        # A wait of zero would fail every run at its start; the other durations may be zero.
        bounds: tuple[tuple[str, float | None, float], ...] = (
            ("join_timeout_s", self.join_timeout_s, 0.1),
            ("last_call_s", self.last_call_s, 0.0),
            ("exit_barrier_timeout_s", self.exit_barrier_timeout_s, 0.1),
            ("coordinator_grace_s", self.coordinator_grace_s, 0.0),
            ("shutdown_timeout_s", self.shutdown_timeout_s, 0.0),
            ("gpu_memory_wait_s", self.gpu_memory_wait_s, 0.0),
        )
        bounds += self._bounds_of_watchdog()
        found: list[Violation] = []
        for name, value, low in bounds:
            if value is not None:
                found += check_range(name, value, low, DURATION_MAX_S, "seconds")
        return found

    def _bounds_of_watchdog(self) -> tuple[tuple[str, float | None, float], ...]:
        policy = self.watchdog
        progress = policy.progress_timeout_s
        # Anything shorter is a slip of the unit: a busy host alone may take as long.
        return (
            ("startup_timeout_s", policy.startup_timeout_s, 0.1),
            ("runtime_timeout_s", policy.runtime_timeout_s, 0.1),
            ("progress_timeout_s", None if isinstance(progress, Auto) else progress, 0.1),
            ("exit_timeout_s", policy.exit_timeout_s, 0.1),
            ("kill_grace_s", policy.kill_grace_s, 0.0),
        )


def _is_address(text: str) -> bool:
    is_bounded = 1 <= len(text) <= _ADDRESS_LENGTH_MAX
    return is_bounded and text.isprintable() and not any(letter.isspace() for letter in text)


def parse_nnodes(text: str) -> tuple[int, int]:
    """Read how many agents a round has: "N", or "MIN:MAX".

    Raises:
        ValueError: ``text`` is anything else; the message says what is allowed.
    """
    match = _NNODES.fullmatch(text.strip())
    agents_min, agents_max = (0, 0)
    if match is not None:
        agents_min = int(match[1])
        agents_max = int(match[2] or match[1])
    if not 1 <= agents_min <= agents_max <= AGENTS_MAX:
        raise ValueError(
            f"{text!r} is given, allowed is N or MIN:MAX with 1 <= MIN <= MAX <= {AGENTS_MAX}"
        )
    return agents_min, agents_max


def count_workers(text: str, *, cores: int, gpus: int) -> int:
    """Read how many workers a host has: a number, or a word for what the host has.

    Args:
        text: "4", "cpu", "gpu", or "auto" for GPUs if there are any and else cores.
        cores: Cores this process may use.
        gpus: GPUs this process may use.

    Raises:
        ValueError: ``text`` is anything else, or "gpu" where there is none.
    """
    word = text.strip().lower()
    if word == "auto":
        word = "gpu" if gpus else "cpu"
    if word == "gpu" and gpus == 0:
        raise ValueError(
            "'gpu' is given, but this process sees no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES); "
            "allowed here is a number, auto or cpu"
        )
    count = {"gpu": gpus, "cpu": cores}.get(word, 0)
    if count == 0 and _COUNT.fullmatch(word) is not None:
        count = int(word)
    if not 1 <= count <= WORKERS_PER_HOST_MAX:
        raise ValueError(
            f"{text!r} is given, allowed is a number from 1 to {WORKERS_PER_HOST_MAX}, "
            "auto, gpu or cpu"
        )
    return count


def parse_signals(text: str) -> tuple[str, ...]:
    """Read names separated by commas, each once; whether they are allowed is for ``validate``."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def worker_command(
    program: str,
    arguments: Sequence[str],
    *,
    launch: Literal["script", "module", "program"],
    python: str,
) -> tuple[str, ...]:
    """Build the argument vector of a worker.

    Python writes unbuffered (``-u``), so that the last words of a worker that is
    killed are not lost.
    """
    if launch == "program":
        return (program, *arguments)
    if launch == "module":
        return (python, "-u", "-m", program, *arguments)
    return (python, "-u", program, *arguments)
