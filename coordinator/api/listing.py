"""Pure. Which runs a list shows, and in which order: those that need attention first."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

PHASES = ("gathering", "running", "ending", "ended")
# In the order in which they are listed. Runs that have ended come last, but those that failed of
# late; of these the latest is the first.
HEALTHS = ("crash_loop", "hanging", "no_progress", "failed", "degraded", "waiting", "healthy")
OUTCOMES = ("succeeded", "stopped")
LATELY_S = 24 * 3600.0
SORTS = ("health", "name", "age", "step", "restarts", "trained")
# Those with most come first.
_NUMBERS = {"step": "step", "restarts": "restarts_used", "trained": "effective_ratio"}


def chosen(
    documents: Document, *, phase: str | None, sort: str, **_: Any
) -> tuple[list[Document], list[Document], list[Document]]:
    """Return the runs and the jobs that are shown, and the rows of both in order.

    Replica groups are shown as the job that they are together. ``phase`` is a phase, or a health.
    """
    runs = _sorted((run for run in documents["runs"] if _is_in(run, phase)), sort)
    jobs = _sorted((job for job in documents["jobs"] if _is_in(job, phase)), sort)
    return runs, jobs, _sorted([*(run for run in runs if run["job"] is None), *jobs], sort)


def attention(run: Document) -> tuple[int, float]:
    """Return the place of a run in a list, those first that one should look at."""
    ended_s, health = run["ended_age_s"], run["health"]
    if ended_s is not None and (health != "failed" or ended_s > LATELY_S):
        return len(HEALTHS), ended_s
    return HEALTHS.index(health) if health in HEALTHS else len(HEALTHS) - 1, ended_s or 0.0


def _is_in(run: Document, phase: str | None) -> bool:
    return phase is None or phase in (run["phase"], run["health"])


def _sorted(rows: Any, sort: str) -> list[Document]:
    def place(run: Document) -> tuple[float, ...]:
        match sort:
            case "health":
                return attention(run)
            case "age":
                return (run.get("age_s") or 0.0,)
            case "name":
                return ()
        return (-(run.get(_NUMBERS[sort]) or 0.0),)

    def key(run: Document) -> tuple[Any, ...]:
        return *place(run), run["run_id"], -run.get("generation", 1)

    return sorted(rows, key=key)
