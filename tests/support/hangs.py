"""Ranks of a round that hangs: their stacks, what is seen of them, and which limits they exceed."""

from typing import Any

from drumbeat.coordinator.core.failures.hang_diagnosis import diagnose
from drumbeat.coordinator.core.failures.hang_evidence import RankEvidence, SeenRanks
from drumbeat.coordinator.core.model import ExpiredLimit, HangDiagnosis, Seat
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import HangKind
from tests.support.world import an_agent

TORCH = "/opt/lib/python3.12/site-packages/torch"
STILL_S = 30.0  # how long the round stands still


def a_stack(*calls: tuple[str, int, str]) -> str:
    """Return the stack of a thread with these calls, innermost first."""
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in calls]
    return "\n".join(["Thread (most recent call first):", *lines, ""])


MAIN = ("/home/u/train.py", 99, "<module>")
ALL_REDUCE = a_stack(
    (f"{TORCH}/distributed/distributed_c10d.py", 2811, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
    ("/home/u/train.py", 20, "step"),
    MAIN,
)
BARRIER = a_stack(
    (f"{TORCH}/distributed/distributed_c10d.py", 4818, "barrier"),
    (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
    ("/home/u/train.py", 71, "save"),
    MAIN,
)
BACKWARD = a_stack(
    (f"{TORCH}/autograd/graph.py", 841, "_engine_run_backward"),
    (f"{TORCH}/autograd/__init__.py", 359, "backward"),
    (f"{TORCH}/_tensor.py", 648, "backward"),
    ("/home/u/train.py", 20, "step"),
    MAIN,
)
LOADER = a_stack(
    ("/home/u/data.py", 9, "__getitem__"),
    (f"{TORCH}/utils/data/_utils/fetch.py", 54, "fetch"),
    ("/home/u/train.py", 15, "main"),
    MAIN,
)
LOCK = a_stack(("/home/u/cache.py", 31, "get"), ("/home/u/train.py", 16, "main"), MAIN)
COPY = a_stack(("/home/u/train.py", 40, "log"), MAIN)


def seen(rank: int, stacks: str = ALL_REDUCE, *, host: int | None = None, **more: Any) -> Any:
    """Return what was seen of a rank: it had its latest heartbeat when the round began to hang."""
    host = rank if host is None else host
    given: dict[str, Any] = {"step": 7, "heartbeat_age_s": STILL_S, "runtime_age_s": 0.1}
    for name in (*given, "scope", "scope_age_s", "step_time_s"):
        if name in more:
            given[name] = more.pop(name)
    local_rank = more.pop("local_rank", 0)
    progress = more.pop("progress", WorkerProgress(local_rank=local_rank, **given))
    return RankEvidence(
        rank=rank,
        local_rank=local_rank,
        seat=a_seat(f"h{host}", rank - local_rank, group_rank=host),
        pid=1000 + rank,
        stacks=stacks,
        progress=progress,
        **more,
    )


def a_seat(name: str, rank_first: int, *, group_rank: int = 0, size: int = 1, **agent: Any) -> Seat:
    """Return the seat of the agent of this name, with ranks in its role as in the world."""
    return Seat(
        agent=an_agent(name, role="d", local_world_size=size, **agent),
        group_rank=group_rank,
        rank_first=rank_first,
        role_rank_first=rank_first,
        role_world_size=size,
    )


def unreached(rank: int, *, host: int | None = None) -> Any:
    """Return what is known of a rank of an agent that does not answer."""
    why = "its agent has not answered within 4 s"
    return seen(rank, "", host=host, is_reached=False, progress=None, problem=why)


def a_limit(**fields: Any) -> ExpiredLimit:
    """Return a progress limit of 20 s, exceeded for as long as the round stands still."""
    given: dict[str, Any] = {
        "number": 1,
        "local_rank": 0,
        "kind": HangKind.PROGRESS,
        "limit_s": 20.0,
        "elapsed_s": STILL_S,
        "is_held": True,
    }
    return ExpiredLimit(**(given | fields))


def judged(*ranks: RankEvidence, expired: tuple[int, ...] = (0,), **limit: Any) -> HangDiagnosis:
    """Return the diagnosis; ``expired`` are the ranks that exceed a limit."""
    limits = dict.fromkeys(expired, a_limit(**limit))
    return diagnose(3, SeenRanks.of(ranks), limits, now=500.0)


def causes(found: HangDiagnosis) -> list[int]:
    """Return the ranks that are named."""
    return [each.worker.rank for each in found.causes]
