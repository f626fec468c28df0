"""What the watchdog has observed of sections and heartbeats, over all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumbeat.agent.core.watchdog.model import Snapshot, WatchdogPolicy, WorkerKey
from drumbeat.agent.core.watchdog.worker import NAMES_MAX, Worker, merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drumbeat.agent.core.watchdog.model import Tally


def observed(gaps: int, gap_max_s: float, sections: Mapping[str, Tally]) -> Mapping[str, Tally]:
    worker = Worker(WorkerKey(0, 0), WatchdogPolicy(), now=0.0)
    worker.read(Snapshot(gaps=gaps, gap_max_s=gap_max_s, sections=sections))
    return worker.observed()


def test_observations_are_merged_over_workers() -> None:
    first = observed(3, 2.0, {"save": (1, 9.0)})
    second = observed(2, 4.0, {"save": (2, 7.0), "load": (1, 1.0)})
    assert merged([first, second]) == {"": (5, 4.0), "load": (1, 1.0), "save": (3, 9.0)}


def test_observations_are_bounded() -> None:
    names = merged([observed(1, 1.0, {f"s{n}": (1, 1.0) for n in range(80)})])
    assert len(names) == NAMES_MAX
    assert "" in names
