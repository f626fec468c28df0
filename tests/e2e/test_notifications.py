"""What people are told of their runs: real processes, and a webhook."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import DEADLINE_S, Cluster
from tests.support.full_disk import no_room
from tests.support.processes import assert_refused
from tests.support.waiting import wait_until_sync
from tests.support.webhook import SECRET, Webhook, webhook

FAILS = "raise RuntimeError('no loss; Authorization: Bearer abcdefgh12345678')"
HANGS = """
import pathlib, time
import worker_sdk

for step in range(1_000_000):
    worker_sdk.heartbeat(step)
    if step == 60:
        while not (pathlib.Path(__file__).parent / "go").exists():
            time.sleep(0.01)
    if step > 60 and (pathlib.Path(__file__).parent / "done").exists():
        break
    time.sleep(0.01)
"""


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as hook:
        yield hook


def script(cluster: Cluster, name: str, text: str) -> str:
    path = cluster.directory / f"{name}.py"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_a_run_that_fails_is_told_once_over_a_restart_of_the_coordinator(
    cluster: Cluster, hook: Webhook
) -> None:
    listed = cluster.private_file("hooks", f"# the hook of this test\n{hook.url}\n")
    coordinator = cluster.coordinator("--notify-file", listed)
    fails = script(cluster, "fails", FAILS)
    assert cluster.agent(fails, coordinator=coordinator, run_id="bad").wait() == 1
    failed = hook.wait_for("run bad: failed")
    reason, cause, *_ = failed["message"].splitlines()
    assert reason.startswith("Reason: round 0 failed: rank 0 on ")
    assert cause.startswith("Root cause: rank 0 on ")
    assert "RuntimeError: no loss" in cause
    assert "Restarts: 0 of 0 used" in failed["message"]
    coordinator.kill()
    coordinator.restart()
    works = script(cluster, "works", "")
    assert cluster.agent(works, coordinator=coordinator, run_id="good").wait() == 0
    hook.wait_for("run good: succeeded")
    assert coordinator.terminate() == 0
    assert hook.titles() == ["run bad: failed", "run good: succeeded"]
    assert "abcdefgh12345678" not in str(hook.messages)
    assert SECRET not in cluster.logs()


@pytest.mark.slow
def test_a_hang_is_told_with_its_cause_and_when_it_is_over(cluster: Cluster, hook: Webhook) -> None:
    coordinator = cluster.coordinator("--notify", hook.url)
    hangs = script(cluster, "hangs", HANGS)
    agent = cluster.agent(hangs, coordinator=coordinator, run_id="mt5")
    assert SECRET not in Path(f"/proc/{coordinator.pid}/cmdline").read_text()
    told = hook.wait_for("run mt5: hangs")
    assert told["type"] == "warning"
    reason, cause, killed, restarts = told["message"].splitlines()
    assert reason.startswith("Reason: ")
    assert cause.startswith("Root cause: rank 0 on ")
    assert (killed, restarts) == ("Nothing is killed for it", "Restarts: 0 of 0 used")
    (cluster.directory / "go").touch()
    hook.wait_for("run mt5: the hang is over")
    (cluster.directory / "done").touch()
    assert agent.wait() == 0
    hook.wait_for("run mt5: succeeded")
    assert coordinator.terminate() == 0
    endings = ["hangs", "the hang is over", "succeeded"]
    assert hook.titles() == [f"run mt5: {ending}" for ending in endings]


@pytest.mark.slow
def test_a_journal_that_cannot_be_written_is_told_and_stops_the_heartbeat(
    cluster: Cluster, hook: Webhook
) -> None:
    beats = ("--notify-heartbeat", hook.heartbeat, "--notify-heartbeat-interval", "100ms")
    coordinator = cluster.coordinator("--notify", hook.url, *beats)
    wait_until_sync(lambda: hook.heartbeats, DEADLINE_S)
    with no_room(coordinator):
        agent = cluster.agent("--no-python", "true", coordinator=coordinator, run_id="late")
        told = hook.wait_for(f"coordinator {coordinator.address}: the journal cannot be written")
        assert told["type"] == "failure"
        reason = told["message"].splitlines()[0]
        assert reason.startswith("Reason: ")
        assert len(reason) > len("Reason: ")
        before = hook.heartbeats
        coordinator.process.wait_for_line("nothing is decided until the journal can be written")
    hook.wait_for(f"coordinator {coordinator.address}: the journal can be written again")
    wait_until_sync(lambda: hook.heartbeats > before + 1, DEADLINE_S)
    assert agent.wait() == 0
    assert coordinator.terminate() == 0
    assert len(hook.messages) == 3, "one of each, and the end of the run"


def test_a_url_that_cannot_be_used_is_refused_without_being_shown(cluster: Cluster) -> None:
    url = ("--notify", f"nonsense://{SECRET}")
    process = cluster.process("refused", "coordinator", "serve", "--port", "0", *url)
    assert_refused(process, 2, "apprise cannot use the URL nonsense://…")
    assert SECRET not in process.stderr + process.stdout
