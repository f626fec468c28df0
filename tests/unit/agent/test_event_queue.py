"""The events that wait for an agent's core."""

import pytest

from drumbeat.agent.core.events import DeadlineReached, Event, WorkersStarted
from drumbeat.agent.core.model import WorkerStep
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.runtime.driver import EventQueue


def a_step(iteration: int, local_rank: int = 0, round_id: int = 0) -> WorkerStep:
    key = WorkerKey(round_id, local_rank)
    return WorkerStep(worker=key, iteration=iteration, kind="completed")


def test_events_keep_their_order() -> None:
    queue = EventQueue()
    events: list[Event] = [WorkersStarted(round_id=0), a_step(0), DeadlineReached(), a_step(0, 1)]
    for event in events:
        queue.put(event)
    assert [queue.take() for _ in events] == events
    assert not queue
    with pytest.raises(KeyError):
        queue.take()


def test_a_worker_that_talks_without_end_fills_one_place() -> None:
    queue = EventQueue()
    queue.put(WorkersStarted(round_id=0))
    for number in range(10_000):
        queue.put(a_step(number))
        queue.put(a_step(number, 1))
    assert len(queue) == 3
    queue.take()
    assert [queue.take(), queue.take()] == [a_step(9_999), a_step(9_999, 1)]
    queue.put(a_step(5))
    assert queue.take() == a_step(5)


def test_steps_of_two_rounds_are_of_two_workers() -> None:
    queue = EventQueue()
    queue.put(a_step(3))
    queue.put(a_step(0, round_id=1))
    assert len(queue) == 2
