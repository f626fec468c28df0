"""An agent that is killed with SIGKILL leaves no process, whenever that is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("DRUMBEAT_KILLS", "20"))
SEED = int(os.environ.get("DRUMBEAT_KILLS_SEED", "1"))


def test_an_agent_killed_at_any_instant_leaves_no_process() -> None:
    """Start, restart, stop, each way of output; the whole process table is looked through."""
    storm = subprocess.run(
        [sys.executable, "-m", "tests.support.agent_storm", str(KILLS), str(SEED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert storm.returncode == 0, f"{storm.stdout}\n{storm.stderr}"
    assert f"{KILLS} kills, 0 left processes" in storm.stdout
