"""Several workers, each a process, restart together; their agents are played."""

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.fake_agents import FakeAgents

HEAD = """
import json, os, signal, sys, threading, time
import worker_sdk.inprocess as inprocess
from worker_sdk.inprocess import CallWrapper, Wrapper
ME = int(os.environ["RANK"])
DIRECTORY = os.environ["DIRECTORY"]

def result(value):
    with open(os.environ["RESULT"], "w") as file:
        json.dump(value, file)

def mark(name):
    open(os.path.join(DIRECTORY, f"{name}-{ME}"), "w").close()
"""


def program(code: str) -> str:
    return HEAD + textwrap.dedent(code)


def test_one_that_raises_restarts_all(tmp_path: Path) -> None:
    code = """
    @Wrapper()
    def train(call: CallWrapper):
        if call.iteration == 0:
            if ME == 1:
                raise ValueError("here")
            time.sleep(600)
        return [call.iteration, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])]

    result(train())
    """
    with FakeAgents(tmp_path, 3, program(code)) as agents:
        assert agents.results() == [(0, f"[1, {rank}, 3]") for rank in range(3)]
        assert "ValueError: here" in agents.model.reasons[0]


def test_a_killed_worker_is_left_out_and_the_others_shift(tmp_path: Path) -> None:
    code = """
    @Wrapper()
    def train(call: CallWrapper):
        if call.iteration == 0:
            if ME == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return [call.state.rank, call.state.initial_rank, os.environ["MASTER_PORT"] != "0"]

    result(train())
    """
    with FakeAgents(tmp_path, 3, program(code)) as agents:
        results = agents.results()
        assert results[0][0] == -signal.SIGKILL
        assert results[1:] == [(0, "[0, 1, true]"), (0, "[1, 2, true]")]


def test_a_group_is_lost_with_its_member(tmp_path: Path) -> None:
    code = """
    ranks = inprocess.Compose(
        inprocess.ShiftRanks(),
        inprocess.FilterCountGroupedByKey(lambda s: str(s.initial_rank // 2), lambda n: n == 2),
    )

    @Wrapper(rank_assignment=ranks)
    def train(call: CallWrapper):
        if call.iteration == 0:
            if ME == 0:
                sys.exit(5)
            time.sleep(600)
        return call.state.rank

    result(train())
    """
    with FakeAgents(tmp_path, 4, program(code)) as agents:
        agents.model.wait_for(lambda: len(agents.model.begins) == 2, 60)
        # The agent of the one that was given no place ends it.
        agents.processes[1].kill()
        assert agents.results()[0][0] == 5
        assert agents.results()[2:] == [(0, "0"), (0, "1")]


def test_a_broken_stream_changes_nothing(tmp_path: Path) -> None:
    code = """
    @Wrapper()
    def train(call: CallWrapper):
        mark(f"running-{call.iteration}")
        if call.iteration == 0:
            time.sleep(600)
        return call.iteration

    result(train())
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        agents.model.wait_for(lambda: len(agents.model.begins) == 1, 60)
        agents.break_streams()
        agents.model.interrupt("while nobody listens")
        assert agents.results() == [(0, "1"), (0, "1")]


def test_a_worker_that_exits_tells_why(tmp_path: Path) -> None:
    code = """
    @Wrapper()
    def train(call: CallWrapper):
        if ME == 1:
            sys.exit("no more of this")
        if call.iteration == 0:
            time.sleep(600)
        return call.state.world_size

    result(train())
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        assert [code for code, _ in agents.results()] == [0, 1]
        said = [step for who, step in agents.model.said if who == 1]
        assert "no more of this" in said[-1].terminated.interruption.message


@pytest.mark.slow
@pytest.mark.torch
def test_gloo_is_left_whether_or_not_peers_are_alive(tmp_path: Path) -> None:
    """All ranks wait in collectives that nobody will ever complete."""
    pytest.importorskip("torch")
    code = """
    import torch, torch.distributed as dist

    @Wrapper(soft_timeout=120, hard_timeout=130, barrier_timeout=140)
    def train(call: CallWrapper):
        dist.init_process_group("gloo")
        other = dist.new_group(list(range(dist.get_world_size())))
        tensor = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=other)
        if call.iteration < 2:
            before = f"before-{call.iteration}"
            mark(before)
            if ME == 2:
                # Both are reached only because the others are in a collective by then.
                while not all(
                    os.path.exists(os.path.join(DIRECTORY, f"{before}-{n}")) for n in (0, 1)
                ):
                    time.sleep(0.01)
                time.sleep(0.3)
                raise ValueError("not everybody came")
            if ME == 1 and call.iteration == 0:
                time.sleep(600)
            dist.all_reduce(tensor, group=other if ME else None)
        dist.destroy_process_group()
        return [call.iteration, tensor.tolist()]

    result(train())
    """
    with FakeAgents(tmp_path, 3, program(code)) as agents:
        assert agents.results() == [(0, "[2, [18.0, 18.0, 18.0]]")] * 3


@pytest.mark.slow
@pytest.mark.torch
def test_one_that_waits_in_init_process_group_is_freed(tmp_path: Path) -> None:
    """Rank 0 holds the store, rank 1 never comes to it."""
    pytest.importorskip("torch")
    code = """
    import torch.distributed as dist

    @Wrapper(soft_timeout=120, hard_timeout=130, barrier_timeout=140)
    def train(call: CallWrapper):
        if call.iteration == 0 and ME == 1:
            time.sleep(1)
            raise ValueError("before it began")
        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
        return call.iteration

    result(train())
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        assert agents.results() == [(0, "1"), (0, "1")]


@pytest.mark.slow
@pytest.mark.torch
def test_restarts_with_torch_leave_no_descriptor_or_thread(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
    import torch, torch.distributed as dist

    seen = []

    @Wrapper()
    def train(call: CallWrapper):
        seen.append([len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))])
        dist.init_process_group("gloo")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        if call.iteration < 10:
            if ME == call.iteration % 2:
                raise ValueError
            dist.all_reduce(tensor)
        dist.destroy_process_group()
        return seen

    first, *_, last = train()[3:]
    result([after <= before + 2 for before, after in zip(first, last)])
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        assert agents.results() == [(0, "[true, true]")] * 2


def test_the_package_is_imported_without_torch_or_grpc() -> None:
    code = "import sys, worker_sdk.inprocess as i; i.Wrapper; i.Compose; i.AbortTorchDistributed()"
    code += "\nassert not {'torch', 'grpc'} & set(sys.modules), sorted(sys.modules)"
    assert os.spawnlp(os.P_WAIT, _python(), _python(), "-c", code) == 0


def _python() -> str:
    import sys

    return sys.executable
