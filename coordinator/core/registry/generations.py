"""Pure. Runs that have the same id one after the other, and which ended ones are remembered.

A run id can be used again once its run has ended. Whom an agent belongs to is judged
by durations alone: its uptime against the age of the verdict.
"""

from __future__ import annotations

from coordinator.core.events import FailureReported, SessionOpened
from coordinator.core.registry.isolation import IsolatedRun
from coordinator.core.run.state import Phase, RunState, key_of

# What an ended run holds in memory, roughly: of every member, decision, victim and worker.
_MEMBER_BYTES = 512
_DECISION_BYTES = 256
_VICTIM_BYTES = 2_048
_STANDING_BYTES = 512


class Generations:
    """Finds runs by id. ``runs`` are those of the registry, by ``RunState.key``."""

    def __init__(self, runs: dict[str, IsolatedRun]) -> None:
        self._runs = runs
        self._numbers: dict[str, list[int]] = {}

    def add(self, run: IsolatedRun) -> None:
        """Take a run in."""
        self._runs[run.state.key] = run
        numbers = self._numbers.setdefault(run.state.run_id, [])
        numbers.append(run.state.generation)
        numbers.sort()

    def remove(self, key: str) -> IsolatedRun:
        """Forget a run, and return it."""
        run = self._runs.pop(key)
        numbers = self._numbers[run.state.run_id]
        numbers.remove(run.state.generation)
        if not numbers:
            del self._numbers[run.state.run_id]
        return run

    def latest(self, run_id: str) -> IsolatedRun | None:
        """Return the run that has this id now, or had it last."""
        numbers = self._numbers.get(run_id)
        return None if numbers is None else self._runs.get(key_of(run_id, numbers[-1]))

    def of_agent(self, run_id: str, incarnation: str | None) -> IsolatedRun | None:
        """Return the run of this id that the agent is a member of, else the latest."""
        latest = self.latest(run_id)
        if latest is None or incarnation is None or incarnation in latest.state.members:
            return latest
        for number in reversed(self._numbers[run_id][:-1]):
            run = self._runs[key_of(run_id, number)]
            if incarnation in run.state.members:
                return run
        return latest

    def before(self, run: IsolatedRun) -> IsolatedRun | None:
        """Return the run that had this id before, if it is remembered."""
        return self._runs.get(key_of(run.state.run_id, run.state.generation - 1))

    def surplus(self, run_id: str, limit: int) -> list[str]:
        """Return the keys of the oldest runs of an id that has more ended ones than this."""
        numbers = self._numbers.get(run_id, [])[:-1]  # the latest is not one of them
        return [key_of(run_id, number) for number in numbers[: max(0, len(numbers) - limit)]]

    def check_invariants(self) -> None:
        """Assert what must hold between events; for tests."""
        listed = {key_of(i, number) for i, numbers in self._numbers.items() for number in numbers}
        assert listed >= self._runs.keys(), "a run that no id leads to"
        for run in self._runs.values():
            is_latest = self.latest(run.state.run_id) is run
            assert is_latest or run.state.phase is Phase.ENDED, "two runs of an id are alive"


def began_after_end(event: SessionOpened, state: RunState, *, now: float) -> bool:
    """Return whether the agent's process began after this run ended.

    One that says no uptime did not, as far as can be told, nor one that holds a round.
    """
    if event.uptime_s is None or event.beat.round_id is not None or state.ended_at is None:
        return False
    return now - event.uptime_s >= state.ended_at


def is_of_predecessor(event: SessionOpened, state: RunState, *, now: float) -> bool:
    """Return whether the agent's process began before the predecessor of this run ended."""
    if event.uptime_s is None or state.predecessor_ended_at is None:
        return False
    return now - event.uptime_s < state.predecessor_ended_at


def is_older_than_run(event: FailureReported, state: RunState, *, now: float) -> bool:
    """Return whether what a record tells of happened before the predecessor of this run ended."""
    ended_at = state.predecessor_ended_at
    return ended_at is not None and now - event.record.age_s < ended_at


def ended_bytes(state: RunState) -> int:
    """Return roughly what an ended run holds in memory."""
    size = len(state.members) * _MEMBER_BYTES + len(state.history) * _DECISION_BYTES
    report = state.verdict.report if state.verdict is not None else None
    if report is not None:
        size += sum(record.size_bytes for record in report.root_causes)
        size += len(report.victims) * _VICTIM_BYTES + len(report.standings) * _STANDING_BYTES
    return size
