"""What is remembered of runs that have ended: its bound counts all that it takes."""

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from drumbeat.coordinator.core.membership.drains import Drains
from drumbeat.coordinator.core.membership.load import Load
from drumbeat.coordinator.core.policy import Policy
from drumbeat.coordinator.core.registry.isolation import IsolatedRun, go_on
from drumbeat.coordinator.core.registry.registry import ended_bytes
from drumbeat.coordinator.core.run.records import HistoryEntry
from drumbeat.coordinator.core.run.state import Phase, RunState, id_and_generation, key_of
from tests.support.world import a_running_story, an_agent

COPIES = 10


def an_ended_run() -> RunState:
    story = a_running_story(3, restarts_max=50)
    for _ in range(5):
        story.record("a", message="boom", traceback="x" * 5_000, size_bytes=6_000)
        story.fail("a")
        story.obey_all()
        story.obey_all()
    for name in ("a", "b", "c"):
        story.succeed(name)
    assert story.state().phase is Phase.ENDED
    return story.state()


def with_history(reason: str) -> Callable[[RunState], None]:
    def change(state: RunState) -> None:
        state.history = [
            HistoryEntry(
                at_s=number + 0.5, decision="round ended", reason=f"{reason}{number}", round_id=7
            )
            for number in range(state.history_max)
        ]

    return change


def with_members(state: RunState) -> None:
    for number in range(500):
        agent = an_agent(f"host{number}")
        state.members[agent.incarnation] = agent
        state.drained[agent.incarnation] = "the operator wants it"


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        with_history("short"),
        with_history("x" * 500),
        with_history("\u9f13" * 500),
        with_history("\U0001f941" * 500),
        with_members,
    ],
)
def test_an_ended_run_takes_no_more_memory_than_is_counted(
    change: Callable[[RunState], None],
) -> None:
    """As a coordinator holds it: the state of its core, and the one that readers see."""
    state, kept = an_ended_run(), list[object]()
    change(state)
    encoded = msgspec.msgpack.encode(state)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(COPIES):
            shown, own = (msgspec.msgpack.decode(encoded, type=RunState) for _ in range(2))
            run, _ = go_on(own, Policy(), 1e6, Drains(most=1), Load(Policy()))
            kept.append((shown, IsolatedRun(run, Policy())))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / COPIES <= ended_bytes(state) <= 5 * taken / COPIES


def test_a_key_is_read_as_it_was_made() -> None:
    for run_id, generation in (("a", 1), ("a.b-c_", 2), ("0", 123)):
        assert id_and_generation(key_of(run_id, generation)) == (run_id, generation)
