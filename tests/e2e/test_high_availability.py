"""Coordinators that share an etcd die, hang, are cut off: training goes on, and so do decisions."""

import json
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support.cluster import DEADLINE_S, Cluster
from tests.support.etcd import EtcdCluster
from tests.support.failover import TTL_S, Heads, Training
from tests.support.waiting import MS, wait_until_sync


@pytest.fixture
def heads(cluster: Cluster, etcd: EtcdCluster) -> Iterator[Heads]:
    """Two coordinators, one of which leads."""
    with Heads(cluster, etcd) as heads:
        yield heads


@pytest.mark.slow
def test_a_killed_leader_costs_no_worker_and_the_next_one_decides(heads: Heads) -> None:
    training = Training(heads).begin()
    training.fail_and_recover()
    first = heads.leader()
    term = first.leads()
    killed_at = time.monotonic()
    first.kill()
    second = heads.leader(after=term)
    training.wait_attached()
    assert time.monotonic() - killed_at < TTL_S + 5000 * MS
    training.expect_untouched()
    training.fail_and_recover()

    first.start()  # as a follower, that says who leads
    assert first.health() == "NOT_SERVING"
    assert first.health("live") == "SERVING"
    assert second.health() == "SERVING"
    wait_until_sync(lambda: len(first.listed().coordinators) == 2, 10_000 * MS)
    training.expect(second.running.run("run"))
    training.finish()


@pytest.mark.slow
def test_a_stopped_leader_that_goes_on_leads_no_more(heads: Heads) -> None:
    training = Training(heads).begin()
    first = heads.leader()
    term = first.leads()
    first.running.process.stop()
    training.fail()
    second = heads.leader(after=term)
    training.recover()
    first.running.process.cont()
    first.running.process.wait_for_line("leads no more")
    assert heads.leader() is second
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()
    training.finish()


@pytest.mark.slow
def test_a_leader_that_all_agents_have_lost_gives_leadership_away(heads: Heads) -> None:
    """It reaches etcd, so no other one would lead, and it would give all agents up."""
    training = Training(heads).begin()
    training.wait_attached()
    first = heads.leader()
    term = first.leads()
    first.link.cut(refuse=True)
    second = heads.leader(after=term)
    assert second is not first
    training.fail_and_recover()
    first.link.restore()
    training.expect(training.wait_attached())
    training.expect_untouched()
    assert heads.leader() is second
    training.finish()


@pytest.mark.slow
def test_leadership_is_handed_over_on_request_and_by_sigterm(heads: Heads) -> None:
    training = Training(heads).begin()
    first = heads.leader()
    term = first.leads()
    asked = first.running.operate("step-down", "--reason", "kernel update")
    assert asked.wait() == 0, asked.log()
    second = heads.leader(after=term)
    assert second is not first
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()

    term = second.leads()
    assert second.running.terminate() == 0
    assert heads.leader(after=term) is first
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()
    refused = first.running.operate("step-down")
    assert refused.wait() != 0
    assert "Traceback" not in refused.stderr
    training.finish()


@pytest.mark.slow
def test_agents_keep_no_connection_to_former_leaders(heads: Heads) -> None:
    training = Training(heads).begin()
    agents = [psutil.Process(agent.pid) for agent in training.agents]
    files: list[int] = []
    for _ in range(5):
        training.wait_attached()
        if len(files) >= 2:
            wait_until_sync(
                lambda: sum(agent.num_fds() for agent in agents) <= files[1], 10_000 * MS
            )
        files.append(sum(agent.num_fds() for agent in agents))
        leader = heads.leader()
        term = leader.leads()
        assert leader.running.operate("step-down").wait() == 0
        heads.leader(after=term)
    training.wait_attached()
    training.finish()


@pytest.mark.slow
def test_without_etcd_training_goes_on_and_decisions_with_it(heads: Heads) -> None:
    """Neither coordinator reaches it, and neither is told so."""
    training = Training(heads).begin()
    training.wait_attached()
    leader = heads.leader()
    term = leader.leads()
    for head in heads.all:
        head.route.swallow()
    training.fail()
    wait_until_sync(lambda: leader.health() == "NOT_SERVING", DEADLINE_S)
    wait_until_sync(lambda: leader.listed().reason, DEADLINE_S)
    assert leader.health("live") == "SERVING"
    listed = leader.running.operate("members", "-o", "json")
    assert "etcd" in json.loads(listed.stdout)["reason"], listed.log()
    assert training.workers[0].ask("say still here") == ""
    assert training.server.is_quiet(), "nothing can be decided"
    for head in heads.all:
        head.route.restore()
    training.recover()
    heads.leader(after=term - 1)
    training.wait_attached()
    training.expect_untouched()
    training.finish()
