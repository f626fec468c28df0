"""What is said of processes that do not die of SIGKILL."""

import os

from structlog.testing import capture_logs

from drumbeat.agent.model.messages import WorkersUnkilled
from drumbeat.agent.workers.manager import UNKILLED_SHOWN_MAX, tell_of_unkilled


def told_of(*pids: int) -> str:
    with capture_logs() as logs:
        tell_of_unkilled(WorkersUnkilled(round_id=3, pids=pids, after_s=15.2))
    (entry,) = logs
    assert (entry["event"], entry["run.round"]) == ("processes can't be killed", 3)
    return str(entry["reason"])


def test_each_process_is_named_with_its_state() -> None:
    told = told_of(os.getpid())
    assert told.startswith("they are still alive 15 s after SIGKILL; process ")
    assert f"process {os.getpid()}: running, " in told


def test_a_process_that_has_gone_meanwhile_is_said_to_be() -> None:
    assert told_of(2**22 + 1).endswith("process 4194305 is gone")


def test_of_many_processes_the_first_are_named_and_the_rest_counted() -> None:
    told = told_of(*[os.getpid()] * (UNKILLED_SHOWN_MAX + 5))
    assert told.count("running") == UNKILLED_SHOWN_MAX
    assert told.endswith("; and 5 more")
