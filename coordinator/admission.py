"""Pure. Whether an agent may take part in a run."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import fields, replace

from coordinator.errors import (
    CoordinatorError,
    Difference,
    InvalidRequest,
    LimitReached,
    RunClosed,
    SpecMismatch,
)
from coordinator.events import SessionOpened
from coordinator.model import RunSpec
from coordinator.run_state import RunState


def refusal(state: RunState, event: SessionOpened, *, agents_max: int) -> CoordinatorError | None:
    """Return why the agent can't be let in, ``None`` if it can.

    A member comes back whatever the run does: an ended run still owes it the
    verdict. A stranger is let in if the run lives, the specs agree and there is
    room in the table.
    """
    known = state.members.get(event.agent.incarnation)
    if known is not None:
        # Its name is as it was made unique when it came first.
        is_same = known == replace(event.agent, name=known.name)
        return None if is_same else InvalidRequest("hello", event.agent, f"as before: {known}")
    if state.verdict is not None:
        outcome = "succeeded" if state.verdict.is_success else "failed"
        return RunClosed(state.run_id, f"it {outcome}: {state.verdict.reason}")
    if found := differences(theirs=event.spec, ours=state.spec):
        return SpecMismatch(state.run_id, found)
    if len(state.members) >= agents_max:
        return LimitReached("agents_per_run_max", agents_max)
    return None


def unique(name: str, taken: AbstractSet[str]) -> str:
    """Return the name, numbered if an agent of the run has it already: "node7#2"."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found


def differences(*, theirs: RunSpec, ours: RunSpec) -> tuple[Difference, ...]:
    """Return the fields in which an agent's spec differs from the run's, both values shown."""
    return tuple(
        Difference(
            field=field.name.removesuffix("_s"),  # as the protocol calls it
            theirs=_shown(getattr(theirs, field.name)),
            ours=_shown(getattr(ours, field.name)),
        )
        for field in fields(RunSpec)
        if getattr(theirs, field.name) != getattr(ours, field.name)
    )


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
