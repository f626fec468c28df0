"""Starts a program with a deliberate mistake in it, which rounds of chaos have to notice.

``python -m tests.chaos.mistakes MISTAKE -m MODULE ARGUMENT...``. Those of the simulation that
change the product and not its world work here as well.
"""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from drumbeat.coordinator.core.effects import Persist
from drumbeat.coordinator.core.membership.departed import Departed
from drumbeat.coordinator.core.run import state
from drumbeat.coordinator.core.run.records import (
    CallKind,
    CallNoted,
    RoundEnd,
    RoundStarted,
)
from drumbeat.coordinator.journal.journal import JournaledRuns
from tests.simulation.checks import failover_mistakes
from tests.simulation.checks import mistakes as simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drumbeat.coordinator.core.run.records import EndingStarted, Record, RoundEnded

    Mistake = Callable[[pytest.MonkeyPatch], None]


def _leave_out(patch: pytest.MonkeyPatch, is_forgotten: Callable[[Record], bool]) -> None:
    """Have the journal keep all records but these."""

    def changes(self: JournaledRuns, effects: Iterable[Any]) -> Any:
        kept = [
            effect
            for effect in effects
            if not (isinstance(effect, Persist) and is_forgotten(effect.record))
        ]
        return original(self, kept)

    original = JournaledRuns.changes
    patch.setattr(JournaledRuns, "changes", changes)


def forgets_rounds(patch: pytest.MonkeyPatch) -> None:
    """All rounds but the first are told, and not journaled."""
    _leave_out(patch, lambda record: isinstance(record, RoundStarted) and record.round_id > 0)


def forgets_notes(patch: pytest.MonkeyPatch) -> None:
    """A note is acknowledged, and not journaled."""
    _leave_out(
        patch, lambda record: isinstance(record, CallNoted) and record.kind is CallKind.NOTE_ADDED
    )


def charges_losses(patch: pytest.MonkeyPatch) -> None:
    """An agent that is lost costs a restart."""

    def leave(self: state.RunState, record: RoundEnded | EndingStarted) -> None:
        original(self, record)
        self.restart_count += getattr(record, "cause", None) is RoundEnd.AGENT_LOST

    original = state.RunState._leave_round
    patch.setattr(state.RunState, "_leave_round", leave)


def gives_a_rank_twice(patch: pytest.MonkeyPatch) -> None:
    """The last host of a round has the ranks of the first, too."""

    def assign(*args: Any, **named: Any) -> Any:
        seats = original(*args, **named)
        last = list(seats)[-1]
        return seats | {last: replace(seats[last], rank_first=0)}

    original: Callable[..., Any] = vars(state)["assign_seats"]
    patch.setattr(state, "assign_seats", assign)


def waits_for_no_workers(patch: pytest.MonkeyPatch) -> None:
    """A round begins while agents that leave still stop workers of the one before."""
    patch.setattr(Departed, "with_workers", lambda _self: [])


MISTAKES: dict[str, Mistake] = {
    mistake.__name__: mistake
    for mistake in (
        forgets_rounds,
        forgets_notes,
        charges_losses,
        gives_a_rank_twice,
        waits_for_no_workers,
        failover_mistakes.leads_on_after_its_lease,
        failover_mistakes.leads_beside_another,
        simulated.drops_records,
        simulated.forgets_successes,
        simulated.fences_itself,
        simulated.charges_the_dead,
    )
}


def main(arguments: list[str]) -> None:
    """Make the mistake, and become the program."""
    mistake, flag, module, *rest = arguments
    assert flag == "-m", "the name of a module follows"
    MISTAKES[mistake](pytest.MonkeyPatch())
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
