"""Pure. The metrics of a coordinator: what there is, with which labels."""

from __future__ import annotations

from drumbeat.command.metrics import LONG_S, SHORT_S, Metric
from drumbeat.coordinator.core.run.state import Phase
from drumbeat.coordinator.observe.goodput.stretches import FAILURES, Cause, Part
from drumbeat.coordinator.observe.health import HealthState

PHASES = tuple(phase.lower() for phase in Phase)
HEALTHS = tuple(health.lower() for health in HealthState)
PARTS = tuple(part.lower() for part in Part)
CAUSES = tuple(cause.lower() for cause in Cause)
# Neither the first round nor the end of a run is a restart.
RESTART_CAUSES = tuple(item for item in CAUSES if item not in (Cause.START.lower(), "stopped"))
DETECTED = tuple(item for item in Cause if item in FAILURES and item is not Cause.INTERRUPTED)
REFORMED = (("round", "running"), ("round", "progress"), ("in_process", "running"))
OUTCOMES = ("sent", "failed", "dropped")
PRESENCES = ("present", "suspect", "away", "outside")


def _coordinator(kind: str, name: str, about: str, **more: object) -> Metric:
    return Metric(kind, f"drumbeat_coordinator_{name}", about, **more)  # type: ignore[arg-type]


def _run(kind: str, name: str, about: str, label: str = "", values: tuple[str, ...] = ()) -> Metric:
    labels = ("run_id", label) if label else ("run_id",)
    return Metric(kind, f"drumbeat_run_{name}", about, labels, ", ".join(values))  # type: ignore[arg-type]


LEADING = _coordinator("gauge", "leading", "Whether this coordinator leads, 1 or 0.")
TERM = _coordinator("gauge", "term", "The term of the leader, 0 if none is known.")
MEMBERS = _coordinator("gauge", "members", "Coordinators that share the journal.")
CERTIFICATE = _coordinator(
    "gauge",
    "certificate_expiry_timestamp_seconds",
    "End of the certificate that is shown, in seconds since 1970; without TLS it is missing.",
)
LOOP_LAG = _coordinator(
    "histogram",
    "event_loop_lag_seconds",
    "How late the event loop came to a timer; one is set each second.",
    buckets=SHORT_S,
)
SESSIONS = _coordinator("gauge", "sessions", "Agents that have a session open.")
QUEUED = _coordinator("gauge", "queued_events", "Sessions and events that wait for a turn.")
STRETCH = _coordinator(
    "gauge",
    "pace_stretch",
    "How many times as long heartbeat intervals and leases are, because many were read too late.",
)
QUEUED_FAILURES = _coordinator(
    "gauge", "queued_failure_records", "Failure records that wait for a turn."
)
DRAINS = _coordinator("gauge", "drains", "Drains that hold.")
JOURNAL_WRITES = _coordinator(
    "histogram",
    "journal_write_duration_seconds",
    "How long a write of the journal took that succeeded.",
    buckets=SHORT_S,
)
JOURNAL_WRITABLE = _coordinator(
    "gauge", "journal_writable", "Whether the journal can be written, 1 or 0."
)
JOURNAL_OUTAGE = _coordinator(
    "counter",
    "journal_outage_seconds",
    "Time in which the journal could not be written, and nothing was decided.",
)
NOTIFICATIONS = Metric(
    "counter",
    "drumbeat_notifications",
    "Messages to endpoints of `--notify`, by what became of them.",
    ("outcome",),
    ", ".join(OUTCOMES),
)
DETECTION = Metric(
    "histogram",
    "drumbeat_detection_duration_seconds",
    "From the last progress or the end of a worker until the coordinator knew what had failed.",
    ("cause",),
    ", ".join(cause.lower() for cause in DETECTED),
    LONG_S,
)
REFORMING = Metric(
    "histogram",
    "drumbeat_reforming_duration_seconds",
    "From the decision that ends a round or interrupts it until all workers ran again, or until "
    "the last rank had told progress.",
    ("restart", "until"),
    "round, in_process; running, progress",
    LONG_S,
)
RUNS = Metric(
    "gauge", "drumbeat_runs", "Runs that are known by their phase.", ("phase",), ", ".join(PHASES)
)
PHASE = _run("gauge", "phase", "1 for the phase that a run is in, else 0.", "phase", PHASES)
HEALTH = _run("gauge", "health", "1 for how a run is, else 0.", "state", HEALTHS)
AGENTS = _run("gauge", "agents", "Agents of a run that has not ended.", "presence", PRESENCES)
AGENTS_MIN = _run("gauge", "agents_min", "Agents without which the run has no round.")
AGENTS_UNHEALTHY = _run(
    "gauge", "agents_unhealthy", "Agents on hosts of which a health check has failed."
)
WORKERS = _run("gauge", "workers", "World size of the round that runs, 0 if none does.")
ROUNDS = _run("counter", "rounds", "Rounds that have begun.")
RESTARTS = _run("counter", "restarts", "Restarts, those in process too.", "cause", RESTART_CAUSES)
BUDGET = _run("gauge", "restart_budget_remaining", "Failures that the run may still survive.")
LEFT_OUT = _run("gauge", "agents_left_out", "Agents that the preflight of the run left out.")
FREE = _run("counter", "free_restarts", "Restarts that `agent join --restart-rule` left uncharged.")
EXCLUDED = _run("gauge", "excluded_hosts", "Hosts that are excluded for failed rounds.")
EXCLUSIONS = _run("counter", "host_exclusions", "Exclusions of hosts for failed rounds.")
FAILED = _run("counter", "failures", "Failures that ended a round or interrupted it.")
RECORDS = _run(
    "counter", "failure_records", "Failure records of workers, those of victims included."
)
TIME = _run("counter", "time_seconds", "Time of the run, by what it went into.", "part", PARTS)
HOST_TIME = _run(
    "counter", "host_time_seconds", "The same, times the hosts that spent it.", "part", PARTS
)
LOST = _run("counter", "lost_time_seconds", "Time that was lost, by its cause.", "cause", CAUSES)
RATIO = _run(
    "gauge",
    "effective_time_ratio",
    "Effective training time ratio (ETTR) over the whole run, from 0 to 1.",
)
STEP = _run("gauge", "step", "Highest step that a worker named.")
STEPS = _run("gauge", "steps_expected", "Steps that training will make, as its heartbeats say.")
PACE = _run("gauge", "steps_per_second", "Pace of the last minutes, 0 while none is known.")
PROGRESS = _run(
    "gauge",
    "last_progress_timestamp_seconds",
    "Latest heartbeat of a worker in the round that runs, in seconds since 1970.",
)
STRAGGLERS = _run(
    "gauge", "stragglers", "Ranks that are slow; 0 without `agent join --straggler-report`."
)
HANGING = _run(
    "gauge", "hanging_seconds", "How long the round that runs has hung, 0 if it does not."
)
COLLECTIVE_STALLED = _run(
    "gauge",
    "collective_stalled_seconds",
    "How long the ranks of a round that hangs have waited in one collective, else 0.",
)

METRICS = tuple(item for item in list(globals().values()) if isinstance(item, Metric))
OF_RUNS = tuple(item for item in METRICS if item.name.startswith("drumbeat_run_"))
# Of runs that have no label of their own these say nothing together.
OF_ONE_RUN = frozenset(
    {
        *(PHASE, HEALTH, AGENTS_MIN, BUDGET, RATIO, STEP, STEPS, PACE),
        *(PROGRESS, HANGING, COLLECTIVE_STALLED),
    }
)
