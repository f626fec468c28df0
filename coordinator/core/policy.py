"""Pure. Numbers that hold for a coordinator and for every run that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model import Pace
from coordinator.core.progress.adaptive_timeouts import LearningRules

_BASE_PACE = Pace(heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25)
_LEARNING = LearningRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits, graces and the pace of agents. Durations are seconds.

    ``agents_at_base_pace``: agents of a run that keep ``base_pace``; for more see ``RunPace``.
    ``agents_max``: of one run, standbys included; twice the largest jobs we know of.
    ``runs_max``: live runs; a hello of one more is refused.
    ``runs_ended_*``: what is remembered of runs that have ended, in all and per run id;
    the oldest is forgotten first.
    ``incarnations_heard_max``: agents whose failure records are told from repeated ones;
    records of one more are not kept.
    ``failures_bytes_max``: what the failure records of all runs may take together; each may
    have ``failures_bytes_least`` of it whatever others have.
    ``failures_kept_max``, ``failures_bytes_per_run_max``: failure records kept of a run that
    lives; of more, those that tell least are only counted.
    ``history_max``: decisions kept of a run; the oldest is forgotten first.
    ``standings_shown_max``: workers whose place is kept when a round fails. They go into the
    journal and to every agent: some 100 bytes each.
    ``reconnect_grace_s``: a broken stream may be back for this long. An agent makes its first
    three attempts within 350 ms.
    ``restart_grace_s``: the same for members a restarted coordinator remembers, and the
    longest that missed agents delay a decision on a failed group.
    ``report_wait_s``: how much longer than the stop timeout a failed run waits for workers to
    stop and records to arrive.
    ``progress_interval_s``: how often waiting agents are told how it goes.
    ``stall_s``: a deadline noticed this late means that the coordinator itself stood still;
    that time then counts in no silence, because beats could not be read. Short, because a
    stop little longer than a lease leaves no more to see.
    """

    base_pace: Pace = _BASE_PACE
    agents_at_base_pace: int = 2_000
    agents_max: int = 20_000
    runs_max: int = 1_000
    runs_ended_max: int = 1_000
    runs_ended_per_id_max: int = 20
    runs_ended_bytes_max: int = 256 * 1024 * 1024
    incarnations_heard_max: int = 200_000
    failures_bytes_max: int = 256 * 1024 * 1024
    failures_bytes_least: int = 256 * 1024
    failures_bytes_per_run_max: int = 8 * 1024 * 1024
    failures_kept_max: int = 1_000
    history_max: int = 1_000
    standings_shown_max: int = 256
    learning: LearningRules = _LEARNING
    reconnect_grace_s: float = 0.5
    restart_grace_s: float = 15.0
    report_wait_s: float = 10.0
    progress_interval_s: float = 2.0
    stall_s: float = 0.1

    def return_grace_s(self, pace: Pace) -> float:
        """Return how long members have to come back who could not for a while."""
        return max(self.restart_grace_s, 2 * pace.reconnect_delay_max_s)
