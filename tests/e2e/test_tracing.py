"""Traces of a run whose workers fail and heal: real processes, and a collector of OTLP."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.otlp import Collector, collecting

TRAINS = """
import os, pathlib, time
import worker_sdk

at, round_id = pathlib.Path(__file__).parent, os.environ["DRUMBEAT_ROUND"]
for step in range(1_000_000):
    worker_sdk.heartbeat(step)
    if step == 5:
        print("trains in round", round_id, flush=True)
    if step == 10 and (round_id, os.environ["RANK"]) == ("0", "1"):
        raise RuntimeError("no loss; Authorization: Bearer abcdefgh12345678")
    if (at / "done").exists():
        break
    time.sleep(0.01)
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.mark.slow
def test_a_run_that_fails_and_heals_is_told_of_over_a_restart_of_the_coordinator(
    cluster: Cluster, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    script = cluster.directory / "trains.py"
    script.write_text(TRAINS)
    where = ("--otlp-endpoint", collector.endpoint, "--heartbeat-interval", "100ms")
    coordinator = cluster.coordinator(*where)
    options = ("--nnodes", "2", "--max-restarts", "1", "--name")
    agents = [cluster.agent(*options, name, str(script), coordinator=coordinator) for name in "ab"]
    (restart,) = collector.wait_for("restart")
    collector.wait_for("starting", 2)  # of the start and of the restart; what it lost is not told
    coordinator.kill()
    coordinator.restart()
    (cluster.directory / "done").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    (run,) = collector.wait_for("run")
    assert coordinator.terminate() == 0

    spans = [each.span for each in collector.spans]
    assert len({span.span_id for span in spans}) == len(spans), "none is told twice"
    assert [each.span.name for each in collector.named("round")] == ["round", "round"]
    (start,), (failed, healed) = collector.named("start"), collector.named("round")
    assert failed.error.startswith("round 0 failed: rank 1 on ")
    assert (start.error, restart.error, healed.error, run.error) == ("", "", "", "")
    # One behind the other, and each in its trace.
    ends = [failed.span.start_time_unix_nano, restart.span.start_time_unix_nano]
    ends += [start.span.end_time_unix_nano, healed.span.end_time_unix_nano]
    assert ends[0] < ends[2] < ends[1] < ends[3]
    assert ends[1] == failed.span.end_time_unix_nano
    assert len({each.span.trace_id for each in (start, failed, restart, healed, run)}) == 5
    parts = [span for span in spans if span.parent_span_id == restart.span.span_id]
    assert "starting" in {span.name for span in parts}
    assert {span.trace_id for span in parts} == {restart.span.trace_id}
    assert 0 < restart.took_s < run.took_s

    assert restart.attributes["drumbeat.restart.cause"] == "WORKER_FAILED"
    (cause,) = restart.span.events
    told = {each.key: each.value.string_value for each in cause.attributes}
    assert restart.attributes["drumbeat.restart.host"] == told["drumbeat.agent.name"]
    assert told["exception.type"] == "RuntimeError"
    assert told["exception.message"].startswith("RuntimeError: no loss")
    assert "abcdefgh12345678" not in str(spans)
    links = {link.attributes[0].value.string_value: link.span_id for link in restart.span.links}
    assert links == {
        "leads_to": healed.span.span_id,
        "follows": failed.span.span_id,
        "run": run.span.span_id,
    }
    # The lives of the coordinator differ in this alone.
    assert run.resource["service.instance.id"] != start.resource["service.instance.id"]
