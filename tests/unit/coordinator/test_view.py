"""A run as people and tools see it, in pages."""

import pytest

from drumbeat.coordinator.core.model import AgentIdentity
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.coordinator.wire.run_status import PAGE_MESSAGES_MAX, PAGE_SIZE_MAX, agents_page
from drumbeat.v1 import query_pb2
from tests.support.status import RunStatus, status_of
from tests.support.world import Story, a_running_story, a_story

GRPC_DEFAULT_LIMIT = 4 * 1024 * 1024


def page(story: Story, *, token: str = "", size: int = 0) -> query_pb2.ListAgentsResponse:
    view = query_pb2.VIEW_FULL
    request = query_pb2.ListAgentsRequest(page_size=size, page_token=token, view=view)
    return agents_page(request, story.state(), story.run(), now=story.now)


def status(story: Story) -> RunStatus:
    return status_of(story.state(), story.run(), now=story.now)


def pages(story: Story, *, size: int = 0) -> list[query_pb2.ListAgentsResponse]:
    found = [page(story, size=size)]
    while found[-1].next_page_token:
        found.append(page(story, token=found[-1].next_page_token, size=size))
    return found


def two_agents(local_world_size: int) -> Story:
    story = a_story(2)
    for name in ("a", "b"):
        story.join(name, local_world_size=local_world_size)
    story.obey_all()
    return story


def test_a_run_tells_its_round_and_the_ranks_of_each_agent() -> None:
    story = two_agents(local_world_size=4)
    run = status(story)
    current = run.round
    assert (current.round_id, current.world_size, current.group_world_size) == (0, 8, 2)
    assert current.master_addr == story.assignment("a").master_addr
    assert current.master_port == story.assignment("a").master_port
    assert (current.restart_count, run.generation, run.agents_count) == (0, 1, 2)
    assert [
        (
            a.seat.group_rank,
            a.seat.rank_first,
            a.seat.role_rank_first,
            a.seat.role_world_size,
            a.local_world_size,
        )
        for a in run.agents
    ] == [(0, 0, 0, 8, 4), (1, 4, 4, 8, 4)]


def test_before_its_first_round_a_run_has_none() -> None:
    story = a_story(2)
    story.join("a")
    assert not status(story).HasField("round")


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_pages_hold_every_agent_once_participants_first(size: int) -> None:
    story = a_story(4, 4)
    for index in range(9):
        story.join(f"n{index}")
    found = pages(story, size=size)
    agents = [agent for each in found for agent in each.agents]
    assert [agent.HasField("seat") for agent in agents] == [True] * 4 + [False] * 5
    assert [agent.seat.group_rank for agent in agents[:4]] == [0, 1, 2, 3]
    assert sorted(agent.host for agent in agents) == [f"n{index}" for index in range(9)]
    assert status(story).agents_count == 9


def test_agents_that_come_and_go_between_pages_hide_no_other() -> None:
    story = a_story(20)
    for index in range(6):
        story.join(f"n{index}")
    first = page(story, size=3)
    story.leave("n1")
    story.join("m0")
    second = page(story, token=first.next_page_token, size=100)
    seen = [agent.host for each in (first, second) for agent in each.agents]
    assert {f"n{index}" for index in range(6)} - set(seen) == set()
    assert len(seen) == len(set(seen))


def test_a_page_tells_the_round_of_its_seats() -> None:
    story = a_story(2, restarts_max=3)
    story.join("a")
    assert not page(story).HasField("round_id")
    story.join("b")
    story.obey_all()
    assert page(story).round_id == 0
    story.fail("b")
    story.obey_all()
    assert page(story).round_id == 1


@pytest.mark.parametrize("token", ["x", "1", "-1:a", "1.5:a", "²:a"])
def test_a_token_that_no_answer_held_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest, match="page_token"):
        page(a_running_story(1), token=token)


def test_every_page_fits_the_default_limit_of_grpc_at_10_000_agents() -> None:
    story = a_story(10_000)
    workers = tuple(
        WorkerProgress(
            local_rank=rank, step=10**12, step_time_s=1.0, heartbeat_age_s=1.0, scope="s" * 128
        )
        for rank in range(8)
    )
    story.join("n0", local_world_size=8)
    state, run = story.state(), story.run()
    for index in range(1, 10_000):
        incarnation = f"{index:032x}"
        state.members[incarnation] = AgentIdentity(
            incarnation=incarnation, host="h" * 60, address="a", role="r", local_world_size=8
        )
        presence = run.members.attach(incarnation, incarnation, now=story.now)
        assert presence is None
        run.members.presences[incarnation].whereabouts.take(0, workers, now=story.now)
    found = pages(story)
    assert sum(len(each.agents) for each in found) == 10_000
    assert max(len(each.agents) for each in found) <= PAGE_SIZE_MAX
    messages = [sum(1 + len(agent.workers) for agent in each.agents) for each in found]
    assert max(messages) <= PAGE_MESSAGES_MAX  # what else waits for the event loop waits for these
    assert max(each.ByteSize() for each in found) < GRPC_DEFAULT_LIMIT


def test_a_single_agent_larger_than_a_page_still_comes() -> None:
    story = two_agents(local_world_size=4096)
    progress = tuple(
        WorkerProgress(local_rank=rank, step=1, scope="é" * 800) for rank in range(4096)
    )
    for name in ("a", "b"):
        story.beat(name, workers=progress)
    found = pages(story)
    assert [len(each.agents) for each in found] == [1, 1]
