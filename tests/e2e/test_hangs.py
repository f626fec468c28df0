"""Workers that hang are found in time, with the place; slow ones are left alone."""

import os
import signal

import pytest

from drumbeat.v1 import failure_pb2
from drumbeat.v1.failure_pb2 import FailureRecord
from tests.support.cluster import Agent, Cluster, Coordinator

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("shared_coordinator")]

HANGING = ("-m", "tests.support.workers.ways_to_hang")
LIMIT_S = 1.0
# Of workers that never go on, however late they are looked at.
SHORT_S = 0.4
SHORT = f"{SHORT_S}s"


def start(
    cluster: Cluster, coordinator: Coordinator, way: str, *options: str, limit_s: float = LIMIT_S
) -> Agent:
    return cluster.agent(*options, *HANGING, way, str(limit_s), coordinator=coordinator)


def record_of(run_id: str, coordinator: Coordinator) -> FailureRecord:
    """The root cause of the run."""
    cause: FailureRecord
    (cause,) = coordinator.run(run_id).verdict.report.root_causes
    return cause


def seconds(duration: object) -> float:
    return float(duration.ToNanoseconds()) / 1e9  # type: ignore[attr-defined]


def check_hang(
    cluster: Cluster, agent: Agent, coordinator: Coordinator, kind: str, scope: str, place: str
) -> None:
    """The run failed for this hang, which was not noticed early and names its place."""
    assert agent.wait() == 1
    hang = record_of(cluster.run_id, coordinator).hang
    assert failure_pb2.HangKind.Name(hang.kind) == f"HANG_KIND_{kind}", agent.log()
    assert hang.scope == scope
    assert place in hang.stacks, hang
    assert place in agent.stderr, "the report shows the place"
    assert seconds(hang.elapsed) >= seconds(hang.limit), hang


@pytest.mark.parametrize(
    "way",
    [pytest.param("hold_the_lock_of_the_interpreter", marks=pytest.mark.slow), "deadlock_in_scope"],
)
def test_a_worker_that_hangs_in_a_scope(cluster: Cluster, way: str) -> None:
    """Whatever keeps it there, also if the interpreter runs nothing after the timer began."""
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, way, limit_s=SHORT_S)
    check_hang(cluster, agent, coordinator, "TIMER", "the step", way)
    assert seconds(record_of(cluster.run_id, coordinator).hang.limit) == SHORT_S


@pytest.mark.slow
def test_a_section_that_takes_far_longer_than_the_run_has_learned(cluster: Cluster) -> None:
    """Five short ones teach a limit, whose floor is 5 s; the sixth breaks it."""
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "stay_longer_than_ever")
    check_hang(cluster, agent, coordinator, "SECTION", "save", "stay_longer_than_ever")
    assert seconds(record_of(cluster.run_id, coordinator).hang.limit) == 5.0
    assert [limit.section for limit in coordinator.run(cluster.run_id).limits.limits] == ["save"]


def test_no_further_progress(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "stop_making_progress", "--progress-timeout", SHORT)
    check_hang(cluster, agent, coordinator, "PROGRESS", "", "stop_making_progress")
    assert record_of(cluster.run_id, coordinator).hang.progress.step == 2


@pytest.mark.slow
def test_no_sign_of_life_of_the_runtime(cluster: Cluster) -> None:
    """The interpreter's lock is held in C, with no timer open."""
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "hold_the_lock_without_a_timer", "--runtime-timeout", SHORT)
    check_hang(cluster, agent, coordinator, "RUNTIME", "", "hold_the_lock_without_a_timer")


def test_no_first_heartbeat(cluster: Cluster) -> None:
    """A worker that never uses the SDK can't tell its place, and is found all the same."""
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "never_begin", "--startup-timeout", SHORT)
    assert agent.wait() == 1
    hang = record_of(cluster.run_id, coordinator).hang
    assert failure_pb2.HangKind.Name(hang.kind) == "HANG_KIND_STARTUP"


def test_an_interpreter_that_does_not_end(cluster: Cluster) -> None:
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "hang_at_exit", "--exit-timeout", SHORT)
    check_hang(cluster, agent, coordinator, "EXIT", "", "wait_at_exit")


@pytest.mark.slow
@pytest.mark.torch
def test_an_all_reduce_whose_peer_does_not_come(cluster: Cluster) -> None:
    """Rank 0 exceeds its limit and waits for rank 1, which does not use the SDK: the cause."""
    coordinator = cluster.coordinator()
    options = ("--nproc-per-node", "2")
    agent = start(cluster, coordinator, "all_reduce_without_a_peer", *options)
    assert agent.wait() == 1
    cause = record_of(cluster.run_id, coordinator)
    assert cause.worker.rank == 1
    assert (cause.hang.kind, cause.hang.scope) == (failure_pb2.HANG_KIND_TIMER, "all-reduce")
    assert "1 rank (0) is in all_reduce (ways_to_hang.py:" in agent.stderr
    assert "in wait_for_the_peer" in agent.stderr, "the report has the stack of the rank that waits"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["long_import", "long_section"])
def test_a_slow_worker_is_left_alone(cluster: Cluster, way: str) -> None:
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, way, "--progress-timeout", "1")
    assert agent.wait() == 0, agent.log()
    assert "healthy" in agent.stdout


@pytest.mark.slow
def test_a_paused_agent_kills_no_worker(cluster: Cluster) -> None:
    """What it missed while it was stopped is not held against its workers."""
    coordinator = cluster.coordinator("--lease", "60")
    # What a worker writes does not come by the agent then.
    how = ("--progress-timeout", "1", "--stdout-capture", "off")
    agent = start(cluster, coordinator, "many_short_steps", *how)
    agent.wait_for_line("began")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        agent.wait_for_line("most steps done")
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert agent.wait() == 0, agent.log()
    assert "healthy" in agent.stdout


TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
ATTACH, DETACH = 16, 17
pid = int(sys.argv[1])
if libc.ptrace(ATTACH, pid, 0, 0):
    print("refused", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
os.waitpid(pid, 0)
print("attached", flush=True)
time.sleep(float(sys.argv[2]))
libc.ptrace(DETACH, pid, 0, 0)
"""


@pytest.mark.slow
def test_a_worker_under_a_debugger_is_left_alone(cluster: Cluster) -> None:
    """It stands still for twice its limit, and only the debugger is to blame."""
    coordinator = cluster.coordinator()
    agent = start(cluster, coordinator, "one_long_step")
    agent.wait_for_line("began")
    (pid,) = agent.worker_pids()
    tracer = cluster.script(TRACER, str(pid), str(2 * LIMIT_S))
    if "refused" in tracer.wait_for_line("attached|refused")[0]:
        pytest.skip("this host does not let one process trace another")
    assert tracer.wait() == 0
    assert agent.wait() == 0, agent.log()
    assert "healthy" in agent.stdout
