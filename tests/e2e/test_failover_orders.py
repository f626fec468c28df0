"""Faults of coordinators, of etcd and of the links between, in every order of two of them."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.support.cluster import Cluster
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.failover import Heads, Training

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200), needs_etcd]


def kill_leader(heads: Heads) -> Callable[[], object]:
    leader = heads.leader()
    leader.kill()
    return partial(leader.start, is_awaited=False)


def end_leader(heads: Heads) -> Callable[[], object]:
    leader = heads.leader()
    assert leader.running.terminate() == 0
    return partial(leader.start, is_awaited=False)


def stop_leader(heads: Heads) -> Callable[[], object]:
    process = heads.leader().running.process
    process.stop()
    return process.cont


def hand_over(heads: Heads) -> Callable[[], object]:
    """Refused or in vain where there is nobody to hand over to, or no etcd."""
    heads.leader().running.operate("step-down")
    return lambda: None


def cut_leader_from_etcd(heads: Heads) -> Callable[[], object]:
    route = heads.leader().route
    route.cut()
    return route.restore


def silence_leader_and_etcd(heads: Heads) -> Callable[[], object]:
    route = heads.leader().route
    route.swallow()
    return route.restore


def reset_agents(heads: Heads) -> Callable[[], object]:
    """Once."""
    heads.leader().link.cut()
    return lambda: None


def cut_leader_from_agents(heads: Heads) -> Callable[[], object]:
    link = heads.leader().link
    link.cut(refuse=True)
    return link.restore


def silence_leader_and_agents(heads: Heads) -> Callable[[], object]:
    link = heads.leader().link
    link.stall(up=True, down=True)
    return link.restore


def isolate_leader(heads: Heads) -> Callable[[], object]:
    leader = heads.leader()
    leader.route.swallow()
    leader.link.stall(up=True, down=True)

    def undo() -> None:
        leader.link.restore()
        leader.route.restore()

    return undo


def kill_member(heads: Heads) -> Callable[[], object]:
    """The one that leads etcd."""
    member = heads.etcd.leader()
    member.kill()
    return member.start_again


def stop_member(heads: Heads) -> Callable[[], object]:
    member = heads.etcd.leader()
    member.stop()
    return member.cont


def cut_member(heads: Heads) -> Callable[[], object]:
    """It still answers coordinators, and knows nothing new."""
    member = heads.etcd.leader()
    member.cut()
    return member.restore


FAULTS = (
    kill_leader,
    end_leader,
    stop_leader,
    hand_over,
    cut_leader_from_etcd,
    silence_leader_and_etcd,
    reset_agents,
    cut_leader_from_agents,
    silence_leader_and_agents,
    isolate_leader,
    kill_member,
    stop_member,
    cut_member,
)


@pytest.mark.parametrize("is_mended_in_order", [True, False])
@pytest.mark.parametrize("first", FAULTS, ids=lambda fault: fault.__name__)
def test_two_faults_in_any_order_cost_nothing(
    cluster: Cluster, first: Callable[[Heads], Callable[[], object]], is_mended_in_order: bool
) -> None:
    """One after the other on the same coordinators, each time with a failure between the two."""
    with EtcdCluster(3, can_be_cut=True) as etcd, Heads(cluster, etcd, 3) as heads:
        training = Training(heads).begin()
        for second in FAULTS:
            print("now:", first.__name__, second.__name__)
            training.wait_attached()
            mends = [first(heads)]
            training.expect_untouched()
            training.fail()
            with suppress(AssertionError):  # there may be no leader until the first is mended
                mends.append(second(heads))
            for mend in mends if is_mended_in_order else reversed(mends):
                mend()
            training.recover()
            run = training.wait_attached()
            training.expect_untouched()
            training.expect(run)
        training.finish()
