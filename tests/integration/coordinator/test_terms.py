"""Several coordinators on one journal, over gRPC: one leads, the others say which."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest

from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.shell.transport.methods import AGENT, CONTROL, QUERY
from drumbeat.v1 import control_pb2, query_pb2, session_pb2
from drumbeat.wire.mapping import LOST_TERM_KEY
from tests.support.coordinators import Coordinator, coordinator_of
from tests.support.etcd_model import EtcdModel, Fault
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, FakeAgent, Refused, spec

Pair = tuple["Coordinator", "Coordinator"]
RUNNING = session_pb2.GROUP_STATE_RUNNING


@pytest.fixture(autouse=True)
def _frozen() -> None:
    """Spare what other tests left from the collection at the end of a term, as serving does.

    With millions of objects it takes longer than a lease.
    """
    gc.freeze()


@pytest.fixture
def model() -> EtcdModel:
    return EtcdModel(ttl_min_s=1)


@pytest.fixture
async def pair(model: EtcdModel) -> AsyncIterator[Pair]:
    """Two coordinators, of which the first leads."""
    async with coordinator_of(model) as first:
        await first.leads()
        async with coordinator_of(model) as second:
            await second.follows(first)
            await wait_until(lambda: len(list(first.membership.members)) == 2, DEADLINE_S)
            yield first, second


async def refused(asked: object) -> Refused:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asked  # type: ignore[misc] # any call
    return Refused.of(error.value)


def again(agent: FakeAgent, at: Coordinator, *, lost_term: int = 0) -> FakeAgent:
    """Return the same agent with a new session at another coordinator."""
    found = at.client.agent(
        run_id=agent.fence.run_id, incarnation_key=agent.key, spec=agent.hello.run.spec
    )
    found.beat.CopyFrom(agent.beat)
    found.fence.round_id = agent.fence.round_id
    found.hello.beat.CopyFrom(agent.beat)
    if lost_term:
        metadata = ((LOST_TERM_KEY, str(lost_term)),)
        found.call = at.client.sessions.OpenSession(metadata=metadata)
    return found


async def test_a_follower_names_the_leader_and_is_live_but_not_serving(pair: Pair) -> None:
    first, second = pair
    found = await refused(second.client.runs.ListRuns(query_pb2.ListRunsRequest()))
    assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_LEADER")
    assert found.detail.leader == first.address
    assert found.details == f"this coordinator does not lead, {first.address} does"
    # It says nothing: gRPC loses the answer of a call that ends while a message is written.
    assert (await second.client.agent().refused()).detail.leader == first.address
    for one, leads in ((first, True), (second, False)):
        for service in ("", "drumbeat.v1.AgentService"):
            assert await one.client.is_serving(service) is leads
        assert await one.client.is_serving("live")


async def test_each_of_them_lists_all(pair: Pair) -> None:
    for one in pair:
        found = await one.cluster()
        assert (found.term, found.reason) == (pair[0].term, "")
        listed = {each.address: (each.is_leader, each.is_this) for each in found.coordinators}
        assert listed == {
            pair[0].address: (True, one is pair[0]),
            pair[1].address: (False, one is pair[1]),
        }


async def test_an_agent_goes_on_with_the_next_leader_as_if_nothing_were(pair: Pair) -> None:
    first, second = pair
    agent = await first.client.agent(spec=spec(coordinator_grace=None)).join()
    assignment = await agent.run()
    await wait_until_running(first)
    term = first.term
    # What asks the next one before it knows: it is held until it leads, and then served.
    early = again(agent, second, lost_term=term)
    await early.say_hello()
    first.etcd.cut_off()
    ended = await agent.refused()
    assert (ended.reason, ended.detail.leader) == ("NOT_LEADER", "")
    assert "its lease of" in ended.details
    welcome = (await early.read()).welcome
    assert welcome.term == second.term > term
    run = await second.client.run()
    assert (run.round.round_id, run.restart_count) == (assignment.round_id, 0)
    first.etcd.reconnect()
    await first.follows(second)
    found = await refused(first.client.runs.ListRuns(query_pb2.ListRunsRequest()))
    assert found.detail.leader == second.address


async def wait_until_running(one: Coordinator) -> None:
    """Return once the agents of a run were heard to run, and all that follows is written."""
    term = one.server.term
    assert term is not None
    async with asyncio.timeout(DEADLINE_S):
        while {each.state for each in (await one.client.run()).agents} != {RUNNING}:
            pass
    driver = term.driver
    await wait_until(lambda: driver._turns.is_idle and not driver._turn.locked(), DEADLINE_S)


def is_freed(what: weakref.ref[Any]) -> bool:
    return what() is None


async def test_what_terms_held_is_freed_however_many_end(pair: Pair) -> None:
    first, second = pair
    agent = await first.client.agent().join()
    tasks: list[int] = []
    gc.collect()
    gc.disable()  # as if none were due for long
    try:
        for _ in range(8):
            assert first.server.term is not None
            ended = weakref.ref(first.server.term.driver)
            asked = control_pb2.StepDownRequest(reason="a new kernel")
            await first.client.control.StepDown(asked, timeout=DEADLINE_S)
            await agent.refused()
            agent = await again(agent, second, lost_term=1).join()
            await first.follows(second)
            await wait_until(partial(is_freed, ended), DEADLINE_S)
            first, second = second, first
            if len(tasks) >= 2:
                await wait_until(lambda: len(asyncio.all_tasks()) <= tasks[1], DEADLINE_S)
            tasks.append(len(asyncio.all_tasks()))
    finally:
        gc.enable()


async def test_leadership_is_handed_over_at_once_and_back(pair: Pair) -> None:
    first, second = pair
    agent = await first.client.agent().join()
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = control_pb2.StepDownRequest(reason="a new kernel")
    answer = await first.client.control.StepDown(asked, timeout=DEADLINE_S)
    assert answer.leader == second.address
    assert (await agent.refused()).detail.leader == second.address
    await again(agent, second, lost_term=1).join()
    assert loop.time() - began < first.membership._election.core.ttl_s  # no lease had to end
    await first.follows(second)
    assert (await refused(first.client.control.StepDown(asked))).reason == "NOT_LEADER"
    await second.client.control.StepDown(asked, timeout=DEADLINE_S)
    await first.leads()


async def test_the_only_one_leads_on(model: EtcdModel) -> None:
    async with coordinator_of(model) as only:
        await only.leads()
        term = only.term
        found = await refused(only.client.control.StepDown(control_pb2.StepDownRequest()))
        assert found.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "there is no other one that could" in found.details
        assert only.term == term
        await only.client.agent().join()


async def held_report(at: Coordinator, agent: FakeAgent) -> asyncio.Task[list[bool]]:
    """Report a failure, and return while its record is being written."""
    before = at.etcd.requests.count("commit")
    at.etcd.fail(Fault.HELD)
    report = asyncio.create_task(at.client.report(agent.failure(1), key=agent.key))
    await wait_until(lambda: at.etcd.requests.count("commit") > before, DEADLINE_S)
    return report


async def test_what_is_being_written_is_finished_before_leadership_is_handed_over(
    pair: Pair,
) -> None:
    first, second = pair
    agent = await first.client.agent().join()
    await agent.run()
    await wait_until_running(first)
    report = await held_report(first, agent)
    asked = asyncio.ensure_future(first.client.control.StepDown(control_pb2.StepDownRequest()))
    await wait_until(lambda: first.server.term and first.server.term.driver._turn._waiters, 5)
    first.etcd.release()
    assert (await asked).leader == second.address
    await asyncio.wait({report})
    report.exception()  # its answer may have come too late
    await second.leads()
    assert (await second.client.run()).failures_count == 1


async def test_nothing_is_acknowledged_once_leadership_was_lost(
    pair: Pair, model: EtcdModel
) -> None:
    first, second = pair
    agent = await first.client.agent().join()
    await agent.run()
    await wait_until_running(first)
    report = await held_report(first, agent)
    model.expire(first.membership._election._lease_id)
    assert (await refused(report)).reason == "NOT_LEADER"
    assert (await agent.refused()).reason == "NOT_LEADER"
    await second.leads()
    first.etcd.release()  # its write arrives now, and changes nothing
    await first.follows(second)
    assert (await second.client.run()).failures_count == 0
    assert await second.client.report(agent.failure(1), key=agent.key) == [True]


async def test_a_write_that_is_refused_ends_the_term_and_not_the_process(
    pair: Pair, model: EtcdModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    exits: list[int] = []
    monkeypatch.setattr("drumbeat.coordinator.cluster.server.os._exit", exits.append)
    agent = await first.client.agent().join()
    await agent.run()
    await wait_until_running(first)
    # It sees no change any more, so its own write is the first that tells it.
    first.etcd.fail(Fault.HELD, "read", times=3)
    first.etcd.fail(Fault.HELD, "keep_alive")
    first.etcd.break_watches()
    model.expire(first.membership._election._lease_id)
    await second.leads()
    assert first.term
    found = await refused(first.client.report(agent.failure(1), key=agent.key))
    assert (found.reason, first.term) == ("NOT_LEADER", 0)
    assert (await agent.refused()).reason == "NOT_LEADER"
    first.etcd.release()
    await first.follows(second)
    assert exits == []
    assert (await second.client.run()).failures_count == 0


async def test_a_call_is_held_no_longer_than_a_dead_leader_is_replaced(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumbeat.coordinator.cluster.follower.HOLD_BEYOND_S", 0.1)
    first, second = pair
    agent = again(await first.client.agent().join(), second, lost_term=first.term)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await agent.say_hello()
    found = await agent.refused()
    assert found.detail.leader == first.address  # it leads on: only this agent has lost it
    assert loop.time() - began > second.membership._election.core.ttl_s


async def test_calls_that_are_held_are_limited_and_end_with_their_clients(
    model: EtcdModel,
) -> None:
    async with coordinator_of(model) as first:
        await first.leads()
        async with coordinator_of(model, limits=Limits(streams_per_caller_max=2)) as second:
            await second.follows(first)
            held = second.membership.follower._held._tasks
            agents = [second.client.agent() for _ in range(2)]
            agents = [again(agent, second, lost_term=first.term) for agent in agents]
            for agent in agents:
                await agent.say_hello()
            await wait_until(lambda: len(held) == 2, DEADLINE_S)
            found = await refused(second.client.runs.ListRuns(query_pb2.ListRunsRequest()))
            assert (found.reason, found.detail.limit.name) == (
                "LIMIT_REACHED",
                "streams_per_caller_max",
            )
            for agent in agents:
                agent.call.cancel()
            await wait_until(lambda: not held, DEADLINE_S)


@pytest.mark.slow
async def test_without_a_majority_none_leads_and_the_one_that_did_says_why(
    pair: Pair, model: EtcdModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumbeat.coordinator.cluster.follower.HOLD_BEYOND_S", 0.0)
    first, second = pair
    agent = await first.client.agent().join()
    term = first.term
    model.lose_majority()
    assert (await agent.refused()).reason == "NOT_LEADER"
    found = await first.cluster()
    assert (found.term, len(found.coordinators)) == (0, 2)
    assert "no answer" in found.reason
    # Who led when etcd answered last may have been followed by any other one by now.
    await wait_until(lambda: second.membership.leader is None, DEADLINE_S)
    request = query_pb2.ListRunsRequest()
    asked = [refused(each.client.runs.ListRuns(request)) for each in pair]
    for problem in await asyncio.gather(*asked):
        assert "none does: " in problem.details
        assert "no answer" in problem.details
    model.regain_majority()
    await wait_until(lambda: first.term or second.term, DEADLINE_S)
    assert max(first.term, second.term) > term


async def test_status_says_that_nothing_is_decided_while_etcd_takes_no_writes(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pair
    first.etcd.fail(Fault.REQUEST_LOST, times=1_000)
    agent = first.client.agent()
    await agent.say_hello()
    assert first.server.term is not None
    driver = first.server.term.driver
    await wait_until(lambda: driver.outage, DEADLINE_S)
    assert "no answer" in (await first.cluster()).reason
    assert not await first.client.is_serving()
    where = f"{second.address},{first.address}"
    argv = ["status", "--coordinator", where, "--insecure"]
    assert await asyncio.to_thread(cli.main, argv) == 0
    assert "coordinator: nothing is decided: the journal" in capsys.readouterr().err
    asked = control_pb2.StepDownRequest()
    found = await refused(first.client.control.StepDown(asked, timeout=DEADLINE_S))
    assert found.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "no answer" in found.details  # what was decided can't be written first
    first.etcd.recover()
    assert (await agent.read()).HasField("welcome")
    await wait_until(lambda: not driver.outage, DEADLINE_S)
    assert await first.client.is_serving()


async def test_calls_wait_while_the_one_that_leads_reads_the_journal(pair: Pair) -> None:
    first, second = pair
    agent = await first.client.agent().join()
    second.etcd.fail(Fault.REQUEST_LOST, "read", times=1_000)
    early = again(agent, second, lost_term=first.term)
    await early.say_hello()
    first.etcd.cut_off()
    await wait_until(lambda: second.membership.reason.endswith("reads the journal"), DEADLINE_S)
    assert (await second.cluster()).reason == "the one that leads reads the journal"
    assert not second.term
    second.etcd.recover()
    assert (await early.read()).welcome.term == second.term


async def test_one_that_is_deposed_before_it_has_read_the_journal_follows(pair: Pair) -> None:
    first, second = pair
    second.etcd.fail(Fault.REQUEST_LOST, "read", times=1_000)
    first.etcd.cut_off()
    await wait_until(lambda: second.membership.reason.endswith("reads the journal"), DEADLINE_S)
    first.etcd.reconnect()
    second.etcd.cut_off()
    await first.leads()
    second.etcd.recover()
    second.etcd.reconnect()
    await second.follows(first)
    assert not second.term


async def test_every_method_is_served_in_a_term_or_always(pair: Pair) -> None:
    first, _ = pair
    assert first.server.term is not None
    services = (first.server.term.services, first.server._always)
    for service in (AGENT, QUERY, CONTROL):
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            assert sum(name in each for each in services if each is not None) == 1, name


async def test_work_that_waits_for_the_journal_ends_with_its_term(pair: Pair) -> None:
    first, second = pair
    ended = asyncio.Event()

    async def work(term: Term) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            assert term.number
            ended.set()

    second.membership.on_term = work
    await first.client.control.StepDown(control_pb2.StepDownRequest(), timeout=DEADLINE_S)
    await second.leads()
    await wait_until(lambda: second.membership._first_work, DEADLINE_S)
    await second.client.control.StepDown(control_pb2.StepDownRequest(), timeout=DEADLINE_S)
    await asyncio.wait_for(ended.wait(), DEADLINE_S)


async def test_a_coordinator_that_comes_is_noticed_once(model: EtcdModel) -> None:
    async with coordinator_of(model) as first:
        await first.leads()
        known = set(first.membership.members)
        waiting = asyncio.create_task(first.membership.wait_for_members(known))
        async with coordinator_of(model) as second:
            await asyncio.wait_for(waiting, DEADLINE_S)
            known |= set(first.membership.members)
            assert {each.address for each in known} == {first.address, second.address}
            waiting = asyncio.create_task(first.membership.wait_for_members(known))
        await wait_until(lambda: len(first.membership.members) == 1, DEADLINE_S)
        assert not waiting.done()  # one that left is none that is there
        waiting.cancel()
