"""An agent and its supervisor that are killed together: the next agent ends what they left."""

import signal

import psutil
import pytest

from tests.support.cluster import Agent, Cluster

# A grandchild in a session of its own; with "nested" another agent, whose worker says "up", too.
LEAVING = """
import os, subprocess, sys, time
if sys.argv[1] == "nested":
    argv = [sys.executable, "-m", "drumbeat.agent", "join", "--standalone", "--no-python",
            "sh", "-c", "echo $$ >&2; exec sleep 1000"]
else:
    argv = ["sh", "-c", "echo $$ >&2; exec sleep 1000"]
subprocess.Popen(argv, start_new_session=True)
time.sleep(1000)
"""


def start(cluster: Cluster, way: str, *options: str) -> tuple[Agent, int]:
    """Return an agent whose worker has started a process, and the pid of that."""
    script = cluster.directory / "leaving.py"
    script.write_text(LEAVING)
    agent = cluster.agent("--standalone", "--tee", "3", *options, str(script), way)
    line = agent.wait_for_line(r"\d+$")
    return agent, int(line[0].split()[-1])


def kill_both(agent: Agent) -> None:
    """Kill an agent and its supervisor: none of the two sees the end of the other."""
    supervisor = agent.supervisor()
    agent.send(signal.SIGSTOP)
    supervisor.kill()
    agent.send(signal.SIGKILL)


def test_the_next_agent_ends_what_both_left(cluster: Cluster) -> None:
    agent, left = start(cluster, "plain", "--preload", "json")
    kill_both(agent)
    assert psutil.Process(left).is_running()
    following = cluster.agent("--standalone", "--no-python", "true")
    assert following.wait() == 0, following.log()
    cluster.wait_until_gone(left)
    assert "processes of a dead agent killed" in following.stderr
    assert str(left) in following.stderr


@pytest.mark.slow
def test_another_agent_below_the_dead_one_goes_on(cluster: Cluster) -> None:
    agent, left = start(cluster, "nested")
    kill_both(agent)
    assert cluster.agent("--standalone", "--no-python", "true").wait() == 0
    assert psutil.Process(left).status() == psutil.STATUS_SLEEPING
