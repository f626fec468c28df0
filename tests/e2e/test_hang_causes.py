"""The root cause of a hang is the rank that others wait for, whichever limit expires first."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from drumbeat.v1 import query_pb2
from tests.support.cluster import Agent, Cluster, Coordinator
from tests.support.processes import DEADLINE_S

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("shared_coordinator"),
]

# DistributedDataParallel on gloo. In its first life one rank hangs as it loads a batch.
TRAIN = """
import ctypes, os, pathlib, signal, sys, threading, time

import torch
import torch.distributed as dist

import worker_sdk

here = pathlib.Path(__file__).parent
way, guilty = sys.argv[1], int(sys.argv[2])
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
STEPS, HANGS_AT = 60, 40


class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


def hold(step):
    if not is_first or step != HANGS_AT or int(os.environ["RANK"]) != guilty:
        return
    match way:
        case "asleep":
            while not (here / "go on").exists():
                time.sleep(0.01)
        case "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "native code":
            ctypes.PyDLL(None).nanosleep(ctypes.byref(Time(1000, 0)), None)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        hold(step)
        return torch.ones(4)


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
while not is_first and not (here / "go on").exists():
    time.sleep(0.01)
for step, batch in enumerate(torch.utils.data.DataLoader(Data())):
    model(batch).sum().backward()
    worker_sdk.heartbeat(step=step)
dist.destroy_process_group()
"""
HANGS = int(os.environ.get("DRUMBEAT_HANGS", "12"))
SHAPES = [(1, 2), (2, 1), (2, 2), (1, 4), (3, 2), (2, 3)]
GUILTY = [("asleep", 3), ("lock", 0), ("native code", 2), ("stopped", 1)]


def start(
    cluster: Cluster,
    directory: Path,
    way: str,
    guilty: int,
    *options: str,
    shape: tuple[int, int] = (2, 2),
    run_id: str = "",
) -> tuple[Coordinator, list[Agent]]:
    """Start so many agents with so many workers each."""
    script = directory / "train.py"
    script.write_text(TRAIN)
    coordinator = cluster.coordinator()
    agents, workers = map(str, shape)
    size = ("--nnodes", agents, "--nproc-per-node", workers, "--preload", "torch")
    argv = (*size, *options, str(script), way, str(guilty))
    run = run_id or cluster.run_id
    return coordinator, [
        cluster.agent(*argv, coordinator=coordinator, run_id=run) for _ in range(shape[0])
    ]


def document(cluster: Cluster, coordinator: Coordinator, verb: str) -> dict[str, Any]:
    argv = (verb, cluster.run_id, "-o", "json", "--coordinator", coordinator.address)
    operator = cluster.process("operator", "coordinator", *argv)
    assert operator.wait() == 0
    found: dict[str, Any] = json.loads(operator.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "guilty"),
    [pytest.param(*each, marks=pytest.mark.soak) if each[0] == "lock" else each for each in GUILTY],
)
def test_the_rank_that_others_wait_for_is_the_root_cause(
    cluster: Cluster, tmp_path: Path, way: str, guilty: int
) -> None:
    """All ranks exceed the limit within milliseconds of each other."""
    coordinator, agents = start(cluster, tmp_path, way, guilty, "--progress-timeout", "2s")
    assert [agent.wait() for agent in agents] == [1, 1]
    report = coordinator.run(cluster.run_id).verdict.report
    assert [cause.worker.rank for cause in report.root_causes] == [guilty], agents[0].log()
    where = "stopped" if way == "stopped" else "in hold (train.py:"
    assert report.hang.causes[0].place.startswith(where), report.hang
    others = [group for group in report.hang.groups if not group.is_cause]
    assert sum(group.count for group in others) == 3
    for group in others:
        assert group.place.startswith("in backward (train.py:")
        assert "_engine_run_backward" in group.stack
    shown = agents[0].stderr + agents[1].stderr
    assert "Where all ranks were when the round hung:" in shown
    assert "in backward (train.py:" in shown
    if way != "stopped":  # which could not be continued for its stack
        assert "in hold" in report.root_causes[0].hang.stacks
        assert 'train.py", line' in shown


@pytest.mark.slow
def test_why_names_the_cause_of_a_hang_after_the_restart(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--progress-timeout", "2s", "--max-restarts", "1")
    coordinator, agents = start(cluster, tmp_path, "asleep", 3, *options)
    run = coordinator.wait_for_run(
        cluster.run_id, lambda run: run.round_id == 1 and run.phase == query_pb2.RUN_PHASE_RUNNING
    )
    (ended,) = (e.reason for e in run.history if e.reason.startswith("round 0 hung: "))
    assert "rank 3 on " in ended
    assert "is in hold (train.py:" in ended
    told = "\n".join(document(cluster, coordinator, "why")["root_cause"])
    assert "Round 0 hung" in told
    assert "1 rank (3) is in hold (train.py:" in told
    assert " in __getitem__" in told, "its stack"
    assert "_engine_run_backward" in told, "that of the ranks that wait"
    (tmp_path / "go on").touch()
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].log()


@pytest.mark.slow
def test_a_hang_is_reported_without_any_option_and_nothing_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The limit is learned, 5 s at least. Once the rank goes on, so does the run."""
    coordinator, agents = start(cluster, tmp_path, "asleep", 2)
    coordinator.wait_for_run(
        cluster.run_id, lambda run: any("rank 2 on " in event.reason for event in run.history)
    )
    seen = document(cluster, coordinator, "status")
    assert seen["reason"].startswith("the round hangs: ranks 0-1,3 of 4 wait in all_reduce #")
    assert "; rank 2 on " in seen["reason"]
    assert (seen["hang"]["is_ending"], seen["hang"]["is_over"]) == (False, False)
    what = document(cluster, coordinator, "why")["what"]
    assert any("is in hold (train.py:" in line for line in what)
    assert any("It is only reported" in line for line in what)
    (tmp_path / "go on").touch()
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].log()
    run = coordinator.run(cluster.run_id)
    assert run.restart_count == 0
    assert [e.reason for e in run.history if e.reason.startswith("training goes on; it had")]
    parts = {
        part["part"]: part["time_s"] for part in document(cluster, coordinator, "goodput")["parts"]
    }
    assert parts["hanging"] >= 5.0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_the_cause_is_right_in_every_hang(cluster: Cluster, tmp_path: Path) -> None:
    """Each way to hang, on one to three hosts with two to six ranks, as often as is asked for."""
    chosen, wrong = random.Random(1), []
    for number in range(HANGS):
        way, shape = GUILTY[number % len(GUILTY)][0], chosen.choice(SHAPES)
        guilty, run_id = chosen.randrange(shape[0] * shape[1]), f"hang-{number}"
        options = ("--progress-timeout", "3s")
        coordinator, agents = start(
            cluster, tmp_path, way, guilty, *options, shape=shape, run_id=run_id
        )
        for agent in agents:
            assert agent.wait(DEADLINE_S * 4) == 1
        report = coordinator.run(run_id).verdict.report
        where = "stopped" if way == "stopped" else "in hold (train.py:"
        found = [(cause.rank, cause.place.startswith(where)) for cause in report.hang.causes]
        print(f"{number}: {way}, {shape}, rank {guilty}: {report.hang.summary}")
        if found != [(guilty, True)]:
            wrong.append((number, way, shape, guilty, report.hang.summary))
    assert not wrong, f"{len(wrong)} of {HANGS}: {wrong}"
