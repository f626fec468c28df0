"""What the watchdog has observed of sections and heartbeats, over all workers."""

from collections.abc import Mapping

from drumbeat.agent.core.watchdog.model import (
    CollectivesRead,
    Snapshot,
    Tally,
    WatchdogPolicy,
    WorkerKey,
)
from drumbeat.agent.core.watchdog.worker import NAMES_MAX, Worker, merged
from drumbeat.agent.watchdog.flight_recorder import Progress


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


def test_collectives_have_moved_from_the_first_move_that_was_seen_to_the_latest() -> None:
    """That there are some at all is no move."""
    key = WorkerKey(0, 0)
    worker = Worker(key, WatchdogPolicy(observes_workers=True), now=0.0)
    moved = []
    for now, done in ((10.0, 1), (20.0, 1), (30.0, 2), (40.0, 5), (50.0, 5)):
        progress = Progress((("default", done, done),))
        worker.read_collectives(
            CollectivesRead(worker=key, progress=progress, is_waiting=False), now=now
        )
        moved.append(worker.collectives_moved_s)
    assert moved == [0.0, 0.0, 0.0, 10.0, 10.0]
