"""A worker that another library restarts takes part in iterations; its agents are played."""

import signal
import textwrap
from pathlib import Path

from drumbeat.worker.v1 import worker_pb2
from tests.support.fake_agents import FakeAgents

HEAD = """
import os, signal, threading, time
from worker_sdk.inprocess.restart.call_wrapper import AgentLink
from worker_sdk.inprocess.restart.participant import Participant
ME = int(os.environ["RANK"])
participant = Participant(AgentLink.of_process())

def result(value):
    with open(os.environ["RESULT"], "w") as file:
        file.write(str(value))
"""


def program(code: str) -> str:
    return HEAD + textwrap.dedent(code)


def test_it_enters_the_next_iteration_after_each_interruption_and_leaves_with_the_others(
    tmp_path: Path,
) -> None:
    code = """
    participant.enter()
    if ME == 0:
        time.sleep(600)
    participant.leave()
    participant.enter()  # the next call
    participant.enter()  # without effect
    participant.leave()
    result(AgentLink.of_process().iteration)
    """
    with FakeAgents(tmp_path, 3, program(code)) as agents:
        agents.model.wait_for(lambda: len(agents.model.begins) == 1, 60)
        agents.model.interrupt("something")
        agents.model.wait_for(lambda: len(agents.model.begins) == 2, 60)
        agents.processes[0].kill()
        assert agents.results()[1:] == [(0, "4"), (0, "4")]
        assert [len(begin.ranks) for begin in agents.model.begins] == [3, 3, 2, 2]


def test_it_ends_where_no_iteration_follows(tmp_path: Path) -> None:
    code = """
    participant.enter()
    time.sleep(600)
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        agents.model.wait_for(lambda: len(agents.model.begins) == 1, 60)
        for worker in agents.model.workers.values():
            assert worker.send is not None
            worker.send(worker_pb2.WorkerOrder(abort=worker_pb2.WorkerAbort(reason="too few")))
        assert [code for code, _ in agents.results()] == [-signal.SIGTERM] * 2


def test_it_gives_its_main_thread_time_for_signs_of_progress_while_it_waits(
    tmp_path: Path,
) -> None:
    code = """
    from worker_sdk.inprocess.restart import progress
    give_sign = progress._Function(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    def ask():
        progress._add_pending_call(give_sign, None)
    participant.enter()
    if ME == 0:
        time.sleep(600)
    threading.Timer(0.3, ask).start()
    participant.leave()
    """
    with FakeAgents(tmp_path, 2, program(code)) as agents:
        assert agents.processes[1].wait(60) == -signal.SIGKILL
        agents.processes[0].kill()
        agents.results()
