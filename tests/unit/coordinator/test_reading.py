"""Agents read page after page while the run goes on."""

from typing import Any

from drumbeat.coordinator.api.run_reader import READINGS_MAX
from drumbeat.coordinator.command.client import Client
from drumbeat.v1 import query_pb2 as pb

RUN = pb.Run(run_id="run", generation=1)


class Coordinator:
    """A channel that answers with these pages, one after the other."""

    def __init__(self, *pages: pb.ListAgentsResponse) -> None:
        self.pages = list(pages)
        self.asked: list[str] = []

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        return self._answer

    unary_stream = stream_stream = unary_unary

    def _answer(self, request: pb.ListAgentsRequest, **_: Any) -> pb.ListAgentsResponse:
        self.asked.append(request.page_token)
        return self.pages.pop(0)


def page(names: str, token: str = "", round_id: int | None = 0) -> pb.ListAgentsResponse:
    agents = [pb.Agent(incarnation=name) for name in names]
    return pb.ListAgentsResponse(agents=agents, next_page_token=token, round_id=round_id)


def read(channel: Any) -> str:
    return "".join(agent.incarnation for agent in Client(channel, ()).agents(RUN))


def test_pages_of_one_round_make_a_list() -> None:
    channel = Coordinator(page("ab", "1:b"), page("c"))
    assert read(channel) == "abc"
    assert channel.asked == ["", "1:b"]


def test_a_round_that_begins_between_two_pages_has_them_read_again() -> None:
    before = page("ab", "1:b", round_id=None), page("ca")
    channel = Coordinator(*before, page("bc", "1:c"), page("a"))
    assert read(channel) == "bca"
    assert channel.asked == ["", "1:b", "", "1:c"]


def test_of_rounds_that_end_faster_than_they_are_read_each_agent_is_shown_once() -> None:
    pages = [(page("ab", "1:b", round_id=2 * i), page("bc", round_id=2 * i + 1)) for i in range(9)]
    channel = Coordinator(*(each for pair in pages for each in pair))
    assert read(channel) == "abc"
    assert len(channel.asked) == 2 * READINGS_MAX
