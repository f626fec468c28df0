"""Pure. What must hold of a run's state between two records, for tests."""

from __future__ import annotations

from drumbeat.coordinator.core.run.state import (
    ACCUSATIONS_MAX,
    OBSTACLES_KNOWN_MAX,
    Phase,
    RunState,
)


def check_state(state: RunState) -> None:
    """Raise ``AssertionError`` if something does not hold. Linear in agents."""
    current, spec = state.round, state.spec
    assert (state.verdict is not None) == (state.phase is Phase.ENDED), state.phase
    assert 0 <= state.restarts_used <= spec.restarts_max, "budget overdrawn"
    is_free = bool(spec.launcher) or state.restarts.free <= spec.free_restarts_max
    assert is_free, "free restarts overdrawn"
    assert len(state.failures) <= state.failures_kept_max, "too many failure records"
    assert len(state.history) <= state.history_max, "too long a history"
    held = sum(record.size_bytes for record in state.failures)
    assert state.failures_bytes == held, "failure records are not weighed right"
    assert (state.ended_at is not None) == (state.phase is Phase.ENDED), state.ended_at
    assert len(state.accusations) <= ACCUSATIONS_MAX, "too many accusations"
    assert len(state.obstacles) <= OBSTACLES_KNOWN_MAX, "too many obstacles"
    state.observed.ledger.check_invariants()
    if state.phase is not Phase.RUNNING:
        return
    assert current is not None, "running without a round"
    assert state.succeeded <= current.seats.keys(), "success of a stranger"
    assert state.given_up <= state.excused <= current.seats.keys(), "a stranger is excused"
    assert not state.excused & state.succeeded, "excused after it succeeded"
    assert state.iterations is not None, "a round that can't have iterations"
    state.iterations.check_invariants()
    assert spec.agents_min <= len(current.seats) <= spec.agents_max, "size of the round"
    rank = 0
    for group_rank, seat in enumerate(current.seats.values()):
        assert (seat.group_rank, seat.rank_first) == (group_rank, rank), "ranks have holes"
        rank += seat.agent.local_world_size
    assert rank == current.world_size, "world size is not the sum"
