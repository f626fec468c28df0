"""Pure. The metrics of an agent: what there is, with which labels."""

from __future__ import annotations

from drumbeat.agent.core.model import GroupState
from drumbeat.command.metrics import BUILD, LONG_S, Metric

STATES = tuple(state.lower() for state in GroupState)
STATUSES = ("succeeded", "failed", "terminated")
RESTARTS_BY = ("round", "in_process")
HANGS = ("timer", "section", "startup", "progress", "runtime", "exit")
STAGES = ("rendezvous", "start", "stop")
CPU_MODES = ("user", "system", "idle", "iowait", "other")


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values)


INFO = Metric(
    "gauge",
    "drumbeat_agent_info",
    "Always 1; whose metrics these are.",
    ("run_id", "agent", "role"),
)
CONNECTED = Metric(
    "gauge", "drumbeat_agent_connected", "Whether the coordinator has welcomed it, 1 or 0."
)
SESSIONS_LOST = Metric(
    "counter",
    "drumbeat_agent_sessions_lost",
    "Sessions that ended, and attempts to open one that failed.",
)
SPOOLED = Metric(
    "gauge",
    "drumbeat_agent_spooled_failure_records",
    "Failure records that the coordinator has not acknowledged.",
)
STATE = Metric(
    "gauge",
    "drumbeat_agent_state",
    "1 for the state that the workers are in as a unit, else 0.",
    ("state",),
    _listed(STATES),
)
WORKERS = Metric("gauge", "drumbeat_agent_workers", "Workers that run on this machine.")
WORKERS_MAX = Metric(
    "gauge", "drumbeat_agent_workers_wanted", "Workers that a round has on this machine."
)
ROUND = Metric(
    "gauge", "drumbeat_agent_round", "Number of the latest round that it was assigned, from 0."
)
ROUNDS = Metric("counter", "drumbeat_agent_rounds", "Rounds that it was assigned.")
RESTARTS = Metric(
    "counter",
    "drumbeat_agent_restarts",
    "Rounds after the first one, and restarts within a round.",
    ("restart",),
    _listed(RESTARTS_BY),
)
ENDED = Metric(
    "counter",
    "drumbeat_agent_workers_ended",
    "Workers by how they ended; terminated are those that the agent stopped.",
    ("status",),
    _listed(STATUSES),
)
HANGS_FOUND = Metric(
    "counter",
    "drumbeat_agent_hangs",
    "Limits of workers that were exceeded, those that are only reported too.",
    ("kind",),
    _listed(HANGS),
)
STAGE = Metric(
    "histogram",
    "drumbeat_agent_stage_duration_seconds",
    "What `rendezvous.duration.ms` and its like tell of each round.",
    ("stage",),
    _listed(STAGES),
    LONG_S,
)
STEP = Metric("gauge", "drumbeat_worker_step", "Latest step that a worker named.", ("local_rank",))
STEP_TIME = Metric(
    "gauge",
    "drumbeat_worker_step_duration_seconds",
    "Time of a worker's latest step, from its last two heartbeats.",
    ("local_rank",),
)
HEARTBEAT = Metric(
    "gauge",
    "drumbeat_worker_last_heartbeat_timestamp_seconds",
    "Latest heartbeat of a worker, in seconds since 1970.",
    ("local_rank",),
)
WORKER_MEMORY = Metric(
    "gauge",
    "drumbeat_worker_memory_resident_bytes",
    "Resident memory of a worker's process, without the processes that it has started.",
    ("local_rank",),
)
MEMORY_USED = Metric(
    "gauge",
    "drumbeat_agent_memory_used_bytes",
    "Memory that the workers' cgroup uses, without file cache that can be dropped; without a limit "
    "that the machine uses.",
)
MEMORY_LIMIT = Metric(
    "gauge",
    "drumbeat_agent_memory_limit_bytes",
    "Limit of that cgroup or of one above it; without a limit the memory of the machine.",
)
CPU = Metric(
    "counter",
    "drumbeat_host_cpu_seconds",
    "Time of all CPUs of the machine.",
    ("mode",),
    _listed(CPU_MODES),
)
MEMORY = Metric("gauge", "drumbeat_host_memory_size_bytes", "Memory of the machine.")
MEMORY_AVAILABLE = Metric(
    "gauge", "drumbeat_host_memory_available_bytes", "Memory that programs can still have."
)
GPU_MEMORY = Metric("gauge", "drumbeat_host_gpu_memory_size_bytes", "Memory of a GPU.", ("gpu",))
GPU_MEMORY_USED = Metric(
    "gauge",
    "drumbeat_host_gpu_memory_used_bytes",
    "Memory of a GPU that any process uses, as of the scrape before.",
    ("gpu",),
)

# All that are declared here, in their order.
_OURS = [each for each in globals().values() if isinstance(each, Metric) and each is not BUILD]
METRICS = (BUILD, *_OURS)
