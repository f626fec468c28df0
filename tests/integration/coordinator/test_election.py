"""Elections on a model of etcd: who leads, whatever is lost on the way."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drumbeat.coordinator.errors import CannotStepDown, JournalUnusable, NotLeader
from drumbeat.coordinator.journal.etcd.model import Delete, Put, Transaction
from drumbeat.coordinator.journal.keys import Keys
from tests.support.candidates import DEADLINE_S, Candidate
from tests.support.etcd_model import EtcdModel, Fault
from tests.support.etcd_state import EtcdState
from tests.support.waiting import MS, wait_until

KEYS = Keys("test")
TTL_S = 1.0


class Coordinator(Candidate):
    """A candidate with a client of its own."""

    def __init__(self, model: EtcdModel, name: str, host: str = "") -> None:
        self.etcd = model.client()
        super().__init__(self.etcd, KEYS, name, ttl_s=TTL_S, host=host)

    async def vanish(self) -> None:
        """End, and have nothing more arrive."""
        self.etcd.cut_off()
        await self.end()


@asynccontextmanager
async def cluster(
    *names: str, now: float | None = None
) -> AsyncIterator[tuple[EtcdModel, list[Coordinator]]]:
    """Yield coordinators of which the first leads, and each knows all.

    With ``now`` no time passes in etcd, so that no lease ends by itself.
    """
    model = EtcdModel(ttl_min_s=1, now=now)
    found: list[Coordinator] = []
    try:
        for name in names:
            found.append(Coordinator(model, name))
            await found[0].leads()
        for each in found:
            await each.follows(found[0])
            await each.knows(len(names))
        yield model, found
    finally:
        for each in found:
            await each.vanish()
        for lease_id in range(1, 100):
            model.expire(lease_id)


async def test_the_first_one_leads_and_all_know_it() -> None:
    async with cluster("a", "b", "c") as (_, (a, b, c)):
        assert [each.address for each in c.election.core.members] == [
            "a:29400", "b:29400", "c:29400",
        ]  # fmt: skip
        assert (a.events, b.events, c.events) == ([await a.leads()], [], [])
        assert (a.election.core.reason, b.election.core.reason) == ("", "")


async def test_another_one_leads_in_a_later_term_once_the_lease_is_over() -> None:
    async with cluster("a", "b", "c") as (model, (a, b, c)):
        term = await a.leads()
        await a.vanish()
        model.expire(1)
        waiting = [each.election.wait_for_leader(term, DEADLINE_S) for each in (b, c)]
        first, second = await asyncio.gather(*waiting)
        assert first == second
        assert first is not None
        assert first.term > term
        assert len(b.events + c.events) == 1, "one of both campaigned with success"


async def test_a_wait_for_a_leader_ends_in_time() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        leader = await b.election.wait_for_leader(0, DEADLINE_S)
        assert leader is not None
        assert leader.address == "a:29400"
        assert await b.election.wait_for_leader(await a.leads(), 20 * MS) is None


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.TWICE])
async def test_a_campaign_whose_answer_is_lost_is_won_all_the_same(fault: Fault) -> None:
    async with cluster("a", "b") as (model, (a, b)):
        term = await a.leads()
        b.etcd.fail(fault)
        await a.vanish()
        await a.election.close()  # cut off: nothing comes of it
        model.expire(1)
        won = await b.leads(after=term)
        model.deliver_late()
        assert b.events == [won]
        assert await b.leads() == won


async def test_keepalives_may_be_lost_while_one_of_a_lease_arrives() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        for fault in (Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.LATE):
            a.etcd.fail(fault, "keep_alive")
        await wait_until(lambda: a.etcd.requests.count("keep_alive") > 3, DEADLINE_S)
        assert a.events == [await a.leads()]
        assert b.events == []


async def test_without_etcd_it_leads_until_its_lease_is_over_and_again_once_it_is_back() -> None:
    async with cluster("a") as (model, (a,)):
        term = await a.leads()
        model.lose_majority()
        await wait_until(lambda: len(a.events) == 2, DEADLINE_S)
        assert isinstance(error := a.events[1], NotLeader)
        assert "its lease of 1 s in etcd could not be kept alive: no answer" in str(error)
        assert "no answer" in a.election.core.reason
        model.regain_majority()
        again = await a.leads(after=term)
        assert a.events[2:] == [again]


async def test_who_was_stopped_for_longer_than_its_lease_knows_it_at_once() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        assert a.election.is_leading
        time.sleep(TTL_S)  # noqa: ASYNC251 - as SIGSTOP: nothing runs
        assert not a.election.is_leading
        assert a.leader is None
        await wait_until(lambda: a.election.is_leading or b.election.is_leading, DEADLINE_S)
        assert isinstance(a.events[1], NotLeader)


async def test_a_hand_over_takes_no_lease() -> None:
    async with cluster("a", "b", "c", now=0.0) as (_, (a, b, c)):
        first, second = await asyncio.gather(
            a.election.step_down("maintenance"), a.election.step_down("again")
        )
        assert first == second
        assert first.member in (b.member, c.member)
        assert isinstance(error := a.events[1], NotLeader)
        assert error.leader == first.address
        assert "(maintenance)" in error.reason
        assert len(b.events + c.events) == 1


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.TWICE])
async def test_a_hand_over_bears_that_an_answer_is_lost(fault: Fault) -> None:
    async with cluster("a", "b") as (model, (a, b)):
        a.etcd.fail(fault)
        assert (await a.election.step_down("maintenance")).member == b.member
        model.deliver_late()
        await a.follows(b)
        assert len(b.events) == 1


async def test_who_resigned_leads_for_certain_no_more_though_it_hears_nothing_of_it() -> None:
    """It goes on in its term until it knows; what it would tell of a run may be old by then."""
    async with cluster("a", "b") as (_, (a, b)):
        term = await a.leads()
        a.etcd.fail(Fault.REQUEST_LOST, "read", times=1_000)
        a.etcd.break_watches()
        a.etcd.fail(Fault.ANSWER_HELD)
        leaving = asyncio.create_task(a.election.step_down("maintenance"))
        await b.leads(after=term)
        assert a.events == [term], "its term has not ended"
        assert not a.election.is_leading
        a.etcd.recover()
        a.etcd.release()
        assert (await leaving).member == b.member


async def test_alone_it_leads_on() -> None:
    async with cluster("a") as (_, (a,)):
        with pytest.raises(CannotStepDown, match="there is no other one"):
            await a.election.step_down("maintenance")
        assert a.events == [await a.leads()]


async def test_it_leads_again_when_no_other_one_takes_over() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        term = await a.leads()
        b.etcd.cut_off()
        with pytest.raises(CannotStepDown, match="none took it in time"):
            await a.election.step_down("maintenance")
        again = await a.leads(after=term)
        assert a.events[2:] == [again]


async def test_who_does_not_lead_says_who_does() -> None:
    async with cluster("a", "b") as (_, (_a, b)):
        with pytest.raises(NotLeader) as caught:
            await b.election.step_down("maintenance")
        assert caught.value.leader == "a:29400"


async def test_a_refused_write_ends_a_leadership() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        term = await a.leads()
        a.election.refused(term - 1)  # of an earlier term
        assert len(a.events) == 1
        a.election.refused(term)
        assert isinstance(a.events[1], NotLeader)
        assert not a.election.is_leading
        await wait_until(lambda: a.election.is_leading or b.election.is_leading, DEADLINE_S)


async def test_who_ends_in_order_leaves_leadership_at_once() -> None:
    async with cluster("a", "b", now=0.0) as (_, (a, b)):
        term = await a.leads()
        a.task.cancel()
        await a.election.close()
        with pytest.raises(NotLeader):
            await a.election.step_down("too late")
        assert await b.leads(after=term)
        await b.knows(1)


async def test_one_that_comes_back_waits_for_the_lease_of_its_earlier_life() -> None:
    async with cluster("a") as (model, (a,)):
        term = await a.leads()
        await a.vanish()
        again = Coordinator(model, "a2", host="a")
        try:
            await again.knows(2)
            assert again.leader is None, "whoever asks there asks this one"
            assert again.election.core.reason == (
                "the one that led before, a:29400, has a lease that is not over yet"
            )
            model.expire(1)
            assert await again.leads(after=term)
        finally:
            await again.vanish()


async def test_a_broken_watch_is_opened_again_and_reads_anew() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        reads, term = b.etcd.requests.count("read"), await a.leads()
        b.etcd.cut_off()
        a.task.cancel()
        await a.election.close()
        b.etcd.reconnect()
        assert await b.leads(after=term)
        assert b.etcd.requests.count("read") > reads


async def test_an_etcd_that_was_emptied_ends_a_coordinator() -> None:
    async with cluster("a") as (model, (a,)):
        model.state = EtcdState(ttl_min_s=1)
        with pytest.raises(JournalUnusable, match="its revision went back from 3 to 2"):
            await a.task
        assert isinstance(a.events[1], NotLeader)


async def test_what_others_wrote_there_is_no_leader_that_can_be_asked() -> None:
    async with cluster("a", "b") as (_, (a, b)):
        put = Put(KEYS.leader, b"\xff")
        await b.etcd.commit(Transaction((), (Delete(KEYS.leader),)))
        await b.etcd.commit(Transaction((), (put,)))
        await wait_until(lambda: len(a.events) > 1 and b.leader is None, DEADLINE_S)
