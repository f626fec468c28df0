"""Many machines fall silent in one moment: what that costs, at sizes where it shows.

Agents beat at instants of their own, so their leases end one after the other.
"""

import heapq
from collections.abc import Iterable

import pytest

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import DeadlineReached
from drumbeat.coordinator.core.run.records import AgentRemoved, RoundStarted
from drumbeat.model import GroupState
from tests.support.world import BEAT_S, Story, a_running_story, a_story


class Fleet:
    """A run of many agents, each with a phase of its own, and what was pushed to them."""

    def __init__(self, size: int, agents_min: int, agents_max: int, **fields: int) -> None:
        self.story: Story = a_story(agents_min, agents_max, last_call_s=0.0, **fields)
        self.pushes = 0
        self.story.watch = self._watch
        self._beats: list[tuple[float, str]] = []
        for index in range(size):
            name = f"h{index}"
            self.story.join(name)
            heapq.heappush(self._beats, (self.story.now + BEAT_S * index / size, name))

    def _watch(self, effects: list[fx.Effect]) -> None:
        self.pushes += sum(isinstance(effect, fx.Direct) for effect in effects)

    def live(self, seconds: float) -> None:
        """Let agents beat and do what they are told, each at its own instants."""
        story, end = self.story, self.story.now + seconds
        while True:
            due = story.registry.next_deadline()
            at, name = self._beats[0]
            if due is not None and due <= at:
                if due > end:
                    break
                story.now = max(story.now, due)
                story.handle(DeadlineReached())
                continue
            if at > end:
                break
            heapq.heapreplace(self._beats, (at + BEAT_S, name))
            story.now = max(story.now, at)
            agent = story.agents[name]
            if not agent.is_silent and not agent.has_exited:
                agent.obey()
                story.beat(name)
        story.now = end

    def fall_silent(self, names: Iterable[str]) -> None:
        """Cut these machines off, and count from here."""
        for name in names:
            self.story.silence(name)
        self.pushes = 0
        self.story.journal.clear()

    @property
    def rounds(self) -> int:
        """Rounds that were started since."""
        return len(self.story.records(RoundStarted))


SIZE, LOST = 500, 16


def test_a_silent_rack_costs_an_elastic_run_one_round() -> None:
    fleet = Fleet(SIZE, 1, SIZE)
    fleet.live(10.0)
    fleet.fall_silent(f"h{index}" for index in range(100, 100 + LOST))
    fleet.live(20.0)
    assert len(fleet.story.records(AgentRemoved)) == LOST
    assert fleet.rounds == 1
    assert fleet.pushes <= 2.1 * SIZE
    assert len(fleet.story.ranks()) == SIZE - LOST


def test_a_silent_rack_is_replaced_by_standbys_in_at_most_two_rounds() -> None:
    fleet = Fleet(SIZE + 40, SIZE, SIZE)
    fleet.live(10.0)
    fleet.fall_silent(f"h{index}" for index in range(100, 100 + LOST))
    fleet.live(20.0)
    assert fleet.rounds <= 2
    assert len(fleet.story.ranks()) == SIZE
    assert fleet.pushes <= 2.1 * (SIZE + 40)


@pytest.mark.parametrize("after_s", [0.1, 1.4, 1.6, 4.9])
@pytest.mark.parametrize("is_elastic", [True, False])
def test_workers_that_fail_because_of_it_make_no_third_round(
    after_s: float, *, is_elastic: bool
) -> None:
    """At any instant between the machines' death and the end of their leases."""
    size, lost = 200, 8
    spare = 0 if is_elastic else 10
    fleet = Fleet(size + spare, 1 if is_elastic else size, size, restarts_max=3)
    fleet.live(10.0)
    fleet.fall_silent(f"h{index}" for index in range(50, 50 + lost))
    fleet.live(after_s)
    for index in range(100, 110):
        fleet.story.beat(f"h{index}", GroupState.FAILED, workers_alive=0)
    fleet.live(20.0)
    assert fleet.rounds <= 2
    assert fleet.pushes <= 2 * 2.1 * (size + spare)
    assert len(fleet.story.ranks()) == (size - lost if is_elastic else size)


def test_a_rack_half_of_whose_streams_break_costs_two_rounds() -> None:
    fleet = Fleet(200, 1, 200)
    fleet.live(10.0)
    fleet.fall_silent(f"h{index}" for index in range(50, 58))
    for index in range(58, 66):
        fleet.story.break_session(f"h{index}")
    fleet.live(20.0)
    assert fleet.rounds <= 2
    assert len(fleet.story.ranks()) == 184


def test_agents_whose_token_was_revoked_may_all_come_back_with_another_one() -> None:
    """At once, so it may take as long as after a restart of the coordinator."""
    story = a_running_story(3)
    for name in "abc":
        story.break_session(name, is_revoked=True)
    story.advance(10.0)
    for name in "ab":
        story.back(name)
    assert not story.records(AgentRemoved)
    story.advance(5.0)
    assert [record.incarnation for record in story.records(AgentRemoved)] == ["c.1"]
