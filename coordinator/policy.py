"""Pure. Numbers that hold for every run of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """Limits and graces of a run. Durations are seconds.

    ``reconnect_grace_s``: a broken stream may be back for this long.
    ``restart_grace_s``: the same for members a restarted coordinator remembers.
    ``report_wait_s``: how much longer than the stop timeout a failed run waits
    for workers to stop and records to arrive.
    ``progress_interval_s``: how often waiting agents are told how it goes.
    ``stall_s``: a deadline noticed this late means that the coordinator itself
    was stopped; leases are then renewed, because beats could not be read.
    """

    agents_max: int = 20_000
    failures_kept_max: int = 1_000
    reconnect_grace_s: float = 0.5
    restart_grace_s: float = 15.0
    report_wait_s: float = 10.0
    progress_interval_s: float = 2.0
    stall_s: float = 1.0
