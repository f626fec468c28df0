"""The manifests of deploy/kubernetes with real processes: probes, and a pod that is deleted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, exit_all
from tests.support.manifests import DIRECTORY, environment, load, pods, render

PROBE_TIMEOUT_S = 10  # timeoutSeconds of the probes


def test_probes_ask_a_real_coordinator(cluster: Cluster) -> None:
    (pod,) = pods(load(DIRECTORY / "coordinator/base/deployment.yaml"))
    (container,) = pod["containers"]
    probe = container["livenessProbe"]
    assert probe["timeoutSeconds"] == PROBE_TIMEOUT_S
    # A volume as fsGroup makes it: open to a group that new directories inherit.
    home = cluster.directory / "tmp"
    home.mkdir()
    home.chmod(0o2777)
    env = cluster.environment() | {"HOME": str(home)}
    command = [str(Path(sys.executable).with_name("coordinator"))]
    command += [word.replace(":29400", ":{}") for word in probe["exec"]["command"][1:]]

    def ask(port: int) -> int:
        line = [word.format(port) for word in command]
        found = subprocess.run(
            line, env=env, check=False, capture_output=True, timeout=PROBE_TIMEOUT_S
        )
        return found.returncode

    serving = cluster.process("served", "coordinator", "serve", "--port", "0", env=env)
    port = int(serving.wait_for_line(r"coordinator ready at \S+:(\d+)$")[1])
    assert ask(port) == 0
    serving.terminate()
    serving.wait()
    assert ask(port) != 0


@pytest.mark.slow
def test_probes_notice_a_coordinator_that_stands_still(cluster: Cluster) -> None:
    coordinator = cluster.own_coordinator()
    coordinator.process.send(signal.SIGSTOP)
    command = [str(Path(sys.executable).with_name("coordinator")), "members"]
    command += ["--coordinator", coordinator.address]
    try:
        found = subprocess.run(
            command, env=cluster.environment(), check=False, timeout=PROBE_TIMEOUT_S
        )
        assert found.returncode != 0
    except subprocess.TimeoutExpired:
        pass  # the kubelet counts it as a failure
    finally:
        coordinator.process.send(signal.SIGCONT)


@pytest.mark.slow
def test_a_pod_that_is_deleted_leaves_and_another_takes_its_place(cluster: Cluster) -> None:
    (pod,) = pods(render(DIRECTORY / "job"))
    (container,) = pod["containers"]
    env = environment(container)
    for name in ("COORDINATOR", "TOKEN_FILE", "RUN_ID"):  # those of this test
        del env[f"DRUMBEAT_{name}"]
    env["DRUMBEAT_NNODES"] = "2"  # else the first round may begin with one pod
    job = cluster.job()
    names = ("train-0-a", "train-1-b", "train-1-c")
    first, second = (job.join(env=env | {"DRUMBEAT_NAME": name}) for name in names[:2])
    workers = job.server.wait_for_round(0, 2)
    second.send(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM
    for worker in workers:
        worker.wait_gone()
    third = job.join(env=env | {"DRUMBEAT_NAME": names[2]})
    exit_all(job.server.wait_for_round(1, 2), 0)
    assert (first.wait(), third.wait()) == (0, 0)
    run = job.state()
    assert run.restarts_used == 0
    assert {agent.name for agent in run.agents} <= set(names)
