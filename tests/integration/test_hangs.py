"""A standalone agent and workers that hang: what the failure report says of them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60
WORKER = "tests.support.workers.hanging"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary directory with a name short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def run(
    folder: Path, how: str, limit_s: float = 0.3, *options: str
) -> subprocess.CompletedProcess[str]:
    path = str(ROOT)
    argv = [sys.executable, "-m", "drumbeat.agent", "join", "--standalone", "--log-format", "json"]
    finished = subprocess.run(
        [*argv, *options, "-m", WORKER, how, str(limit_s)],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert not list(folder.glob("drumbeat*")), "the agent left its directory"
    return finished


def expiries(path: Path) -> list[tuple[str, object, object]]:
    """Return what an event log says of limits that were over: name, scope and signal."""
    told = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (each["name"], each["metadata"].get("scope"), each["metadata"]["signal"])
        for each in told
        if each["name"].startswith("drumbeat.watchdog.")
    ]


@pytest.mark.parametrize(
    ("how", "ending"),
    [("plain", "SIGTERM"), ("deaf", "SIGKILL"), ("stopped", "SIGKILL"), ("named", "SIGUSR1")],
)
def test_the_report_says_where_a_worker_hung(folder: Path, how: str, ending: str) -> None:
    finished = run(folder, how, 0.3, "--hang-grace", "0.2")
    assert finished.returncode == 1
    report = finished.stderr.partition("Root cause:")[2]
    assert f"ended by  : {ending} (pid " in report
    assert "likely why: it hung, and this agent ended it" in report
    assert "timer 'all-reduce' expired: not released within 0." in report
    assert "(limit 0.3 s); last heartbeat step 41, " in report
    if how == "stopped":
        assert ": stopped by SIGSTOP or a similar signal (SIGCONT continues it), " in report
        return
    assert ": sleeping, " in report
    # Only one that is killed in any case is sent a signal for its stacks.
    is_shown = "in main" in report.partition("stacks    :")[2]
    assert is_shown == (how != "named")


def test_a_worker_that_ends_politely_has_hung_all_the_same(folder: Path) -> None:
    finished = run(folder, "polite")
    assert finished.returncode == 1
    assert "ended by  : exit code 0" in finished.stderr
    assert "timer 'all-reduce' expired" in finished.stderr


def test_a_timer_that_only_reports_ends_no_worker(folder: Path) -> None:
    events = folder / "events"
    finished = run(folder, "told", 0.3, "--event-log-file", str(events))
    assert finished.returncode == 0
    assert expiries(events) == [("drumbeat.watchdog.expired", "all-reduce", 0)]
    assert "worker hangs, is left alone" in finished.stderr
    assert "in main" in finished.stderr


def test_a_restart_helps_a_run_whose_worker_hung(folder: Path) -> None:
    events = folder / "events"
    finished = run(folder, "plain", 0.3, "--max-restarts", "1", "--event-log-file", str(events))
    ended = [
        ("drumbeat.watchdog.expired", "all-reduce", None),
        ("drumbeat.watchdog.signalled", None, 15),
    ]
    assert expiries(events) == ended * 2
    assert finished.stderr.count('"event": "worker hangs"') == 2
    assert finished.returncode == 1
