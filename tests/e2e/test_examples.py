"""The examples of frameworks lose a worker, and go on from their checkpoint.

``test_torch.py`` tests that of DistributedDataParallel.
"""

import re
from importlib.util import find_spec

import pytest

from drumbeat.v1 import control_pb2, control_pb2_grpc
from tests.support.channels import channel_to
from tests.support.cluster import DEADLINE_S, ROOT, Agent, Cluster, Coordinator
from tests.support.status import kind
from tests.support.waiting import MS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("lightning") is None, reason="the frameworks are not installed (examples extra)"
    ),
    pytest.mark.usefixtures("shared_coordinator"),
]

TRAINING_S = 120_000 * MS
STEPS = 200
SAVE_INTERVAL = 10  # of all scripts, and that of the lines they print
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start_two_agents(
    cluster: Cluster, coordinator: Coordinator, script: str, *options: str
) -> list[Agent]:
    """Start both; the first has rank 0."""
    checkpoints = ("--checkpoint-dir", str(cluster.directory / "checkpoints"))
    arguments = (str(ROOT / "examples" / script), "--steps", str(STEPS), *checkpoints)
    command = (*options, "--max-restarts", "3", *arguments)
    first = cluster.agent(*command, coordinator=coordinator, env=ENVIRONMENT)
    first.wait_for_line("standing by")
    return [first, cluster.agent(*command, coordinator=coordinator, env=ENVIRONMENT)]


def save_at_one_step(coordinator: Coordinator, run_id: str) -> int:
    """Ask all ranks to save; return the step once they have."""
    with channel_to(coordinator.address) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        stub.Checkpoint(control_pb2.CheckpointRequest(run_id=run_id), timeout=DEADLINE_S)
    run = coordinator.wait_for_run(
        run_id, lambda run: any(kind(event) == "notice over" for event in run.history)
    )
    (reason,) = (event.reason for event in run.history if kind(event) == "notice over")
    saved = re.fullmatch(r"all have saved, at step (\d+) or right after", reason)
    assert saved, reason
    return int(saved[1])


def check_that_training_went_on(output: str, saved_at: int) -> None:
    """Check that rank 0 resumed from a checkpoint at this step or later, and trained to the end."""
    before, resumed_at, after = re.split(r"^resumed from \D+(\d+)$", output, flags=re.MULTILINE)
    (_, start_loss), *_, (_, last_loss) = losses(before)
    (step, loss), *_, (last_step, _) = losses(after)
    assert saved_at <= int(resumed_at) < step <= int(resumed_at) + SAVE_INTERVAL
    assert last_step == STEPS
    assert loss < (start_loss + last_loss) / 2, "training started over"


def losses(output: str) -> list[tuple[int, float]]:
    """Return the steps that rank 0 printed, with their losses."""
    lines = re.findall(r"^step (\d+) loss (.+)$", output, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in lines]


@pytest.mark.parametrize(
    ("script", "preload"),
    [
        ("train_fsdp2.py", "torch,sklearn.datasets"),
        ("train_lightning.py", "torch,lightning,sklearn.datasets"),
        ("train_accelerate.py", "torch,accelerate,sklearn.datasets"),
        (
            "train_hf_trainer.py",
            "torch,transformers.trainer,transformers.models.llama.modeling_llama,sklearn.datasets",
        ),
    ],
)
def test_training_goes_on_from_the_checkpoint(cluster: Cluster, script: str, preload: str) -> None:
    """One of four workers is killed once all have saved at a step that the coordinator chose."""
    coordinator = cluster.coordinator()
    options = ("--nnodes", "2", "--nproc-per-node", "2", "--preload", preload)
    agents = start_two_agents(cluster, coordinator, script, *options)
    agents[0].wait_for_line("step 50 loss", TRAINING_S)
    victim = agents[1].worker(3)
    saved_at = save_at_one_step(coordinator, cluster.run_id)
    victim.kill()
    assert [agent.wait(TRAINING_S) for agent in agents] == [0, 0]
    last = coordinator.run(cluster.run_id)
    assert (last.restart_count, last.round_id, last.verdict.is_success) == (1, 1, True)
    check_that_training_went_on(agents[0].stdout, saved_at)


def test_a_sharded_checkpoint_is_loaded_by_fewer_workers(cluster: Cluster) -> None:
    """The second of two hosts is lost; the first trains on alone."""
    coordinator = cluster.coordinator()
    options = ("--nnodes", "1:2", "--last-call", "1h", "--preload", "torch,sklearn.datasets")
    agents = start_two_agents(cluster, coordinator, "train_fsdp2.py", *options)
    agents[0].wait_for_line("step 50 loss", TRAINING_S)
    saved_at = save_at_one_step(coordinator, cluster.run_id)
    agents[1].kill()
    assert agents[0].wait(TRAINING_S) == 0
    last = coordinator.run(cluster.run_id)
    assert (last.restart_count, last.round_id, last.verdict.is_success) == (0, 1, True)
    check_that_training_went_on(agents[0].stdout, saved_at)
