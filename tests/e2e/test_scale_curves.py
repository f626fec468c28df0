"""The page of sizes, made of a real coordinator and real sessions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DEADLINE_S, ROOT


@pytest.mark.slow
def test_a_small_size_is_measured_and_shown(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "bench.scale.curves", "--sizes", "3", "--repeats", "1")
    parts = ("--parts", "agents,back", "--into", str(tmp_path))
    subprocess.run([*command, *parts], cwd=ROOT, check=True, timeout=10 * DEADLINE_S)
    figures = json.loads((tmp_path / "scale.json").read_text())["figures"]
    assert figures["rendezvous"]["3"][0] > 0
    assert 4 < figures["loss"]["3"][0] < figures["loss_again"]["3"][0]
    assert figures["back"]["3"][0] > figures["back_ready"]["3"][0] > 0
    assert "| seconds | 3 agents |" in (tmp_path / "scale.md").read_text()
    assert (tmp_path / "images" / "scale-times.svg").exists()
