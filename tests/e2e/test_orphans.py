"""An agent that is killed with SIGKILL leaves no process, and no directory after the next agent."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

KILLS = int(os.environ.get("DRUMBEAT_KILLS", "20"))
SEED = int(os.environ.get("DRUMBEAT_KILLS_SEED", "1"))


@pytest.mark.slow
def test_an_agent_killed_at_any_instant_leaves_no_process() -> None:
    """Start, restart, stop, each way of output; the whole process table is looked through.

    At 1,000 instants: `make soak`, or DRUMBEAT_KILLS=1000.
    """
    storm = subprocess.run(
        [sys.executable, "-m", "tests.support.agent_storm", str(KILLS), str(SEED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert storm.returncode == 0, f"{storm.stdout}\n{storm.stderr}"
    assert f"{KILLS} kills, 0 left processes; then one more: 0 directories" in storm.stdout
