"""Pure. The metrics of an agent: what there is, with which labels."""

from __future__ import annotations

from functools import partial
from typing import Literal

from drumbeat.command.metrics import BUILD, LONG_S, Metric
from drumbeat.model import GroupState

STATES = tuple(state.lower() for state in GroupState)
STATUSES = ("succeeded", "failed", "terminated")
RESTARTS_BY = ("round", "in_process")
HANGS = ("timer", "section", "startup", "progress", "runtime", "exit")
STAGES = ("rendezvous", "start", "stop")
CPU_MODES = ("user", "system", "idle", "iowait", "other")


def _metric(
    kind: Literal["counter", "gauge", "histogram"],
    name: str,
    about: str,
    *labels: str,
    values: tuple[str, ...] = (),
) -> Metric:
    return Metric(kind, f"drumbeat_{name}", about, labels, ", ".join(values))


_gauge, _counter = partial(_metric, "gauge"), partial(_metric, "counter")

INFO = _gauge("agent_info", "Always 1; whose metrics these are.", "run_id", "agent", "role")
CONNECTED = _gauge("agent_connected", "Whether the coordinator has welcomed it, 1 or 0.")
SESSIONS_LOST = _counter(
    "agent_sessions_lost", "Sessions that ended, and attempts to open one that failed."
)
SPOOLED = _gauge(
    "agent_spooled_failure_records", "Failure records that the coordinator has not acknowledged."
)
STATE = _gauge(
    "agent_state",
    "1 for the state that the workers are in as a unit, else 0.",
    "state",
    values=STATES,
)
WORKERS = _gauge("agent_workers", "Workers that run on this machine.")
WORKERS_MAX = _gauge("agent_workers_wanted", "Workers that a round has on this machine.")
ROUND = _gauge("agent_round", "Number of the latest round that it was assigned, from 0.")
ROUNDS = _counter("agent_rounds", "Rounds that it was assigned.")
RESTARTS = _counter(
    "agent_restarts",
    "Rounds after the first one, and restarts within a round.",
    "restart",
    values=RESTARTS_BY,
)
ENDED = _counter(
    "agent_workers_ended",
    "Workers by how they ended; terminated are those that the agent stopped.",
    "status",
    values=STATUSES,
)
HANGS_FOUND = _counter(
    "agent_hangs",
    "Limits of workers that were exceeded, those that are only reported too.",
    "kind",
    values=HANGS,
)
STAGE = _metric(
    "histogram",
    "agent_stage_duration_seconds",
    "What `rendezvous.duration.ms` and its like tell of each round.",
    "stage",
    values=STAGES,
)._replace(buckets=LONG_S)
STEP = _gauge("worker_step", "Latest step that a worker named.", "local_rank")
STEP_TIME = _gauge(
    "worker_step_duration_seconds",
    "Time of a worker's latest step, from its last two heartbeats.",
    "local_rank",
)
HEARTBEAT = _gauge(
    "worker_last_heartbeat_timestamp_seconds",
    "Latest heartbeat of a worker, in seconds since 1970.",
    "local_rank",
)
WORKER_MEMORY = _gauge(
    "worker_memory_resident_bytes",
    "Resident memory of a worker's process, without the processes that it has started.",
    "local_rank",
)
MEMORY_USED = _gauge(
    "agent_memory_used_bytes",
    "Memory that the workers' cgroup uses, without file cache that can be dropped; without a limit "
    "that the machine uses.",
)
MEMORY_LIMIT = _gauge(
    "agent_memory_limit_bytes",
    "Limit of that cgroup or of one above it; without a limit the memory of the machine.",
)
CPU = _counter("host_cpu_seconds", "Time of all CPUs of the machine.", "mode", values=CPU_MODES)
MEMORY = _gauge("host_memory_size_bytes", "Memory of the machine.")
MEMORY_AVAILABLE = _gauge("host_memory_available_bytes", "Memory that programs can still have.")
GPU_MEMORY = _gauge("host_gpu_memory_size_bytes", "Memory of a GPU.", "gpu")
GPU_MEMORY_USED = _gauge(
    "host_gpu_memory_used_bytes",
    "Memory of a GPU that any process uses, as of the scrape before.",
    "gpu",
)

# All that are declared here, in their order.
METRICS = (
    BUILD,
    *(value for value in vars().copy().values() if isinstance(value, Metric) and value != BUILD),
)
