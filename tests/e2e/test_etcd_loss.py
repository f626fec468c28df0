"""An etcd that loses one of three members, two, its speed: training goes on, nothing is lost."""

import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import DEADLINE_S, Cluster
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.failover import Heads, Training
from tests.support.waiting import MS, wait_until_sync

pytestmark = [pytest.mark.soak, needs_etcd]


@pytest.fixture
def heads(cluster: Cluster) -> Iterator[Heads]:
    """Two coordinators on an etcd of their own, one of which leads."""
    with EtcdCluster(3, can_be_cut=True) as etcd, Heads(cluster, etcd) as heads:
        yield heads


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_lost_majority_delays_decisions_and_costs_nothing(heads: Heads, is_killed: bool) -> None:
    training = Training(heads).begin()
    training.fail_and_recover()
    training.wait_attached()
    leader = heads.leader()
    lost = heads.etcd.members[1:]
    for member in lost:
        if is_killed:
            member.kill()
        else:
            member.stop()
    training.fail()
    wait_until_sync(lambda: leader.health() == "NOT_SERVING", DEADLINE_S)
    assert leader.health("live") == "SERVING"
    assert training.server.is_quiet(), "nothing can be decided"
    for member in lost:
        if is_killed:
            member.start_again()
        else:
            member.cont()
    training.recover()
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()
    training.finish()


def test_a_slow_etcd_delays_decisions_and_no_heartbeat(heads: Heads) -> None:
    training = Training(heads).begin()
    training.wait_attached()
    for head in heads.all:
        head.route.delay(200 * MS)
    began = time.monotonic()
    training.fail_and_recover()
    assert time.monotonic() - began > 200 * MS
    for _ in range(3):
        run = training.wait_attached()
        silences = [agent.silence.ToTimedelta().total_seconds() for agent in run.agents]
        assert max(silences) < 1500 * MS, "beats are a second apart"
        training.fail_and_recover()
    assert not any("coordinator lost" in agent.stderr for agent in training.agents)
    training.finish()


def test_an_etcd_with_certificates_and_users_is_as_good(cluster: Cluster) -> None:
    """A user who may do nothing beside what lies below the prefix."""
    with EtcdCluster(is_secure=True) as etcd:
        prefix = etcd.new_prefix()
        etcd.protect("drumbeat", "secret", prefix)
        with Heads(cluster, etcd, prefix=prefix) as heads:
            training = Training(heads).begin()
            leader = heads.leader()
            term = leader.leads()
            leader.kill()
            heads.leader(after=term)
            training.wait_attached()
            training.expect_untouched()
            training.fail_and_recover()
            training.finish()
