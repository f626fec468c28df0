"""The order in which a coordinator takes what waits."""

from typing import Any

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core import events as ev
from drumbeat.coordinator.core.model import Beat
from drumbeat.coordinator.shell.turns import BATCH_MAX, Turns
from drumbeat.model import GroupState

DUE = 1.0


class ToldInTurns:
    """Stands for a registry with a deadline and a run that never has told all its members."""

    def __init__(self) -> None:
        self.taken: list[ev.Event] = []

    def handle(self, event: ev.Event, *, now: float) -> list[fx.Effect]:  # noqa: ARG002
        self.taken.append(event)
        return [fx.TellMore(run_id="run")] if isinstance(event, ev.TurnCame) else []

    def next_deadline(self) -> float:
        return DUE

    def was_deaf(self, *, now: float) -> bool:  # noqa: ARG002
        return False

    def take_quietly(self, event: ev.BeatReceived, *, now: float) -> bool:  # noqa: ARG002
        return False


def a_beat(number: int) -> ev.BeatReceived:
    name, beat = f"a{number}", Beat(state=GroupState.RUNNING, round_id=0)
    return ev.BeatReceived(run_id="run", session_id=name, incarnation=name, beat=beat)


def test_a_deadline_waits_for_all_beats_however_many_turns_others_are_told_in() -> None:
    registry: Any = ToldInTurns()
    turns = Turns(
        registry,
        read_run=lambda _: None,
        log=lambda _: None,
        wake=lambda: None,
        queue_max=10_000,
        failure_taken=lambda: None,
    )
    turns.tell([fx.TellMore(run_id="run")])
    beats = 3 * BATCH_MAX - 2  # the last of them just fit into the third turn
    for number in range(beats):
        turns.submit(a_beat(number), now=DUE)
    while not any(isinstance(event, ev.DeadlineReached) for event in registry.taken):
        turns.tell(turns.decide(now=DUE))
    kinds = [type(event) for event in registry.taken]
    assert kinds[: kinds.index(ev.DeadlineReached)].count(ev.BeatReceived) == beats
    assert kinds[: BATCH_MAX + 2].count(ev.TurnCame) == 2, "one in each turn, and before the beats"
