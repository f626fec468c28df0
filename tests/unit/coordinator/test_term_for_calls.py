"""Which calls a coordinator answers: those that come while it leads for certain."""

from types import SimpleNamespace
from typing import Any

import pytest

from drumbeat.coordinator.cluster.membership import ClusterMember
from drumbeat.coordinator.cluster.model import Member
from drumbeat.coordinator.cluster.server import Server
from drumbeat.coordinator.errors import NotLeader
from drumbeat.coordinator.journal.keys import Keys
from tests.support.etcd_model import EtcdModel


class Waiting:
    """A follower that sends callers to another coordinator, unless this one serves."""

    def __init__(self, *, is_serving: bool) -> None:
        self.is_serving = lambda: is_serving

    async def wait_for_term(self, _context: Any) -> None:
        """Find that another one leads."""
        raise NotLeader("other:29400", "it took it")


def server(*, is_serving: bool) -> Server:
    made = Server.__new__(Server)
    made.term, made._follower = SimpleNamespace(number=1), Waiting(is_serving=is_serving)  # type: ignore[assignment]
    return made


async def test_a_call_is_answered_by_the_term_of_a_leader() -> None:
    assert (await server(is_serving=True).term_for(None)).number == 1


async def test_no_call_is_answered_by_a_term_that_may_have_a_successor() -> None:
    """A read would be of a state that another coordinator has changed by now."""
    with pytest.raises(NotLeader, match="other:29400"):
        await server(is_serving=False).term_for(None)


def test_a_member_serves_while_it_has_a_term_and_its_lease() -> None:
    members: Any = SimpleNamespace(term=None, revoked=lambda _id: None)
    member = Member("a", "a:29400", "")
    membership = ClusterMember(EtcdModel().client(), Keys("test"), member, members, ttl_s=1.0)
    election: Any = SimpleNamespace(is_leading=True)
    membership._election = election
    is_serving = membership.follower.is_serving
    assert not is_serving()
    members.term = SimpleNamespace(number=1)
    assert is_serving()
    election.is_leading = False  # it gives leadership away, or its lease is over
    assert not is_serving()
