"""deploy/slurm without a Slurm: which jobs are requeued, and which drains are made and undone."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "deploy/slurm"
BASH = "/bin/bash"


def load_drains() -> Any:
    spec = spec_from_file_location("drains", FOLDER / "drains.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["drains"] = module
    spec.loader.exec_module(module)
    return module


drains = load_drains()


class Batch:
    """``train.sbatch`` with commands that do nothing but answer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked = directory / "asked"

    def command(self, name: str, *lines: str) -> None:
        path = self.directory / name
        path.write_text("\n".join(["#!/bin/sh", f'echo {name} "$@" >> {self.asked}', *lines]))
        path.chmod(0o755)

    def run(self, verdict: str, code: int, state: str = "RUNNING", **env: str) -> tuple[int, str]:
        """Return the exit code and what was asked of Slurm, after agents that ended so."""
        self.command("srun", f"exit {code}")
        self.command("squeue", f"echo {state}")
        self.command("scontrol")
        self.command("coordinator", f"echo {verdict}", f"exit {0 if verdict else 2}")
        done = subprocess.run(
            [BASH, FOLDER / "train.sbatch", "--nproc-per-node", "8", "train.py"],
            env={
                "PATH": f"{self.directory}:{os.environ['PATH']}",
                "HOME": str(self.directory),
                "SLURM_JOB_ID": "17",
                "SLURMD_NODENAME": "n1",
                "SLURM_JOB_NUM_NODES": "5",
                "SLURM_JOB_NODELIST": "n[1-5]",
                "DRUMBEAT_COORDINATOR": "head",
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, self.asked.read_text()


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


@pytest.mark.parametrize(
    ("verdict", "code", "expected", "is_requeued"),
    [
        ("succeeded", 0, 0, False),
        ("succeeded", 137, 0, False),  # a node died on the way
        ("worker_failed", 1, 1, True),
        ("agents_missing", 1, 1, True),
        ("internal", 1, 1, True),
        ("failed_by_rule", 5, 5, False),
        ("no_progress", 5, 5, False),
        ("no_progress", 138, 5, False),
        ("stopped", 4, 4, False),
        ("start_impossible", 1, 1, False),
        ("", 0, 0, False),
        ("", 2, 2, False),
        ("", 3, 3, True),
        ("", 5, 5, False),
        ("", 138, 138, True),
        ("", 143, 143, True),
    ],
)
def test_a_job_is_requeued_where_another_start_helps(
    batch: Batch, verdict: str, code: int, expected: int, is_requeued: bool
) -> None:
    exit_code, asked = batch.run(verdict, code)
    assert exit_code == expected
    assert ("scontrol requeue 17" in asked) == is_requeued


@pytest.mark.parametrize(
    ("state", "env", "is_requeued"),
    [
        ("RUNNING", {"SLURM_RESTART_COUNT": "9"}, True),
        ("RUNNING", {"SLURM_RESTART_COUNT": "10"}, False),
        ("RUNNING", {"SLURM_RESTART_COUNT": "2", "MAX_REQUEUES": "2"}, False),
        ("COMPLETING", {}, False),
        ("CANCELLED", {}, False),
        ("", {}, False),
    ],
)
def test_a_job_is_not_requeued_too_often_nor_when_it_ends(
    batch: Batch, state: str, env: dict[str, str], is_requeued: bool
) -> None:
    code, asked = batch.run("worker_failed", 1, state, **env)
    assert code == 1
    assert ("scontrol requeue 17" in asked) == is_requeued


def test_the_step_gets_the_nodes_of_all_parts_of_a_job(batch: Batch) -> None:
    parts = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "c1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "g[1-2]",
    }
    _, asked = batch.run("succeeded", 0, **parts)
    assert "srun --het-group=0-1 " in asked
    assert "bash -c node" in asked
    assert "node --nproc-per-node 8 train.py" in asked
    _, asked = batch.run("succeeded", 0)
    assert "srun --ntasks-per-node=1 " in asked


RUN = "mt5"
OURS = drains.Drain("n1", RUN, "slurm: down: Not responding")
THEIRS = drains.Drain("n1", RUN, "memory errors")
EVERYWHERE = drains.Drain("n1", None, "memory errors")
OTHER_RUN = drains.Drain("n1", "exp1", "slurm: down: Not responding")
DRAIN = "coordinator drain n1 --run-id mt5 --reason slurm: {}"
UNDRAIN = "coordinator undrain n1 --run-id mt5 --reason slurm: it is back"
SLURM_DRAIN = "scontrol update NodeName=n1 State=DRAIN Reason=drumbeat mt5: memory errors"
RESUME = "scontrol update NodeName=n1 State=RESUME"


@pytest.mark.parametrize(
    ("line", "known", "expected", "mirrored"),
    [
        ("n1|allocated|none", [], [], []),
        ("n1|allocated*|none", [], [], []),  # it does not respond, and is not given up yet
        ("n1|draining|fan|3", [], [DRAIN.format("draining: fan|3")], ["same"]),
        ("n1|drained*|fan", [], [DRAIN.format("drained: fan")], ["same"]),
        ("n1|down*|Not responding", [], [DRAIN.format("down: Not responding")], ["same"]),
        ("n1|failing|disk", [], [DRAIN.format("failing: disk")], ["same"]),
        ("n1|down|x", [OURS], [], []),
        ("n1|down|x", [OTHER_RUN], [DRAIN.format("down: x")], ["same"]),
        ("n1|idle|none", [OURS], [UNDRAIN], ["same"]),
        ("n1|idle|none", [OTHER_RUN], [], []),
        ("n1|down|x", [THEIRS], [], []),  # an operator's drain is left alone
        ("n1|mixed|none", [THEIRS], [], [SLURM_DRAIN]),
        ("n1|mixed|none", [EVERYWHERE], [], [SLURM_DRAIN]),
        ("n1|draining|drumbeat mt5: memory errors", [THEIRS], [], []),
        ("n1|draining|drumbeat mt5: memory errors", [], [], [RESUME]),
        ("n1|down|drumbeat exp1: y", [], [DRAIN.format("down: drumbeat exp1: y")], ["same"]),
        ("no such thing", [], [], []),
    ],
)  # fmt: skip
def test_a_run_and_slurm_drain_the_same_nodes(
    line: str, known: list[Any], expected: list[str], mirrored: list[str]
) -> None:
    nodes = drains.parse_nodes(f"{line}\n{line}\n")

    def changes(*, drains_slurm: bool) -> list[str]:
        commands = drains.changes(RUN, nodes, known, drains_slurm=drains_slurm)
        return [" ".join(command) for command in commands]

    assert changes(drains_slurm=False) == expected
    assert changes(drains_slurm=True) == (expected if mirrored == ["same"] else mirrored)


def test_a_reason_of_slurm_is_cut_to_what_a_drain_takes() -> None:
    nodes = {"n1": drains.Node("down", "x" * 1000)}
    (command,) = drains.changes(RUN, nodes, [], drains_slurm=False)
    assert len(command[-1]) == drains.REASON_MAX
