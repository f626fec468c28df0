"""Real processes that outlived their agent, and the cgroup that holds them where there is one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from drumbeat.agent.host import cgroup, leftovers
from drumbeat.agent.host.cgroup import WorkersCgroup
from drumbeat.agent.host.leftovers import kill_leftovers
from tests.support.processes import DEADLINE_S
from worker_sdk.context import AGENT_DIR

SLEEP = ("sleep", "1000")


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """Return the private directory of an agent that is dead."""
    path = tmp_path / f"{leftovers.PREFIX}dead"
    path.mkdir()
    return path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(started: list[subprocess.Popen[bytes]], **env: str) -> subprocess.Popen[bytes]:
    started.append(subprocess.Popen(SLEEP, env=env, start_new_session=True))
    return started[-1]


@pytest.fixture
def group(dead: Path) -> Iterator[WorkersCgroup]:
    with closing(WorkersCgroup(dead)) as made:
        if made.path is None:
            pytest.skip("this process may make no cgroup of version 2")
        yield made


def test_what_has_the_directory_in_its_environment_is_killed_and_nothing_else(
    dead: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    named = start(started, **{AGENT_DIR: str(dead)})
    below = start(started, ERROR_FILE=f"{dead}/errors/0/0.json")
    other = start(started, **{AGENT_DIR: f"{dead}2"})
    kill_leftovers([dead])
    assert (named.wait(DEADLINE_S), below.wait(DEADLINE_S)) == (-9, -9)
    assert other.poll() is None


def test_a_process_without_environment_is_found_in_the_cgroup(
    dead: Path, group: WorkersCgroup, started: list[subprocess.Popen[bytes]]
) -> None:
    assert group.path is not None
    bare, other = start(started), start(started)
    group.add(bare.pid)
    assert cgroup.processes_in(group.path) == {bare.pid}
    kill_leftovers([dead])
    assert bare.wait(DEADLINE_S) == -9
    assert other.poll() is None
    assert not group.path.exists()


def test_a_cgroup_with_a_living_agent_in_it_is_not_killed_as_a_whole(
    dead: Path, group: WorkersCgroup, started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    living = tmp_path / f"{leftovers.PREFIX}living"
    living.mkdir()
    held = os.open(living, os.O_RDONLY)
    agent = subprocess.Popen(SLEEP, pass_fds=(held,), start_new_session=True)
    os.close(held)
    started.append(agent)
    bare = start(started)
    group.add(agent.pid)
    group.add(bare.pid)
    kill_leftovers([dead])
    assert bare.wait(DEADLINE_S) == -9
    assert agent.poll() is None


def test_a_cgroup_is_removed_at_the_end(dead: Path) -> None:
    group = WorkersCgroup(dead)
    path = group.path
    group.close()
    assert path is None or not path.exists()


def test_without_a_cgroup_of_version_2_nothing_is_made(dead: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    for text in ("4:memory:/here\n", "0::/\n"):
        (proc / "cgroup").write_text(text)
        (proc / "mountinfo").write_text("30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n")
        group = WorkersCgroup(dead, proc)
        group.add(os.getpid())
        group.close()
        assert group.path is None
        assert cgroup.cgroup_of(dead) is None


def test_a_directory_names_no_cgroup_but_its_own(dead: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "cgroup.kill").touch()
    (dead / cgroup.NAME).write_text(str(other))
    assert cgroup.cgroup_of(dead) is None
