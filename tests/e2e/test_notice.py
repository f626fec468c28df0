"""Before the hosts of a run change, all ranks save at one step; nothing is computed twice."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, Agent, Cluster, Coordinator
from tests.support.waiting import MS, wait_until_sync

pytestmark = pytest.mark.torch

SCRIPT = str(ROOT / "tests" / "support" / "workers" / "saving.py")
START_S = 60_000 * MS
END_S = 60_000 * MS
STEPS = 600  # of the script


class Training:
    """A run of three hosts with a rank each, and what it left."""

    def __init__(self, cluster: Cluster, *mode: str) -> None:
        self.directory = cluster.directory / "saved"
        self.directory.mkdir()
        self.coordinator: Coordinator = cluster.coordinator()
        options = (
            *("--nnodes", "1:3", "--last-call", "1h", "--nproc-per-node", "1"),
            *("--preemption-signal", "SIGTERM", "--preemption-grace", "10s"),
        )
        self.agents: list[Agent] = [
            cluster.agent(
                *(*options, "--name", name, SCRIPT, str(self.directory), *mode),
                coordinator=self.coordinator,
            )
            for name in "abc"
        ]
        self.wait_for_steps("0-0", 3)

    def wait_for_steps(self, when: str, ranks: int) -> None:
        """Return once all ranks of a round and iteration train."""
        files = [self.directory / f"steps-{when}-{rank}" for rank in range(ranks)]
        wait_until_sync(lambda: all(len(steps_of(file)) > 5 for file in files), START_S)

    def drain(self, agent: int) -> None:
        """Take an agent out of the run."""
        name = "abc"[agent]
        assert self.coordinator.operate("drain", name, "--reason", "disk").wait() == 0
        assert self.agents[agent].wait(END_S) == 0

    def saved_at(self, kind: str, ranks: int) -> int:
        """Return the one step that all ranks saved at."""
        files = sorted(file.name.split("-") for file in self.directory.glob(f"saved-*-{kind}"))
        assert [int(rank) for _, rank, _, _ in files] == list(range(ranks))
        (step,) = {int(step) for _, _, step, _ in files}
        return step

    def expect(self, *parts: tuple[str, int, int, int]) -> None:
        """Check that each rank began each step once, and that all came to the same.

        ``parts``: a round and iteration, its ranks, its first step, and where it ended.
        """
        begun = {file.name: steps_of(file) for file in self.directory.glob("steps-*")}
        assert begun == {
            f"steps-{when}-{rank}": list(range(first, end))
            for when, ranks, first, end in parts
            for rank in range(ranks)
        }
        result = json.loads((self.directory / "result").read_text())
        # Sums of several ranks are rounded in another order.
        assert result["loss"] == pytest.approx(result["undisturbed"], rel=1e-9)
        assert self.coordinator.run("run").restart_count == 0


def steps_of(file: Path) -> list[int]:
    return [int(step) for step in file.read_text().split()] if file.exists() else []


@pytest.mark.slow
def test_hosts_leave_a_run_once_all_have_saved(cluster: Cluster) -> None:
    training = Training(cluster)
    training.drain(1)
    training.wait_for_steps("1-0", 2)
    seats = training.coordinator.run("run").agents
    (leaver,) = (each.name for each in seats if each.seat.group_rank == 1)
    os.kill(training.agents["abc".index(leaver)].pid, signal.SIGTERM)
    assert training.agents["abc".index(leaver)].wait(END_S) == 128 + signal.SIGTERM
    (training.directory / "hurry").touch()
    (stayed,) = (training.agents[at] for at, name in enumerate("abc") if name not in {"b", leaver})
    assert stayed.wait(END_S) == 0
    drained, preempted = training.saved_at("drain", 3) + 1, training.saved_at("preemption", 2) + 1
    training.expect(
        ("0-0", 3, 0, drained),
        ("1-0", 2, drained, preempted),
        ("2-0", 1, preempted, STEPS),
    )


@pytest.mark.slow
def test_training_that_restarts_in_process_saves_before_a_host_leaves(cluster: Cluster) -> None:
    training = Training(cluster, "wrapped")
    training.drain(1)
    (training.directory / "hurry").touch()
    assert [agent.wait(END_S) for agent in training.agents] == [0, 0, 0]
    drained = training.saved_at("drain", 3) + 1
    training.expect(("0-0", 3, 0, drained), ("0-1", 2, drained, STEPS))
