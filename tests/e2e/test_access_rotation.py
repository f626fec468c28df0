"""Tokens and authorities that are replaced under a job that runs: no worker notices."""

import pytest

from tests.support.cluster import Agent, Cluster, Job, Worker, exit_all
from tests.support.proxy import Proxy
from tests.support.status import kind

LEASE = ("--lease", "60s")  # no agent is given up, however slow this machine is


def assert_undisturbed(job: Job, agent: Agent, worker: Worker) -> None:
    """The worker is the one of the first round, of which the agent is a member."""
    assert not worker.is_gone
    assert agent.worker_pids() == [worker.pid]
    run = job.state()
    assert (run.round.round_id, len(run.agents)) == (0, 1)
    assert [kind(event) for event in run.history].count("round started") == 1


def back(agent: Agent, times: int) -> None:
    """Wait until it has come back so often."""
    agent.wait_for_line("coordinator back", count=times)


@pytest.mark.slow
def test_the_authority_is_replaced_while_one_agent_is_there_and_another_is_not(
    cluster: Cluster,
) -> None:
    """Both hear of it before the old one is retired."""
    coordinator = cluster.coordinator(*LEASE)
    one, other = (cluster.job(coordinator=coordinator, run_id=name) for name in ("a", "b"))
    token = coordinator.create_token()
    with Proxy(coordinator.address) as way:
        there = one.join("--token", token.text())
        away = other.join("--token", token.text(), "--coordinator", way.address)
        (first,), (second,) = one.server.wait_for(1), other.server.wait_for(1)
        coordinator.kill()  # it waits for those who come back to it
        way.cut(refuse=True)
        coordinator.restart()
        back(there, 1)
        rotated = coordinator.operate("authority", "rotate")
        assert "`coordinator authority retire`" in rotated.stdout
        way.restore()
        back(away, 1)
        assert coordinator.create_token().ca != token.ca
        retired = coordinator.operate("authority", "retire")
        assert "only tokens of the authority" in retired.stdout
        coordinator.kill()
        coordinator.restart()
        late = one.join("--token", token.text())
        back(there, 2)
        back(away, 2)
        assert_undisturbed(one, there, first)
        assert_undisturbed(other, away, second)
        assert late.wait() == 2
        assert "is not the coordinator that the token is of" in late.stderr
        assert "if the coordinator's authority was replaced, get a new token" in late.stderr
        exit_all([first, second])
        assert [there.wait(), away.wait()] == [0, 0]
