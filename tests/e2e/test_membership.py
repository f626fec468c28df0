"""Agents come, go and hang while a round runs."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import exit_all

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("shared_coordinator")]

# A frozen agent holds its connection, so only the lease tells. Short, but not so short that a
# busy machine could make a healthy agent miss it.
SHORT_LEASE = ("--heartbeat-interval", "0.2", "--lease", "2")


def test_an_agent_that_joins_a_running_round_below_the_maximum_is_taken_in(
    cluster: Cluster,
) -> None:
    """Both re-form, and growing costs none of the restarts."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "100ms")
    first = job.join()
    (alone,) = job.server.wait_for(1)
    assert alone.environment["WORLD_SIZE"] == "1"
    second = job.join()
    workers = job.server.wait_for_round(1, 2)
    assert alone.is_gone
    assert {worker.environment["WORLD_SIZE"] for worker in workers} == {"2"}
    assert {worker.restart_count for worker in workers} == {0}
    assert {workers[0].pid} == set(first.worker_pids())
    exit_all(workers)
    assert [first.wait(), second.wait()] == [0, 0]
    assert job.state().restart_count == 0


def test_nobody_re_forms_for_a_newcomer_once_somebody_has_succeeded(cluster: Cluster) -> None:
    """What is done is not done again for the sake of size."""
    job = cluster.job("--nnodes", "2:3", "--last-call", "0.1s")
    agents = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    workers[0].order("exit 0")
    job.wait_for_state(0, "SUCCEEDED")
    late = job.join()
    late.wait_for_line("standing by")
    workers[1].order("exit 0")
    assert [agent.wait() for agent in (*agents, late)] == [0, 0, 0]
    assert job.state().round_id == 0
    assert job.server.is_quiet()


def test_a_killed_agent_takes_its_workers_along_and_the_others_re_form(cluster: Cluster) -> None:
    """A machine dies under 1:2: no orphan, and the survivor goes on without a restart's cost."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "1h")
    survivor, lost = job.join_in_order((), ())
    before = job.server.wait_for(2)
    grandchild = before[1].ask("spawn")
    lost.kill()
    (after,) = job.server.wait_for_round(1, 1)
    assert (after.rank, after.restart_count, after.environment["WORLD_SIZE"]) == (0, 0, "1")
    before[1].wait_gone()
    cluster.wait_until_gone(grandchild)
    after.order("exit 0")
    assert survivor.wait() == 0
    cluster.wait_until_gone(lost.pid)


def test_a_run_left_with_too_few_agents_waits_for_another_one(cluster: Cluster) -> None:
    """Without a standby the ranks of the dead are kept for whoever comes."""
    job = cluster.job("--nnodes", "2")
    lost, survivor = job.join_in_order((), ())
    before = job.server.wait_for(2)
    lost.kill()
    survivor.wait_for_line("1 of 2 agents, waiting for 1")
    before[1].wait_gone()
    newcomer = job.join()
    after = job.server.wait_for_round(1, 2)
    assert {after[0].pid} == set(newcomer.worker_pids())
    assert {after[1].pid} == set(survivor.worker_pids())
    exit_all(after)
    assert [survivor.wait(), newcomer.wait()] == [0, 0]


def test_a_run_left_with_too_few_agents_fails_after_the_join_timeout(cluster: Cluster) -> None:
    """Survivors are told why, and hold no workers meanwhile."""
    job = cluster.job("--nnodes", "2", "--join-timeout", "4s")
    agents = [job.join(), job.join()]
    job.server.wait_for(2)
    agents[0].kill()
    assert agents[1].wait() == 1
    assert "join timeout: 1 of 2 agents after 4 s" in agents[1].stderr
    cluster.wait_until_gone(agents[0].pid)


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_an_agent_ended_by_a_signal_ends_its_workers_and_the_others_re_form(
    cluster: Cluster, signum: int, exit_code: int
) -> None:
    """Whoever ends an agent wants the machine back, not the run's end."""
    job = cluster.job("--nnodes", "1:2", "--last-call", "1h")
    leaving, staying = job.join_in_order((), ())
    workers = job.server.wait_for(2)
    # Its workers get the same signal, and the time to take it in.
    workers[0].ask(f"on {signal.Signals(signum).name} 0")
    leaving.send(signum)
    assert leaving.wait() == exit_code
    assert workers[0].is_gone
    (after,) = job.server.wait_for_round(1, 1)
    assert (after.rank, after.restart_count) == (0, 0)
    after.order("exit 0")
    assert staying.wait() == 0


def test_a_second_signal_does_not_wait_for_the_shutdown_timeout(cluster: Cluster) -> None:
    """Ctrl-C twice: now."""
    job = cluster.job("--shutdown-timeout", "1h")
    agent = job.join()
    (worker,) = job.server.wait_for(1)
    worker.ask("ignore SIGINT")
    agent.send(signal.SIGINT)
    # The agent has taken the first signal once it says goodbye.
    job.coordinator.wait_for_run(cluster.run_id, lambda run: not run.agents)
    assert not worker.is_gone
    agent.send(signal.SIGINT)
    assert agent.wait() == 130
    worker.wait_gone()


def test_a_frozen_agent_is_given_up_and_fenced_when_it_comes_back(cluster: Cluster) -> None:
    """Its lease tells. Back again, it ends its old workers before it joins anew."""
    job = cluster.job(
        *("--nnodes", "1:2", "--last-call", "0.1s"), coordinator=cluster.coordinator(*SHORT_LEASE)
    )
    # No waiting order here: with so short a last call each may begin alone.
    agents = [job.join(), job.join()]
    job.coordinator.wait_for_run(
        cluster.run_id, lambda run: sum(a.HasField("seat") for a in run.agents) == 2
    )
    round_id = job.state().round_id
    before = job.server.wait_for_round(round_id, 2)
    by_agent = [next(w for w in before if w.pid in agent.worker_pids()) for agent in agents]
    agents[0].stop()
    (alone,) = job.server.wait_for_round(round_id + 1, 1)
    assert not by_agent[0].is_gone
    assert {alone.pid} == set(agents[1].worker_pids())
    agents[0].cont()
    after = job.server.wait_for_round(round_id + 2, 2)
    assert by_agent[0].is_gone
    assert {worker.restart_count for worker in after} == {0}
    exit_all(after)
    assert [agent.wait() for agent in agents] == [0, 0]


def test_a_dead_supervisor_costs_a_restart_and_no_agent(cluster: Cluster) -> None:
    """Its workers die with it; the report says so instead of blaming them."""
    job = cluster.job("--nnodes", "2", "--max-restarts", "1")
    agents = [job.join(), job.join()]
    before = job.server.wait_for(2)
    agents[0].supervisor().kill()
    after = job.server.wait_for_round(1, 2)
    assert all(worker.is_gone for worker in before)
    assert {worker.restart_count for worker in after} == {1}
    agents[0].wait_for_line("supervisor died")
    agents[0].supervisor().kill()
    assert [agent.wait() for agent in agents] == [1, 1]
    for agent in agents:
        assert re.search(r"message +: the agent's supervisor was ended by SIGKILL", agent.stderr)
