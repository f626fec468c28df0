"""Pure. What is remembered of runs: which of an id each is, and what an ended one costs."""

from __future__ import annotations

from coordinator.core.run.state import RunState


def id_and_generation(key: str) -> tuple[str, int]:
    """Return what a ``RunState.key`` is made of."""
    run_id, _, generation = key.partition("#")
    return run_id, int(generation) if generation.isdecimal() else 1


def ended_bytes(state: RunState) -> int:
    """Return roughly what an ended run holds in memory."""
    size = 512 * len(state.members) + 256 * len(state.history)
    report = state.verdict.report if state.verdict is not None else None
    if report is not None:
        size += sum(record.size_bytes for record in report.root_causes)
        size += 2_048 * len(report.victims) + 512 * len(report.standings)
    return size
