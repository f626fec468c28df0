"""Pure. What the coordinator can be told, and the rules between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from drumbeat.access.redactor import Redactor
from drumbeat.command import settings
from drumbeat.command.settings import FLAG, declare, seconds, setting, text
from drumbeat.coordinator.access.certificate_roles import TLS_ROLES, RoleRule
from drumbeat.coordinator.api.run_links import LINK
from drumbeat.coordinator.journal.etcd import address as etcd
from drumbeat.coordinator.journal.etcd.address import EtcdAddress
from drumbeat.coordinator.limits import Limits
from drumbeat.text.addresses import PORT_DEFAULT, parse_host_port
from drumbeat.text.violation import Violation

FRONTENDS_MAX = 64
OTLP_PORT = 4317  # of OTLP over gRPC

_PATH = text("the path of a file", len, metavar="FILE")


def _reached_at(given: str) -> str:
    parse_host_port(given)  # the port may be left out: it is that of --port then
    return given.strip()


_REACHED_AT = settings.Kind(
    "HOST, HOST:PORT or [IPV6]:PORT, with a port from 1 to 65535",
    _reached_at,
    _reached_at,
    metavar="HOST[:PORT]",
)


def _otlp_endpoint(given: str) -> str:
    scheme, _, where = given.strip().partition("://")
    if scheme.lower() not in ("http", "https"):
        raise ValueError
    return f"{scheme.lower()}://{parse_host_port(where.removesuffix('/'), OTLP_PORT)}"


_OTLP_ENDPOINT = settings.Kind(
    "http://HOST[:PORT], or https:// for TLS",
    _otlp_endpoint,
    _otlp_endpoint,
    metavar="URL",
)


NOTIFY_MAX = 16  # endpoints
_URL_CHARACTERS_MAX = 4096
_NOTIFY_ALLOWED = f"up to {NOTIFY_MAX} URLs of apprise, SCHEME://..."


def _notify_url(given: str) -> str:
    scheme, separator, rest = given.strip().partition("://")
    is_scheme = scheme.isascii() and scheme.isalnum()
    if not (is_scheme and separator and rest and len(given) <= _URL_CHARACTERS_MAX):
        # No message shows what was given: it may be a secret.
        raise ValueError(f"allowed is a URL, SCHEME://..., of at most {_URL_CHARACTERS_MAX} bytes")
    return given.strip()


def _notify_urls(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or len(given) > NOTIFY_MAX:
        raise ValueError
    return tuple(map(_notify_url, given))


def _heartbeat_url(given: str) -> str:
    if _notify_url(given).partition("://")[0].lower() not in ("http", "https"):
        raise ValueError("allowed is a URL that begins with http:// or https://")
    return given.strip()


NOTIFY_URL = settings.Kind(
    _NOTIFY_ALLOWED, _notify_urls, _notify_url, metavar="URL", is_secret=True, is_repeated=True
)
_HEARTBEAT_URL = settings.Kind(
    "http:// or https://", _heartbeat_url, _heartbeat_url, metavar="URL", is_secret=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What one coordinator process is told. Immutable; logged once at the start."""

    host: str = setting(
        "127.0.0.1",
        text(
            "a host name or an IP address",
            lambda host: host and not any(letter.isspace() for letter in host),
            metavar="ADDR",
        ),
        "Listening",
        "Address to listen on; 0.0.0.0 or :: for all.",
    )
    port: int = setting(
        PORT_DEFAULT, settings.PORT, "Listening", "Port to listen on; 0 for a free port."
    )
    frontends: int | None = setting(
        None,
        settings.number(0, FRONTENDS_MAX),
        "Listening",
        "Processes that hold the connections of agents and operators; 0: the coordinator itself.",
        shown_default="a quarter of the cores, up to 8; with --journal at least 1",
    )
    insecure: bool = setting(
        False,
        FLAG,
        "Access",
        "No encryption and no tokens: everyone who reaches the port can join, read and end "
        "every run. For closed test networks.",
    )
    tls_cert: str | None = setting(
        None,
        _PATH,
        "Access",
        "Your own server certificate in PEM, followed by intermediate certificates. The files "
        "of --tls-* are read again when they change.",
        shown_default="its own",
    )
    tls_key: str | None = setting(
        None, _PATH, "Access", "Key of --tls-cert; mode 0600.", shown_default="its own"
    )
    tls_client_ca: str | None = setting(
        None,
        _PATH,
        "Access",
        "Authorities of client certificates, in PEM. Each client must show a certificate of one "
        "of them.",
        shown_default="none; clients use tokens",
    )
    tls_roles: tuple[RoleRule, ...] | None = setting(
        None,
        TLS_ROLES,
        "Access",
        "Roles of clients by the names in their certificates. The first rule that matches "
        "counts; a token takes precedence.",
        shown_default="join, for each certificate",
    )
    state_dir: str | None = setting(
        # None: a private temporary directory, which ends with the process. For port 0, where
        # no later process could know what to continue, and --once, where none shall.
        None,
        text("an absolute path", lambda path: path.startswith("/"), metavar="DIR"),
        "State",
        "Directory of the journal. A coordinator restarted with it knows every run.",
        shown_default="$XDG_STATE_HOME/drumbeat/coordinator-PORT; "
        "temporary with --port 0 and --once",
    )
    once: bool = setting(
        False,
        FLAG,
        "State",
        "End when all runs have ended and their agents have left, for a coordinator that is part "
        "of one job.",
    )
    journal: EtcdAddress | None = declare(etcd.JOURNAL)  # noqa: RUF009 - it makes a field
    journal_password_file: str | None = declare(etcd.JOURNAL_PASSWORD_FILE)
    journal_ca: str | None = declare(etcd.JOURNAL_CA)
    journal_cert: str | None = declare(etcd.JOURNAL_CERT)
    journal_key: str | None = declare(etcd.JOURNAL_KEY)
    leader_ttl: float = setting(
        # A leader that died is succeeded within it, and etcd's own elections take 1 s.
        3.0,
        seconds(2.0, 60.0),
        "High availability",
        "How long the leader may be silent before another coordinator leads. etcd rounds it up "
        "to whole seconds and to its own minimum.",
    )
    advertise: str | None = setting(
        None,
        _REACHED_AT,
        "High availability",
        "Address at which agents and operators reach this coordinator; other coordinators pass "
        "it on. The port is that of --port unless given.",
        shown_default="--host and --port; for 0.0.0.0 and :: the address used to reach etcd",
    )
    heartbeat_interval: float = setting(
        # Several beats fit into a lease that is still short, and a thousand agents cost little.
        1.0,
        seconds(0.05, 3600.0),
        "Liveness",
        "Interval between an agent's heartbeats; up to 0.4 of the lease in runs of thousands of "
        "agents.",
    )
    lease: float = setting(
        5.0,  # beyond a usual stall of a host
        seconds(0.1, 86400.0),
        "Liveness",
        "How long an agent may be silent before it is declared lost; more than twice "
        "--heartbeat-interval.",
    )
    checkpoint_grace: float = setting(
        300.0,  # beyond a save of most jobs, and training that does not ask waits for nothing
        seconds(),
        "Steering",
        "How long a drain, a stop, a planned restart or a scale-up waits for training to save. "
        "The wait ends as soon as all ranks have saved.",
    )
    exclude_max: int = setting(
        2,
        settings.number(0, 100)._replace(metavar="PERCENT"),
        "Steering",
        "Percentage of all hosts that may be excluded for failed rounds at the same time. One host "
        "always may be, except with 0.",
    )
    allow_rehearsals: bool = setting(
        False,
        FLAG,
        "Steering",
        "Operators may have faults injected into runs with `coordinator rehearse`.",
    )
    http_port: int | None = setting(
        None,
        settings.PORT,
        "Page and metrics",
        "Port of the page and of /metrics, at the address of --host; 0 for a free port. Needs "
        "the extra page.",
        shown_default="no page",
    )
    link: tuple[str, ...] = setting(
        (),
        LINK,
        "Page and metrics",
        "Link of each run to another system, e.g. logs=https://logs.example/?q={run_id}; "
        "repeatable. A run without a {label.KEY} in it has no such link.",
        shown_default="none",
    )
    otlp_endpoint: str | None = setting(
        None,
        _OTLP_ENDPOINT,
        "Traces",
        "OpenTelemetry collector for traces of rounds and restarts, over OTLP with gRPC. The "
        "variables OTEL_* set more. Needs the extra otel.",
        shown_default="none",
    )
    notify: tuple[str, ...] = setting(
        (),
        NOTIFY_URL,
        "Notifications",
        "Endpoint for messages about failed, hanging and ended runs; repeatable. Needs "
        "the extra notify.",
        shown_default="none",
    )
    notify_file: str | None = setting(
        None, _PATH, "Notifications", "More endpoints, one URL per line, mode 0600; # for comments."
    )
    notify_heartbeat: str | None = setting(
        None,
        _HEARTBEAT_URL,
        "Notifications",
        "URL to GET regularly while this coordinator leads and can write its journal.",
        shown_default="none",
    )
    notify_heartbeat_interval: float = setting(
        60.0, seconds(0.1, 86400.0), "Notifications", "Interval of --notify-heartbeat."
    )
    evidence_dir: str | None = setting(
        None,
        text("the path of a directory", len, metavar="DIR"),
        "Evidence",
        "Directory for an archive of each run that fails or hangs, as `coordinator evidence` makes "
        "it.",
        shown_default="none; no archives",
    )
    evidence_keep: int = setting(
        10, settings.number(1, 10_000), "Evidence", "Archives to keep; the oldest are removed."
    )
    evidence_max_bytes: int = setting(
        1024**3,
        settings.number(1024**2, 10**12),
        "Evidence",
        "Size of all archives together, in bytes; the oldest are removed.",
    )
    log_format: str = declare(settings.LOG_FORMAT)
    log_level: str = declare(settings.LOG_LEVEL)
    limits: Limits = field(default_factory=Limits)

    def validate(self) -> list[Violation]:
        """All rules that the configuration breaks, none if it is sound."""
        violations = settings.read_settings(self)[1]
        broken = {violation.field for violation in violations}
        violations += self._access_rules()
        if "journal" not in broken:
            violations += self._journal_rules()
        if self.http_port is not None and 0 < self.http_port == self.port:
            violations.append(
                Violation("http_port", self.http_port, "another one than that of --port")
            )
        # So that one lost beat costs nothing.
        if "lease" not in broken and not self.lease > 2 * self.heartbeat_interval:
            allowed = f"more than twice the heartbeat interval of {self.heartbeat_interval:g} s"
            violations.append(Violation("lease", self.lease, allowed))
        return violations

    def _access_rules(self) -> list[Violation]:
        """Which settings of the operator's own PKI need others, and which exclude each other."""
        roles = None if self.tls_roles is None else TLS_ROLES.text(self.tls_roles)
        names = ("tls_cert", "tls_key", "tls_client_ca", "tls_roles")
        values = (self.tls_cert, self.tls_key, self.tls_client_ca, roles)
        given = {name: value for name, value in zip(names, values, strict=True) if value}
        if self.insecure:
            allowed = "none of the --tls-* options beside --insecure, which encrypts nothing"
            return [Violation(name, value, allowed) for name, value in given.items()]
        needs = [("cert", "key"), ("key", "cert"), ("client_ca", "cert"), ("roles", "client_ca")]
        return etcd.lonely(given, [(f"tls_{name}", f"tls_{other}") for name, other in needs])

    def shown(self) -> dict[str, str]:
        """Return all settings as texts, by option, without secrets."""
        texts, redact = {}, Redactor({})
        for name, declared in settings.settings_of(self).items():
            value = getattr(self, name)
            texts[declared.option] = "" if value is None else redact(declared.kind.text(value))
        return texts

    @property
    def etcd(self) -> EtcdAddress | None:
        """Where the journal is on etcd, None if it is in the state directory."""
        return etcd.address_of(self)

    def _journal_rules(self) -> list[Violation]:
        """Which settings need that the journal is on etcd, and which others etcd needs."""
        violations = etcd.broken_rules(self)
        if self.journal is None and self.advertise is not None:
            allowed = "this only together with --journal"
            violations.append(Violation("advertise", self.advertise, allowed))
        if self.journal is not None and self.once:
            allowed = "not beside --journal: another coordinator would lead on"
            violations.append(Violation("once", self.once, allowed))
        return violations


def default_state_dir(port: int, *, state_home: str, home: str) -> str | None:
    """Where a coordinator on ``port`` keeps its journal if it is not told, None for port 0.

    ``state_home``, the value of ``XDG_STATE_HOME``, is ignored unless absolute, as the XDG Base
    Directory Specification asks for.
    """
    if port == 0:
        return None
    base = state_home if state_home.startswith("/") else f"{home}/.local/state"
    return f"{base.rstrip('/')}/drumbeat/coordinator-{port}"
