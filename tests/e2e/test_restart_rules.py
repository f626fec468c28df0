"""Restarts of real workers: how long they wait, when there are none, and the exit codes."""

import itertools
import re
import time
from pathlib import Path

import pytest

from drumbeat.v1 import failure_pb2
from tests.support.cluster import Agent, Cluster
from tests.support.status import RunStatus

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("shared_coordinator")]

AWAY_S = 6.0
# What the agent waits for by default; the other tests of this folder do not wait.
WAITING = ("--restart-delay-max", "60")

UNTIL_IT_IS_BACK = """
import sys, time
from pathlib import Path

tries, away_s = Path(sys.argv[1]), float(sys.argv[2])
with tries.open("a") as file:
    file.write(f"{time.time()}\\n")
first = float(tries.read_text().split()[0])
sys.exit(time.time() < first + away_s)
"""
AT_STEP_5 = """
import time, worker_sdk

for step in range(6):
    worker_sdk.heartbeat(step=step)
    time.sleep(0.01)
raise ValueError("boom")
"""
WRAPPED = """
import worker_sdk
from worker_sdk import inprocess

def train():
    for step in range(3):
        worker_sdk.heartbeat(step=step)
    raise ValueError("boom")

inprocess.Wrapper()(train)()
"""
NO_SPACE = """
raise OSError("[Errno 28] No space left: /data:x")
"""


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def verdict_of(cluster: Cluster) -> failure_pb2.Verdict:
    verdict: failure_pb2.Verdict = cluster.coordinator().run(cluster.run_id).verdict
    return verdict


def join(cluster: Cluster, *arguments: str) -> Agent:
    return cluster.agent(*arguments, coordinator=cluster.coordinator())


@pytest.mark.slow
def test_a_cause_that_goes_away_by_itself_leaves_the_budget(
    cluster: Cluster, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    path = script(tmp_path, UNTIL_IT_IS_BACK)
    agent = join(cluster, *WAITING, "--max-restarts", "10", path, str(tries), str(AWAY_S))
    assert agent.wait() == 0, agent.log()
    instants = [float(line) for line in tries.read_text().split()]
    waited = [later - earlier for earlier, later in itertools.pairwise(instants)]
    assert 2 <= len(waited) <= 5, waited
    assert all(wait >= 2**number for number, wait in enumerate(waited[1:])), waited
    run = cluster.coordinator().run(cluster.run_id)
    assert run.restart_count == len(waited)
    reasons = [event.reason for event in run.history]
    assert any(reason.endswith("restart 1 of 10") for reason in reasons), reasons
    assert any("restart 2 of 10 in 1 s" in reason for reason in reasons), reasons


@pytest.mark.slow
def test_status_shows_the_wait_and_a_restart_that_is_asked_for_ends_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = script(tmp_path, UNTIL_IT_IS_BACK)
    how = (*WAITING, "--max-restarts", "10", path, str(tmp_path / "tries"), str(2**40))
    coordinator = cluster.own_coordinator()
    agent = cluster.agent(*how, coordinator=coordinator)

    def waits_long(run: RunStatus) -> bool:
        found = re.match(r"restart 5 of 10 in [1-8]\.\d s: round 4 failed", run.reason)
        return found is not None

    coordinator.wait_for_run(cluster.run_id, waits_long, timeout_s=60)
    asked = time.monotonic()
    said = coordinator.operate("restart", cluster.run_id)
    assert "its next round waits no longer" in said.stdout, said.log()
    coordinator.wait_for_run(cluster.run_id, lambda run: run.round_id == 5)
    assert time.monotonic() - asked < 5, "it would have waited for 8 s"
    coordinator.operate("stop", cluster.run_id)
    assert agent.wait() == 4, agent.log()


def test_a_rule_ends_the_run_after_one_try_and_the_exit_code_says_that_no_other_helps(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules = tmp_path / "rules"
    rules.write_text("# no space, and what the script says itself\nexit=42:fail\n")
    path = script(tmp_path, "raise SystemExit(42)")
    agent = join(cluster, "--max-restarts", "10", "--restart-rules", str(rules), path)
    assert agent.wait() == 5, agent.log()
    verdict = verdict_of(cluster)
    assert verdict.cause == failure_pb2.VERDICT_CAUSE_FAILED_BY_RULE
    assert (verdict.restart_count, verdict.round_id) == (0, 0)
    assert "restart rule 1 (exit=42:fail) ends the run" in agent.stderr


def test_the_error_of_a_worker_is_matched_on_its_host(cluster: Cluster, tmp_path: Path) -> None:
    rules = ("--restart-rule", "error=CUDA:restart", "--restart-rule", r"error=Errno 28\].*:x:fail")
    agent = join(cluster, "--max-restarts", "10", *rules, script(tmp_path, NO_SPACE))
    assert agent.wait() == 5, agent.log()
    assert r"restart rule 2 (error=Errno 28\].*:x:fail) ends the run" in verdict_of(cluster).reason


def test_a_pattern_that_takes_for_ever_is_given_up(cluster: Cluster, tmp_path: Path) -> None:
    path = script(tmp_path, f"raise ValueError({'a' * 3000 + 'b'!r})")
    rules = ("--restart-rule", "error=(a|aa)+$:fail", "--restart-rule", "exit=1:restart")
    agent = join(cluster, "--max-restarts", "1", *rules, path)
    assert agent.wait() == 1, agent.log()
    assert "pattern is slow" in agent.stderr


def test_a_run_that_never_gets_further_ends_at_its_limit(cluster: Cluster, tmp_path: Path) -> None:
    how = ("--max-restarts", "10", "--no-progress-limit", "2", script(tmp_path, AT_STEP_5))
    agent = join(cluster, *how)
    assert agent.wait() == 5, agent.log()
    verdict = verdict_of(cluster)
    assert (verdict.cause, verdict.round_id) == (failure_pb2.VERDICT_CAUSE_NO_PROGRESS, 2)
    why = r"no progress past step 5 in 2 restarts: each time ValueError( at train\.py:7)? at step 5"
    assert re.search(why, verdict.reason), verdict.reason


@pytest.mark.slow
def test_restarts_in_process_wait_and_end_at_the_same_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = script(tmp_path, WRAPPED)
    began = time.monotonic()
    how = ("--nproc-per-node", "2", "--max-restarts", "10", "--no-progress-limit", "2", path)
    agent = join(cluster, *WAITING, *how)
    assert agent.wait() == 5, agent.log()
    assert time.monotonic() - began > 1, "the second one waits"
    run = cluster.coordinator().run(cluster.run_id)
    assert (run.round_id, run.restart_count, run.iterations_restarted) == (0, 0, 2)
    why = "no progress past step 2 in 2 restarts: each time an exception at step 2"
    assert why in run.verdict.reason


def test_free_restarts_leave_the_budget_and_a_spent_budget_has_the_usual_exit_code(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules = ("--restart-rule", "signal=SEGV:restart-free", "--free-restarts-max", "2")
    text = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    agent = join(cluster, "--max-restarts", "1", *rules, script(tmp_path, text))
    assert agent.wait() == 1, agent.log()
    verdict = verdict_of(cluster)
    assert (verdict.cause, verdict.restart_count) == (failure_pb2.VERDICT_CAUSE_WORKER_FAILED, 3)
    assert "the one restart is used" in verdict.reason
