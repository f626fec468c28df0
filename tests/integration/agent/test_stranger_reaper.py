"""The children of an agent that is the init of a container."""

import os
import signal
import subprocess
from pathlib import Path

from drumbeat.agent.workers.supervisor.client import StrangerReaper
from tests.support.supervision import DEADLINE_S
from tests.support.waiting import wait_until


def a_child(code: int) -> int:
    """Return the pid of a child that has ended with this code."""
    process = subprocess.Popen(["sh", "-c", f"exit {code}"])
    process.returncode = 0  # it is not this object that reaps it
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_strangers_are_reaped_and_the_exit_code_of_the_own_child_is_kept() -> None:
    own = a_child(3)
    reaper = StrangerReaper(own, is_init=True)
    try:
        stranger = a_child(7)
        await wait_until(lambda: not Path(f"/proc/{stranger}").exists(), DEADLINE_S)
    finally:
        reaper.close()
    assert exit_code(own) == 3


async def test_an_agent_that_is_no_init_leaves_the_children_of_its_program_alone() -> None:
    child = a_child(7)
    reaper = StrangerReaper(0, is_init=False)
    reaper.close()
    assert exit_code(child) == 7
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
