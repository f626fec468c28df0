"""What real agents tell to an event handler, and what a bad handler can't do to them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0
PASS = "pass\n"
# Local rank 1 fails while the restart count is below the first argument.
FAIL = """
import json, os, sys
if os.environ["LOCAL_RANK"] == "1" and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "ValueError: x", "extraInfo": {}}}, file)
    sys.exit(3)
"""  # noqa: E501

HANDLER = """
import time
class Raises:
    def handle(self, event): raise RuntimeError("event")
    def put(self, metric): raise RuntimeError("metric")
    def close(self): raise RuntimeError("close")
class Blocks:
    def handle(self, event): time.sleep(3600)
    def put(self, metric): time.sleep(3600)
    def close(self): pass
def breaks(): raise SystemExit(9)
"""
ENTRY_POINTS = """[drumbeat.event_handlers]
raises = bad_handlers:Raises
blocks = bad_handlers:Blocks
breaks = bad_handlers:breaks
absent = no_such_module:Handler
"""


def join(
    directory: Path, script: str, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a standalone agent with two workers in ``directory`` until it ends."""
    (directory / "train.py").write_text(script)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMBEAT_")}
    path = os.pathsep.join(filter(None, (str(directory), kept.get("PYTHONPATH"))))
    return subprocess.run(
        [
            sys.executable, "-m", "drumbeat.agent", "join", "--standalone", "--run-id", "job",
            "--nproc-per-node", "2", "--log-format", "json", *options, "train.py", *arguments,
        ],
        cwd=directory,
        env={**kept, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Return the events, and the values of each metric by name."""
    items = [json.loads(line) for line in path.read_text().splitlines()]
    metrics: dict[str, list[float]] = {}
    for item in items:
        if item["kind"] == "metric":
            metrics.setdefault(item["name"], []).append(item["value"])
    return [item for item in items if item["kind"] == "event"], metrics


def states(events: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    told = [event["metadata"] for event in events if event["source"] == "WORKER"]
    return [(m["round_id"], m["global_rank"], m["state"]) for m in told]


def test_a_run_that_succeeds(tmp_path: Path) -> None:
    done = join(tmp_path, PASS, options=("--event-log-file", "events"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600
    events, metrics = read(tmp_path / "events")
    assert states(events) == [(0, 0, "SUCCEEDED"), (0, 1, "SUCCEEDED")]
    assert events[-1]["name"] == "drumbeat.agent.status.SUCCEEDED"
    for event in events[:-1]:
        metadata = event["metadata"]
        assert (metadata["run_id"], metadata["entry_point"]) == ("job", "train.py")
        assert metadata["pid"] > 1
        assert 0 < metadata["total_run_time"] < DEADLINE_S
    assert metrics["workers.default.run_success_no_retries"] == [1]
    assert metrics["workers.default.flakiness"] == [0]
    for name in ("rendezvous", "start", "stop"):
        (value,) = metrics[f"{name}.duration.ms"]
        assert 0 <= value < DEADLINE_S * 1000


def test_a_failure_and_a_restart(tmp_path: Path) -> None:
    options = ("--max-restarts", "2", "--event-log-handler", "jsonl", "--event-log-file", "events")
    done = join(tmp_path, FAIL, "1", options=options)
    assert done.returncode == 0, done.stderr
    events, metrics = read(tmp_path / "events")
    told = states(events)
    assert told[1:] == [(0, 1, "FAILED"), (1, 0, "SUCCEEDED"), (1, 1, "SUCCEEDED")]
    assert told[0] in {(0, 0, "SUCCEEDED"), (0, 0, "TERMINATED")}, "whichever came first"
    failed = events[1]["metadata"]
    assert (failed["exit_code"], failed["restarts"]) == (3, 0)
    assert json.loads(failed["raw_error"])["message"]["message"] == "ValueError: x"
    assert events[2]["metadata"]["restarts"] == 1
    assert metrics["workers.default.remaining_restarts"] == [2, 1, 1]
    assert metrics["workers.default.run_success_with_retries"] == [1]
    assert metrics["workers.default.flakiness"] == [33]


def test_a_run_that_fails_tells_the_console(tmp_path: Path) -> None:
    done = join(tmp_path, FAIL, "9", options=("--event-log-handler", "console"))
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith('{"kind":')]
    (tmp_path / "events").write_text("\n".join(lines))
    events, metrics = read(tmp_path / "events")
    assert states(events)[1] == (0, 1, "FAILED")
    assert events[-1]["metadata"]["state"] == "FAILED"
    assert "rank 1" in events[-1]["metadata"]["raw_error"]
    assert metrics["workers.default.run_failed_no_retries"] == [1]
    assert metrics["workers.default.flakiness"] == [100]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", "RuntimeError: metric"),
        ("blocks", "not taken within"),
        ("breaks", "telemetry incomplete"),
        ("absent", "No module named 'no_such_module'"),
    ],
)
def test_a_bad_handler_does_no_harm(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "bad_handlers.py").write_text(HANDLER)
    info = tmp_path / "bad_handlers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-handlers\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    options = ("--max-restarts", "1", "--event-log-handler", name)
    done = join(tmp_path, FAIL, "1", options=options)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
