"""Pure. What the coordinator can be told, its named limits, and the rules that tie them together.

The command line and the environment are read in ``coordinator.cli``; this module
only knows values. Precedence there: argument over environment over default.
"""

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Literal

from coordinator.errors import BIND_ALLOWED
from drumbeat.violation import Violation, check_range

PORT_DEFAULT = 29400
"""torchrun's rendezvous port, so that firewalls opened for it fit."""

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of everything that could grow. What happens at each is part of its meaning.

    All are at least 1, but for the graces, which may be 0.
    """

    runs_max: int = 1000
    """Live runs. A Hello of one more run is refused with LIMIT_REACHED."""

    runs_ended_max: int = 1000
    """Ended runs kept for questions and late agents; the oldest is forgotten first."""

    runs_ended_per_id_max: int = 20
    """The same of one run id, so that one which fails and starts for ever pushes out no other."""

    runs_ended_bytes_max: int = 256 * _MIB
    """Bytes of what is kept of ended runs; the oldest is forgotten first, never the latest."""

    agents_per_run_max: int = 20_000
    """Agents of one run, standbys included; twice the largest jobs we know of."""

    message_bytes_max: int = 1 * _MIB
    """Size of one incoming message; gRPC refuses larger ones."""

    failure_record_bytes_max: int = 256 * _KIB
    """Size of one failure record: a traceback and the end of the error output fit."""

    failure_message_bytes_max: int = 64 * _KIB
    """Size of the message within a failure record; longer ones are cut by their agent."""

    failures_kept_per_run_max: int = 1000
    """Failure records kept per live run; of more, those that tell least are only counted."""

    failure_bytes_per_run_max: int = 8 * _MIB
    """Bytes of the failure records kept per live run; of more, the same."""

    failure_bytes_max: int = 256 * _MIB
    """The same for all live runs together. When it is used up, a run keeps what it has, and
    may always have `failure_record_bytes_max`, so that its first failure is told."""

    failure_queue_bytes_max: int = 64 * _MIB
    """Bytes of the failure records that wait for the core; streams of more are not read."""

    history_per_run_max: int = 1000
    """Decisions kept per run, for people; the oldest is forgotten first."""

    event_queue_max: int = 100_000
    """Sessions and events that wait for the core; streams that would add more are refused.

    A session is one of them however much it says: of its beats the latest waits.
    """

    hello_timeout_s: float = 10.0
    """Seconds a new stream may take to say Hello; then it is ended."""

    reconnect_grace_s: float = 0.5
    """Seconds an agent whose stream broke may take to come back before it counts as lost.

    Long enough for a hiccup of the network stack, short against any restart.
    """

    restart_grace_s: float = 15.0
    """Extra seconds that agents have to come back after the coordinator's own restart."""

    learned_limit_min_s: float = 5.0
    """Seconds below which no learned limit falls: a host that pauses for a moment is no hang."""

    def validate(self) -> list[Violation]:
        """All rules that the limits break, none if they are sound."""
        found = [
            Violation(limit.name, getattr(self, limit.name), "1 or more")
            for limit in fields(self)
            if not limit.name.endswith("_s") and not getattr(self, limit.name) >= 1
        ]
        found += check_range("hello_timeout_s", self.hello_timeout_s, 0.1, 3600, "seconds")
        found += check_range("reconnect_grace_s", self.reconnect_grace_s, 0, 3600, "seconds")
        found += check_range("restart_grace_s", self.restart_grace_s, 0, 3600, "seconds")
        found += check_range("learned_limit_min_s", self.learned_limit_min_s, 0, 86400, "seconds")
        nested = (
            ("failure_message_bytes_max", "failure_record_bytes_max"),
            ("failure_record_bytes_max", "message_bytes_max"),
        )
        for inner, outer in nested:
            if getattr(self, inner) > getattr(self, outer):
                allowed = f"at most {outer}, {getattr(self, outer)}"
                found.append(Violation(inner, getattr(self, inner), allowed))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What one coordinator process was told. Immutable; logged once at the start."""

    host: str = "127.0.0.1"
    """Address to listen on, IPv6 without brackets. Loopback, because nobody is authenticated."""

    port: int = PORT_DEFAULT
    """Port to listen on; 0 lets the system choose one."""

    state_dir: str | None = None
    """Absolute path of the directory of the journal.

    None: a private temporary directory that ends with the process; for port 0,
    where no later process could know what to continue.
    """

    heartbeat_interval_s: float = 1.0
    """Seconds between two beats of an agent; up to 0.4 of the lease in runs of thousands.

    1 s: several beats fit into a lease that is still short, and a thousand agents
    cost the coordinator little.
    """

    lease_s: float = 5.0
    """Seconds of silence after which an agent is given up; beyond a usual stall of a host.

    Invariant: more than two heartbeat intervals, so that one lost beat costs nothing.
    """

    log_format: Literal["auto", "console", "json"] = "auto"
    """How the log is written; see ``drumbeat.logs``."""

    log_level: str = "info"
    """The least that is logged: debug, info, warning or error."""

    is_insecure: bool = False
    """Whether everyone who reaches the port may use it, on an address that is not loopback."""

    limits: Limits = field(default_factory=Limits)
    """Bounds of everything that could grow."""

    @property
    def address(self) -> str:
        """Where the coordinator listens, as gRPC takes it, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def validate(self) -> list[Violation]:
        """All rules that the configuration breaks, none if it is sound."""
        found: list[Violation] = []
        if not self.host or any(character.isspace() for character in self.host):
            found.append(Violation("host", self.host, "a host name or an IP address"))
        elif not self.is_insecure and not is_loopback(self.host):
            found.append(Violation("host", self.host, BIND_ALLOWED))
        found += check_range("port", self.port, 0, 65535, "")
        if self.state_dir is not None and not self.state_dir.startswith("/"):
            found.append(Violation("state_dir", self.state_dir, "an absolute path"))
        found += check_range(
            "heartbeat_interval_s", self.heartbeat_interval_s, 0.05, 3600, "seconds"
        )
        found += check_range("lease_s", self.lease_s, 0.1, 86400, "seconds")
        if not self.lease_s > 2 * self.heartbeat_interval_s:
            allowed = f"more than twice the heartbeat interval of {self.heartbeat_interval_s:g} s"
            found.append(Violation("lease_s", self.lease_s, allowed))
        if self.log_format not in {"auto", "console", "json"}:
            found.append(Violation("log_format", self.log_format, "auto, console or json"))
        if self.log_level not in {"debug", "info", "warning", "error"}:
            allowed = "debug, info, warning or error"
            found.append(Violation("log_level", self.log_level, allowed))
        return found + self.limits.validate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLimits:
    """What ``coordinator reset-limits`` was told."""

    run_id: str
    """The run."""

    coordinator: str
    """Address "host:port" of its coordinator, IPv6 in brackets."""

    is_proxied: bool = False
    """Whether it is reached through the proxy that the environment names."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``: 127.0.0.0/8, ::1 or localhost.

    Any other name counts as open, because what it resolves to may change.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_state_dir(port: int, *, state_home: str, home: str) -> str | None:
    """Where a coordinator on ``port`` keeps its journal if it is not told, None for port 0.

    Args:
        port: The port it listens on; several coordinators of one user stay apart by it.
        state_home: Value of ``XDG_STATE_HOME``; ignored unless absolute, as the
            XDG Base Directory Specification asks for.
        home: The user's home directory.
    """
    if port == 0:
        return None
    base = state_home if state_home.startswith("/") else f"{home}/.local/state"
    return f"{base.rstrip('/')}/drumbeat/coordinator-{port}"
