"""Journals that were damaged or restored from a copy: what is lost is told, and no agent ends.

``DRUMBEAT_DAMAGES`` sets how often a bit of a killed coordinator's journal is changed.
"""

import json
import os
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from drumbeat.access.token import Role
from drumbeat.coordinator.journal.sqlite import FILE, LAST_WRITE
from tests.support.cluster import DEADLINE_S, Cluster, Coordinator, Job, Worker, exit_all
from tests.support.etcd import EtcdCluster, needs_etcd, program
from tests.support.failover import Heads, Training
from tests.support.status import RunStatus
from tests.support.waiting import wait_until_sync

DAMAGES = int(os.environ.get("DRUMBEAT_DAMAGES", "4"))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def fail_a_round(job: Job, workers: list[Worker], round_id: int) -> list[Worker]:
    workers[0].order("exit 7")
    return job.server.wait_for_round(round_id, len(workers))


def wait_for_agents(coordinator: Coordinator, count: int) -> RunStatus:
    return coordinator.wait_for_run(
        "run",
        lambda run: [agent.is_connected for agent in run.agents] == [True] * count,
        DEADLINE_S,
    )


@pytest.mark.slow
def test_a_lost_last_write_is_refused_and_what_is_left_can_be_moved(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator()
    job = cluster.job("--nnodes", "2", "--max-restarts", "9", coordinator=coordinator, run_id="run")
    agents = [job.join(), job.join()]
    workers = fail_a_round(job, job.server.wait_for(2), 1)
    token = coordinator.create_token(Role.ADMIN)
    coordinator.revoke(token)
    coordinator.kill()
    flip(coordinator.state_dir / f"{FILE}-wal", -1)
    coordinator.restart(is_awaited=False)
    assert coordinator.process.wait() == 2
    refusal = coordinator.process.stderr
    assert "write" in refusal
    assert "lost" in refusal
    assert "coordinator journal export" in refusal
    for agent in agents:
        agent.wait_for_line("coordinator lost")
    assert [worker.ask("say still here") for worker in workers] == ["", ""]
    # What is left moves to another directory, and the run goes on from there.
    file, left = cluster.directory / "left.jsonl", coordinator.state_dir
    export = ("coordinator", "journal", "export", str(file), "--state-dir", str(left))
    assert cluster.process("export", *export).wait() == 1
    coordinator.state_dir = cluster.directory / "other"
    into = ("coordinator", "journal", "import", str(file))
    imported = cluster.process("import", *into, "--state-dir", str(coordinator.state_dir))
    assert imported.wait() == 0, imported.log()
    coordinator.restart()
    run = wait_for_agents(coordinator, 2)
    assert run.round_id == 1
    assert [worker.ask("say still here") for worker in workers] == ["", ""]
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0]


def known(coordinator: Coordinator) -> Any:
    """Return what operators see of tokens and runs."""
    tokens = coordinator.operate("token", "list", "-o", "json")
    runs = coordinator.operate("status", "-o", "json")
    listed = json.loads(tokens.stdout)
    for each in listed["tokens"]:
        for key in ("age_s", "time_left_s", "ended_age_s"):
            each.pop(key, None)
    told = json.loads(runs.stdout)
    shown = [{k: v for k, v in run.items() if k != "ended_age_s"} for run in told["runs"]]
    return listed, shown, told["set_aside"]


@pytest.mark.soak
def test_a_bit_that_is_changed_after_a_kill_is_refused_or_logged(cluster: Cluster) -> None:
    """Or does no harm: a coordinator never knows less than it has confirmed without a word."""
    coordinator = cluster.own_coordinator()
    job = cluster.job(coordinator=coordinator, run_id="run")
    agent = job.join()
    exit_all(job.server.wait_for(1))
    assert agent.wait() == 0
    tokens = [coordinator.create_token(role) for role in (Role.ADMIN, Role.VIEW, Role.JOIN)]
    coordinator.revoke(tokens[0])
    confirmed = known(coordinator)
    coordinator.kill()
    original = cluster.directory / "original"
    shutil.copytree(coordinator.state_dir, original)
    silent, outcomes = [], {"refused": 0, "logged": 0, "harmless": 0}
    for number in range(DAMAGES):
        chance = random.Random(number)
        shutil.rmtree(coordinator.state_dir)
        shutil.copytree(original, coordinator.state_dir)
        names = [name for name in (FILE, f"{FILE}-wal", LAST_WRITE) if (original / name).exists()]
        path = coordinator.state_dir / chance.choice(names)
        at = chance.randrange(path.stat().st_size)
        flip(path, at, chance.randrange(8))
        coordinator.restart(is_awaited=False)
        process = coordinator.process
        wait_until_sync(
            lambda: not process.is_running or "coordinator ready" in process.stdout,  # noqa: B023
            DEADLINE_S,
        )
        if not process.is_running:
            assert process.wait() == 2, process.log()
            assert "Traceback" not in process.stderr
            outcomes["refused"] += 1
            continue
        if known(coordinator) == confirmed:
            outcomes["harmless"] += 1
        elif "is damaged" in process.stderr:
            outcomes["logged"] += 1
        else:
            silent.append((number, path.name, at))
        coordinator.kill()
    print(outcomes)
    assert silent == [], outcomes


@pytest.mark.slow
def test_an_older_journal_in_a_directory_ends_no_agent(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator()
    job = cluster.job("--nnodes", "3", "--max-restarts", "9", coordinator=coordinator, run_id="run")
    agents = [job.join() for _ in range(3)]
    workers = job.server.wait_for(3)
    for round_id in (1, 2):
        workers = fail_a_round(job, workers, round_id)
    coordinator.kill()
    copy = cluster.directory / "copy"
    shutil.copytree(coordinator.state_dir, copy)
    coordinator.restart()
    wait_for_agents(coordinator, 3)
    for round_id in range(3, 7):
        workers = fail_a_round(job, workers, round_id)
    coordinator.kill()
    shutil.rmtree(coordinator.state_dir)
    shutil.copytree(copy, coordinator.state_dir)
    coordinator.restart()
    workers = job.server.wait_for_round(7, 3)
    run = wait_for_agents(coordinator, 3)
    assert (run.round_id, run.restarts_used) == (7, 2)
    exit_all(workers)
    assert [agent.wait() for agent in agents] == [0, 0, 0]


def restore(etcd: EtcdCluster, copy: Path) -> None:
    """Replace all that the only member has by a copy, as ``etcdutl`` does."""
    (member,) = etcd.members
    member.kill()
    shutil.rmtree(etcd.directory / member.name)
    done = subprocess.run(
        [
            str(program("etcdutl")),
            *("snapshot", "restore", str(copy), "--name", member.name),
            *("--data-dir", str(etcd.directory / member.name)),
            *("--initial-cluster", etcd.initial_cluster),
            *("--initial-advertise-peer-urls", f"http://{member.peer_address}"),
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    member.restart()


@pytest.mark.slow
@needs_etcd
def test_an_older_journal_in_etcd_ends_no_agent_and_is_refused_without_a_later_revision(
    cluster: Cluster,
) -> None:
    with EtcdCluster() as etcd, Heads(cluster, etcd) as heads:
        training = Training(heads, 3).begin()
        for _ in range(2):
            training.fail_and_recover()
        copy = etcd.directory / "copy.db"
        etcd.control("snapshot", "save", str(copy))
        for _ in range(4):
            training.fail_and_recover()
        term = heads.leader().leads()
        heads.leader().kill()  # so that agents know a later term than the copy
        refused = heads.leader(after=term)
        training.wait_attached()
        for head in heads.all:
            with suppress(AssertionError):
                head.kill()
        restore(etcd, copy)
        refused.start(is_awaited=False)
        assert refused.running.process.wait() == 2
        assert "--bump-revision" in refused.log
        assert "led in term" in refused.log
        # What the option does, of which this etcd is too old: revisions go on far above.
        for _ in range(60):
            etcd.control("put", "other", "x")
        for head in heads.all:
            head.start(is_awaited=False)
        workers = training.server.wait_for_round(7, 3)
        exit_all(workers)
        assert [agent.wait() for agent in training.agents] == [0, 0, 0]


@pytest.mark.slow
@needs_etcd
def test_one_key_that_cannot_be_read_stops_one_run_and_is_named(cluster: Cluster) -> None:
    with EtcdCluster() as etcd, Heads(cluster, etcd) as heads:
        training = Training(heads).begin()
        leader = heads.leader()
        broken = cluster.job("--nnodes", "1", coordinator=leader.running, run_id="broken")
        token = leader.running.create_token().text()
        agent = broken.join("--token", token)
        (worker,) = broken.server.wait_for(1)
        keys = etcd.control("get", "--prefix", "--keys-only", "test-").split()
        key = next(each for each in keys if "-broken/" in each)
        etcd.control("put", key, "{}")
        term = leader.leads()
        leader.kill()
        following = heads.leader(after=term)
        following.running.process.wait_for_line("the journal is damaged")
        assert key in following.log
        told = following.running.operate("status")
        assert "broken is set aside" in told.stdout
        training.wait_attached()
        training.expect_untouched()
        training.fail_and_recover()
        training.finish()
        assert worker.ask("say still here") == ""
        assert agent.is_running
        worker.order("exit 0")


@pytest.mark.slow
@needs_etcd
def test_a_head_that_cannot_be_read_ends_coordinators_with_a_sentence(cluster: Cluster) -> None:
    with EtcdCluster() as etcd, Heads(cluster, etcd) as heads:
        leader = heads.leader()
        leader.running.create_token()
        keys = etcd.control("get", "--prefix", "--keys-only", "test-").split()
        key = next(each for each in keys if each.endswith("/head"))
        etcd.control("put", key, "{}")
        leader.kill()
        follower = heads.follower(leader)
        assert follower.running.process.wait() == 1
        assert key in follower.log
        assert "cannot be read" in follower.log
        assert "coordinator journal export" in follower.log
