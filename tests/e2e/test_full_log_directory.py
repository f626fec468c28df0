"""A log directory without room, of which workers fail."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

pytestmark = pytest.mark.e2e

FILLING = """
while True:
    print("x" * 4096, flush=True)
"""


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_the_report_names_a_full_log_directory(cluster: Cluster, how: str) -> None:
    logs = cluster.directory / "logs"
    logs.mkdir()
    mounting = ("unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=256k t {logs} && $0 $@")
    if subprocess.run([*mounting, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may mount nothing")
    script = cluster.directory / "filling.py"
    script.write_text(FILLING)
    options = ("--standalone", how, "3", "--log-dir", str(logs))
    agent = (sys.executable, "-m", "drumbeat.agent", "join", *options, str(script))
    process = cluster.command("agent", *mounting, *agent)
    assert process.wait() == 1, process.log()
    full = f"the file system of the log directory {logs} is full: 0 bytes and "
    told = [line for line in process.stderr.splitlines() if full in line]
    assert any("log directory full" in line for line in told), process.stderr
    assert any("likely why: " in line for line in told)
