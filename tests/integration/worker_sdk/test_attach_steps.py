"""Steps and orders on the conversation with the agent, with a real server."""

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.worker.v1 import worker_pb2
from tests.support.fake_agents import FakeAgents
from worker_sdk.attach import Attachment

WAIT_S = 20.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[FakeAgents]:
    with FakeAgents(tmp_path, 0, "") as made:
        made.expect(0)
        yield made


@pytest.fixture
def attachment(agents: FakeAgents) -> Iterator[Attachment]:
    made = Attachment(agents.target, "worker-0")
    yield made
    thread = made._thread
    made.close()
    if thread is not None:
        thread.join(WAIT_S)


def entered(iteration: int) -> worker_pb2.WorkerStep:
    return worker_pb2.WorkerStep(iteration=iteration, entered=worker_pb2.Entered())


def test_the_latest_step_is_repeated_on_a_new_stream(
    agents: FakeAgents, attachment: Attachment
) -> None:
    attachment.send_step(entered(0))
    agents.model.wait_for(lambda: len(agents.model.said) == 1)
    agents.break_streams()
    agents.model.wait_for(lambda: len(agents.model.said) == 2)
    assert agents.model.kinds(0) == [(0, "entered")] * 2


def test_a_confirmed_step_has_arrived(agents: FakeAgents, attachment: Attachment) -> None:
    attachment.send_step(entered(0))
    assert attachment.confirm(WAIT_S)
    assert agents.model.kinds(0) == [(0, "entered")]


def test_who_comes_late_gets_the_latest_order(attachment: Attachment) -> None:
    first: queue.Queue[worker_pb2.WorkerOrder | None] = queue.Queue()
    attachment.on_order(first.put)
    attachment.send_step(entered(0))
    order = first.get(timeout=WAIT_S)
    assert order is not None
    assert order.WhichOneof("kind") == "begin"
    later: queue.Queue[worker_pb2.WorkerOrder | None] = queue.Queue()
    attachment.on_order(later.put)
    assert later.get(timeout=WAIT_S) == order


def test_the_end_of_the_conversation_is_told(attachment: Attachment) -> None:
    orders: queue.Queue[worker_pb2.WorkerOrder | None] = queue.Queue()
    attachment.on_order(orders.put)
    attachment.send_step(entered(0))
    assert orders.get(timeout=WAIT_S) is not None
    attachment.close()
    assert orders.get(timeout=WAIT_S) is None
