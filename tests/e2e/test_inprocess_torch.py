"""Training with torch starts again in process, and comes to what it would have come to."""

import re

import pytest

from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.waiting import MS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("shared_coordinator"),
]

WORKER = ("-m", "tests.support.workers.training")
TRAINING_S = 120_000 * MS
RELEASED_S = 20_000 * MS
"""A rank in a collective of gloo is otherwise there for half an hour."""
FAULTS = 5


def lines_of(agents: list[Agent], what: str) -> list[dict[str, str]]:
    """Every line ``what`` of all workers: its fields, and the worker's first rank."""
    found = []
    for agent in agents:
        for match in re.finditer(rf"w(\d+) {what}(?: (.*))?$", agent.stdout, re.MULTILINE):
            fields = dict(word.split("=", 1) for word in (match[2] or "").split())
            found.append({**fields, "worker": match[1]})
    return found


def train(cluster: Cluster, coordinator: Coordinator, mode: str, *, hosts: int) -> list[Agent]:
    """Let agents with as many workers each train to the end."""
    directory = cluster.directory / mode
    directory.mkdir()
    size = ("--nnodes", str(hosts), "--nproc-per-node", str(hosts))
    command = (*size, "--preload", "torch", *WORKER, mode)
    agents: list[Agent] = []
    for _ in range(hosts):
        if agents:
            agents[-1].wait_for_line("standing by")  # so that rank 0 is the first one's
        joined = cluster.agent(*command, str(directory), coordinator=coordinator, run_id=mode)
        agents.append(joined)
    assert {agent.wait(TRAINING_S) for agent in agents} == {0}, cluster.logs()
    return agents


def result(agents: list[Agent]) -> tuple[float, float]:
    """The last loss and the sum of the weights, which all ranks have alike."""
    lines = lines_of(agents, "trained")
    ((loss, weights),) = {(line["loss"], line["weights"]) for line in lines}
    return float.fromhex(loss), float.fromhex(weights)


def start_two(cluster: Cluster, mode: str) -> Agent:
    """Let two workers of one agent run to the end."""
    options = ("--standalone", "--nproc-per-node", "2", "--preload", "torch")
    agent = cluster.agent(*options, *WORKER, mode, str(cluster.directory))
    assert agent.wait(TRAINING_S) == 0, cluster.logs()
    assert sorted(line["value"] for line in lines_of([agent], "returned")) == ["4.0", "4.0"]
    return agent


@pytest.mark.slow
def test_training_with_faults_comes_to_the_same_result(cluster: Cluster) -> None:
    """Five faults of four kinds, and still the processes that it began in.

    Not to the last bit of what one rank comes to alone: gradients are added up in another order.
    """
    coordinator = cluster.coordinator()
    expected = result(train(cluster, coordinator, "clean", hosts=1))
    agents = train(cluster, coordinator, "faulty", hosts=2)
    assert sorted(line["worker"] for line in lines_of(agents, "trained")) == ["0", "1", "2", "3"]
    assert result(agents) == pytest.approx(expected, rel=1e-12)
    assert coordinator.run("clean").iterations_restarted == 0
    run = coordinator.run("faulty")
    assert (run.restart_count, run.iterations_restarted) == (0, FAULTS)
    kinds = {line["kind"] for line in lines_of(agents, "fault")}
    assert len(kinds) == 4
    entries = lines_of(agents, "enter")
    assert len({line["pid"] for line in entries}) == 4
    assert len(entries) == 4 * (FAULTS + 1)
    assert len({line["port"] for line in entries}) == FAULTS + 1


@pytest.mark.slow
def test_a_rank_in_a_collective_is_released_and_nobody_comes_late_to_it(cluster: Cluster) -> None:
    """Its peer raised, is alive, and tries only when the iteration is over."""
    agent = start_two(cluster, "stuck")
    (waits,), (released,) = lines_of([agent], "waits"), lines_of([agent], "released")
    assert waits["worker"] == released["worker"] == "0"
    assert float(released["after"]) - float(waits["at"]) < RELEASED_S
    ports = {(line["iteration"], line["port"]) for line in lines_of([agent], "enter")}
    assert len(ports) == 2
    assert len({port for _, port in ports}) == 2
    (late,) = lines_of([agent], "late")
    assert late["refused"] in ("DistNetworkError", "DistStoreError")


@pytest.mark.slow
def test_nccl_is_aborted(cluster: Cluster) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: NCCL takes one per rank")
    agent = start_two(cluster, "stuck-nccl")
    assert lines_of([agent], "released")
