"""The leader dies at the worst moments: what it had begun, the next one ends, once."""

import signal
from collections.abc import Iterator

import pytest

from drumbeat.access.token import Role
from drumbeat.v1 import query_pb2, session_pb2
from tests.support.cluster import Cluster, exit_all
from tests.support.etcd import EtcdCluster
from tests.support.failover import PHASE_RUNNING, Heads, Training
from tests.support.waiting import MS

pytestmark = pytest.mark.soak

# Saves when it is told to, once the file `may_save` is there; ends when `done` is.
SAVES = """
import os, pathlib, time
import worker_sdk

at = pathlib.Path(__file__).parent
print("trains in round", os.environ["DRUMBEAT_ROUND"], flush=True)
for step in range(10**6):
    worker_sdk.heartbeat(step=step)
    if worker_sdk.should_checkpoint(step):
        print("saves", flush=True)
        while not (at / "may_save").exists():
            time.sleep(0.01)
        worker_sdk.checkpointed(step, wait=True)
    if (at / "done").exists():
        break
    time.sleep(0.01)
"""


@pytest.fixture
def heads(cluster: Cluster, etcd: EtcdCluster) -> Iterator[Heads]:
    """Three coordinators, one of which leads."""
    with Heads(cluster, etcd, 3) as heads:
        yield heads


def test_in_the_first_moment_of_a_run(heads: Heads) -> None:
    leader, training = heads.leader(), Training(heads)
    term = leader.leads()
    for _ in range(training.size):
        training.join()
    leader.running.wait_for_run("run", lambda run: run.phase == PHASE_RUNNING)
    leader.kill()
    training.workers = training.server.wait_for(training.size)
    heads.leader(after=term)
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()
    training.finish()


def test_while_agents_gather(heads: Heads) -> None:
    leader, training = heads.leader(), Training(heads)
    term = leader.leads()
    training.join().wait_for_line("standing by")
    leader.kill()
    training.join()  # no coordinator leads as it comes
    training.workers = training.server.wait_for(training.size)
    heads.leader(after=term)
    training.wait_attached()
    training.fail_and_recover()
    training.finish()


@pytest.mark.parametrize("delay_s", [0.0, 5 * MS, 20 * MS, 50 * MS, 150 * MS])
def test_while_a_failure_is_decided(heads: Heads, delay_s: float) -> None:
    """Whether the failure, its record or the decision had arrived before is all the same."""
    training = Training(heads).begin()
    leader = heads.leader()
    training.fail()
    with pytest.raises(AssertionError):
        training.agents[0].wait_for_line("never written", delay_s)
    leader.running.process.send(signal.SIGKILL)
    training.recover()
    training.wait_attached()
    training.expect_untouched()
    training.fail_and_recover()
    training.finish()


def test_while_records_are_delivered(heads: Heads) -> None:
    """The leader has it and has answered; the agent never hears that."""
    training = Training(heads).begin()
    leader = heads.leader()
    training.wait_attached()
    leader.link.stall(down=True)
    training.fail()
    leader.running.wait_for_run("run", lambda run: run.failures_count == 1)
    leader.kill()
    leader.link.cut(refuse=True)
    training.recover()
    training.expect(training.wait_attached())
    training.fail_and_recover()
    training.finish()


@pytest.mark.parametrize("is_first_gone", [True, False])
def test_while_the_run_ends(heads: Heads, is_first_gone: bool) -> None:
    training = Training(heads).begin()
    leader = heads.leader()
    if is_first_gone:
        exit_all(training.workers[:1])
        leader.running.wait_for_run("run", lambda run: any(map(has_succeeded, run.agents)))
    leader.kill()
    training.finish()


def has_succeeded(agent: query_pb2.Agent) -> bool:
    return agent.state == session_pb2.GROUP_STATE_SUCCEEDED


def test_while_training_saves_for_a_drain(heads: Heads, cluster: Cluster) -> None:
    """Those who look on see it all, and no line twice."""
    script = cluster.directory / "saves.py"
    script.write_text(SAVES)
    leader = heads.leader()
    term = leader.leads()
    token = leader.running.create_token().text()
    agents = [
        cluster.agent(
            *("--coordinator", heads.addresses, "--token", token, "--run-id", "run"),
            *("--nnodes", "2:3", "--last-call", "1h", "--name", name, str(script)),
        )
        for name in "abc"
    ]
    agents[0].wait_for_line("3 workers on 3 agents")
    view = (
        "--coordinator",
        heads.addresses,
        "--token",
        leader.running.create_token(Role.VIEW).text(),
    )
    follower, watcher = (
        cluster.process(verb, "coordinator", verb, "run", *more, *view)
        for verb, *more in (("logs", "--follow"), ("watch", "-o", "json"))
    )
    follower.wait_for_line("trains in round 0", count=3)
    watcher.wait_for_line('"round_id": 0')
    assert leader.running.operate("drain", "b", "--reason", "fans").wait() == 0
    follower.wait_for_line("saves", count=3)
    leader.kill()
    heads.leader(after=term)
    (cluster.directory / "may_save").touch()
    assert agents[1].wait() == 0
    follower.wait_for_line("trains in round 1", count=2)
    watcher.wait_for_line('"round_id": 1')
    (cluster.directory / "done").touch()
    assert [agents[0].wait(), agents[2].wait()] == [0, 0]
    assert [follower.wait(), watcher.wait()] == [0, 0]
    assert follower.stdout.count("saves") == 3
    run = heads.wait_for_run(lambda run: bool(run.verdict.is_success))
    assert (run.restart_count, run.round_id) == (0, 1)


def test_twice_within_the_time_to_live(heads: Heads) -> None:
    """A follower dies with the leader, so that the last one alone is left to campaign."""
    training = Training(heads).begin()
    leader = heads.leader()
    term = leader.leads()
    training.fail()
    leader.kill()
    heads.follower(leader).kill()
    heads.leader(after=term)
    training.recover()
    training.wait_attached()
    training.expect_untouched()
    training.finish()


def test_all_are_killed_and_started_in_another_order(heads: Heads) -> None:
    training = Training(heads).begin()
    training.fail_and_recover()
    term = heads.leader().leads()
    for head in heads.all:
        head.kill()
    training.fail()
    for head in reversed(heads.all):
        head.start()
    heads.leader(after=term)
    training.recover()
    training.wait_attached()
    training.expect_untouched()
    training.finish()


def test_while_the_journal_moves_to_etcd(cluster: Cluster, etcd: EtcdCluster) -> None:
    """From a disk, between two lives of a coordinator at the same address."""
    job = cluster.job("--nnodes", "2", "--max-restarts", "3")
    agents = [job.join(), job.join()]
    job.server.wait_for(2)[0].order("exit 7")
    workers = job.server.wait_for_round(1, 2)
    job.coordinator.wait_for_run("run", lambda run: run.failures_count == 1)
    assert job.coordinator.terminate() == 0
    file, url = str(cluster.directory / "journal.export"), etcd.url(etcd.new_prefix())
    for verb in (
        ("export", file, "--state-dir", str(job.coordinator.state_dir)),
        ("import", file, "--journal", url),
        ("check", "--journal", url),
    ):
        moved = cluster.process("journal", "coordinator", "journal", *verb)
        assert moved.wait() == 0, moved.log()
    after = cluster.own_coordinator("--journal", url, port=job.coordinator.port)
    run = after.wait_for_run(
        "run", lambda run: [agent.is_connected for agent in run.agents] == [True] * 2
    )
    assert (run.round_id, run.failures_count) == (1, 1)
    assert [worker.ask("say still here") for worker in workers] == ["", ""]
    workers[1].order("exit 8")
    again = job.server.wait_for_round(2, 2)
    assert {worker.restart_count for worker in again} == {2}
    exit_all(again)
    assert [agent.wait() for agent in agents] == [0, 0]
