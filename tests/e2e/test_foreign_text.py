"""What workers write reaches every agent's console and the coordinator's log without harm."""

import json

import pytest

from tests.support.cluster import Cluster

SECRET = "hf_q7Lx0pW3vbn2Zk9T"
GIVEN = "sk-7Gq2mXv9Rb4Tz1Lw"  # on the command line
FORGED = "2026-11-22 01:54:49"
ACTING = f"\x1b]0;pwned\x07 \x1b[2J \r \x00 \u202e \x9b2J \n{FORGED} agent: forged"
# The secret is in all that is reported of a worker; the last line of stderr begins in it.
FAILING = f"""
import os, sys
from worker_sdk import record

@record
def main():
    if os.environ["RANK"] == "0":
        import time
        time.sleep(1000)
    secret, acting = os.environ["HF_TOKEN"], {ACTING!r}
    print(acting, secret, "x" * (32 * 1024 - len(secret)), file=sys.stderr)
    print("Authorization: Bearer " + secret, file=sys.stderr, flush=True)
    raise ValueError(f"{{acting}} for {{secret}} at https://me:{{secret}}@host")

main()
"""


def check(shown: str) -> None:
    """Check what a process wrote: it tells of the failure, and does nothing else."""
    assert "pwned" in shown
    assert GIVEN not in shown
    assert SECRET[:8] not in shown
    assert SECRET[-8:] not in shown
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert [line for line in shown.splitlines() if line.startswith(FORGED)] == []


@pytest.mark.slow
def test_no_secret_and_no_escape_passes_an_agent(cluster: Cluster) -> None:
    """Not to its console, its events, the other agent's console, the coordinator or readers."""
    coordinator = cluster.coordinator()
    script, events = cluster.directory / "failing.py", cluster.directory / "events.jsonl"
    script.write_text(FAILING)
    agents = [
        cluster.agent(
            *("--nnodes", "2", "--name", name, "--log-format", log_format, "--redirects", "3"),
            *("--max-restarts", "0", "--event-log-handler", "jsonl"),
            *("--event-log-file", f"{events}.{name}", "--log-dir", str(cluster.directory / name)),
            *(str(script), "--api-key", GIVEN),
            coordinator=coordinator,
            env={"HF_TOKEN": SECRET},
        )
        for name, log_format in (("a", "console"), ("b", "json"))
    ]
    for agent in agents:
        assert agent.wait() == 1, agent.log()
        check(agent.stderr)
        assert "Bearer [value of HF_TOKEN]" in agent.stderr
        assert "--api-key [value of api-key]" in agent.stderr
    run = coordinator.run("run")
    assert SECRET not in f"{run}"
    coordinator.terminate()
    check(coordinator.process.stderr)
    told = "".join(path.read_text() for path in cluster.directory.glob("events.jsonl.*"))
    check(told)
    assert any(json.loads(line)["metadata"].get("raw_error") for line in told.splitlines())
    # The worker's own files have what it wrote.
    for name in ("stderr.log", "error.json"):
        found = cluster.directory.glob(f"[ab]/*/*/*/{name}")
        assert any(SECRET in path.read_text() for path in found), name
