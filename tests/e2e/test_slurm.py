"""deploy/slurm on a real Slurm: start, death of a node, requeue, preemption, drains, parts."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from drumbeat.access.token import Role
from tests.support.cluster import DEADLINE_S, ROOT, Cluster
from tests.support.slurm import Job, Slurm, needs_slurm
from tests.support.waiting import MS, wait_until_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), needs_slurm]

LEASE_S = 5.0
DRAINS = f"{ROOT / 'deploy/slurm/drains.py'} --period 1"
# A rank leaves a line for each step: round, step, time. It ends with what is in the file `end`.
TRAIN = """
import os, sys, time
from pathlib import Path
import worker_sdk

directory, rank = Path(sys.argv[1]), os.environ["RANK"]
saved, end = directory / "saved", directory / "end"
step = int(saved.read_text()) + 1 if saved.exists() else 0
with (directory / f"steps-{rank}").open("a", buffering=1) as log:
    while not end.exists():
        print(os.environ["DRUMBEAT_ROUND"], step, time.time(), file=log)
        worker_sdk.heartbeat(step)
        if worker_sdk.should_checkpoint(step):
            if rank == "0":
                saved.write_text(str(step))
            worker_sdk.checkpointed(step, wait=True)
        step += 1
        time.sleep(0.02)
sys.exit(int(end.read_text()))
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm() as slurm:
        yield slurm


class Training:
    """A run of ``TRAIN``, and what its ranks leave."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "train.py").write_text(TRAIN)

    @property
    def command(self) -> tuple[str, str]:
        """The script and its argument."""
        return str(self.directory / "train.py"), str(self.directory)

    def steps(self, rank: int) -> list[tuple[int, int, float]]:
        """Return what a rank has done: round, step, time."""
        path = self.directory / f"steps-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split() for line in lines]
        return [(int(row[0]), int(row[1]), float(row[2])) for row in rows if len(row) == 3]

    def wait_for_round(self, job: Job, round_id: int, ranks: int) -> float:
        """Return when all ranks of a round had made a step."""

        def firsts() -> list[float]:
            return [
                next((at for when, _, at in self.steps(rank) if when == round_id), 0.0)
                for rank in range(ranks)
            ]

        wait_until_sync(lambda: all(firsts()), DEADLINE_S, describe=job.describe)
        return max(firsts())

    def end(self, code: int = 0) -> None:
        """Let all workers end."""
        draft = self.directory / "end.new"
        draft.write_text(str(code))
        draft.rename(self.directory / "end")


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_a_job_trains_and_goes_on_without_a_node_that_dies(
    training: Training, record_property: Callable[[str, object], None]
) -> None:
    with Slurm() as slurm:  # of its own: a node is lost
        submitted = time.time()
        job = slurm.submit("--nodes=2", "--", *training.command)
        start_s = training.wait_for_round(job, 0, 2) - submitted
        died = time.time()
        slurm.freeze("n2")
        loss_s = training.wait_for_round(job, 1, 1) - died
        for name, value in {"start_s": start_s, "loss_s": loss_s}.items():
            record_property(name, value)
            print(f"{name} {value:.2f}")
        assert start_s < 20_000 * MS
        assert loss_s < LEASE_S + 10_000 * MS
        training.end()
        job.wait_for_output("verdict: succeeded")
        assert "Node failure on n2" in job.output, "as Slurm has it, once it knows"
        assert job.wait_for_state("COMPLETED")["ExitCode"] == "0:0"
        assert not list((slurm.directory / "shared").iterdir()), "a token is left"


def test_a_job_whose_first_node_dies_begins_anew_elsewhere(training: Training) -> None:
    with Slurm() as slurm:  # of its own: a node is lost
        options = ("--nodes=2", "--", *training.command)
        job = slurm.submit(*options, DRUMBEAT_COORDINATOR_GRACE="5s")
        training.wait_for_round(job, 0, 2)
        frozen = slurm.freeze("n1")
        # Slurm gives the node up, then the agent on the other node its coordinator.
        wait_until_sync(lambda: job.facts()["Restarts"] == "1", 2 * DEADLINE_S, job.describe)
        for process in frozen:  # they take connections, as no machine without power does
            with suppress(psutil.NoSuchProcess):  # the death of an agent ends its workers
                process.kill()
        job.wait_for_state("PENDING")
        wait_until_sync(lambda: slurm.node_state("n2") == "idle", DEADLINE_S, job.describe)
        (training.directory / "steps-0").unlink()
        slurm.run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now+3")
        training.wait_for_round(job, 0, 1)
        assert job.facts()["NodeList"] == "n[2-3]"
        training.end()
        job.wait_for_state("COMPLETED")


@pytest.mark.parametrize(
    ("code", "options", "expected"),
    [
        (42, ("--restart-rule", "exit=42:fail"), "5:0"),
        (42, (), "1:0"),
        (0, ("--no-such-option",), "2:0"),
    ],
    ids=["would fail again", "requeued too often", "usage"],
)
def test_a_job_that_another_start_would_not_help_is_not_requeued(
    slurm: Slurm, training: Training, code: int, options: tuple[str, ...], expected: str
) -> None:
    training.end(code)
    job = slurm.submit("--nodes=2", "--", *options, *training.command, MAX_REQUEUES="0")
    try:
        facts = job.wait_for_end()
        assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == (
            "FAILED",
            expected,
            "0",
        ), job.output
        assert ("not requeued: it was started again 0 times" in job.output) == (expected == "1:0")
    finally:
        job.cancel()


@pytest.mark.parametrize("to", [(), ("--batch",)], ids=["to the step", "to the batch shell"])
def test_a_preempted_job_saves_is_requeued_and_goes_on(
    slurm: Slurm, training: Training, to: tuple[str, ...]
) -> None:
    job = slurm.submit("--nodes=2", "--", *training.command)
    try:
        training.wait_for_round(job, 0, 2)
        # Training that has not asked yet when to save is not waited for.
        wait_until_sync(lambda: min(len(training.steps(rank)) for rank in (0, 1)) > 20, DEADLINE_S)
        # As --signal sends it before the time limit: to every process of the step, or with B:.
        slurm.run("scancel", *to, "--signal=USR1", job.job_id)
        job.wait_for_output("requeued: the agents left with 138")
        saved = int((training.directory / "saved").read_text())
        assert [training.steps(rank)[-1][1] for rank in (0, 1)] == [saved, saved]
        wait_until_sync(lambda: job.facts()["Restarts"] == "1", DEADLINE_S, describe=job.describe)
        slurm.wait_for_nodes("idle")
        # Slurm itself would wait two minutes, nodes refuse the job in the second of its end.
        slurm.run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now+3")
        wait_until_sync(lambda: training.steps(0)[-1][1] > saved, DEADLINE_S, describe=job.describe)
        assert [step for _, step, _ in training.steps(0)] == sorted(
            {step for _, step, _ in training.steps(0)}
        ), "a step was done twice"
        training.end()
        job.wait_for_state("COMPLETED")
    finally:
        job.cancel()


def test_a_cancelled_job_is_not_requeued(slurm: Slurm, training: Training) -> None:
    job = slurm.submit("--nodes=2", "--", *training.command)
    training.wait_for_round(job, 0, 2)
    job.cancel()
    assert job.facts()["JobState"] == "CANCELLED"
    assert job.facts()["Restarts"] == "0"


def test_nodes_that_slurm_drains_leave_training_until_they_are_back(
    slurm: Slurm, training: Training
) -> None:
    job = slurm.submit("--nodes=2", "--", *training.command, DRAINS=DRAINS)
    try:
        training.wait_for_round(job, 0, 2)
        slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=fan 3 is slow")
        training.wait_for_round(job, 1, 1)
        job.wait_for_output("drained by")
        assert "slurm: draining: fan 3 is slow" in job.output
        slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
        training.wait_for_round(job, 2, 2)
        training.end()
        assert job.wait_for_state("COMPLETED")["ExitCode"] == "0:0", job.output
    finally:
        slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME", is_checked=False)
        job.cancel()


def test_slurm_drains_what_an_operator_drains_in_the_run(
    slurm: Slurm, training: Training, cluster: Cluster
) -> None:
    coordinator = cluster.own_coordinator()
    token = cluster.private_file("join", coordinator.create_token(run_id="mine").text())
    admin = cluster.private_file("admin", coordinator.create_token(Role.ADMIN).text())
    job = slurm.submit(
        *("--nodes=2", "--", *training.command),
        DRUMBEAT_COORDINATOR=coordinator.address,
        DRUMBEAT_RUN_ID="mine",
        DRUMBEAT_TOKEN_FILE=token,
        ADMIN_TOKEN_FILE=admin,
        DRAINS=f"{DRAINS} --drain-slurm",
    )
    try:
        training.wait_for_round(job, 0, 2)
        coordinator.operate("drain", "n2", "--reason", "memory errors")
        wait_until_sync(lambda: slurm.node_state("n2") == "draining", DEADLINE_S, job.describe)
        coordinator.operate("undrain", "n2")
        wait_until_sync(lambda: slurm.node_state("n2") != "draining", DEADLINE_S, job.describe)
        slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=disk")

        def drained() -> list[str]:
            document = json.loads(coordinator.operate("drains", "-o", "json").stdout)
            return [drain["name"] for drain in document["drains"]]

        wait_until_sync(lambda: drained() == ["n1"], DEADLINE_S, job.describe)
        training.end()
        job.wait_for_state("COMPLETED")
        assert drained() == [], "a drain of Slurm's outlives the job"
        assert Path(token).exists(), "a token that is not the job's was removed"
    finally:
        for name in ("n1", "n2"):
            slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME", is_checked=False)
        job.cancel()


def test_the_parts_of_a_heterogeneous_job_are_one_run(slurm: Slurm, training: Training) -> None:
    job = slurm.submit("--nodes=1", ":", "--nodes=1", "--", *training.command)
    try:
        training.wait_for_round(job, 0, 2)
        training.end()
        job.wait_for_output("verdict: succeeded")
        assert job.wait_for_state("COMPLETED")["ExitCode"] == "0:0"
    finally:
        job.cancel()
