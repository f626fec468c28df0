"""The reference of metrics has exactly those that there are."""

import re

from drumbeat.agent.telemetry.metrics import declared as of_agent
from drumbeat.command.metrics import Metric
from drumbeat.coordinator.observe.metrics import declared as of_coordinator
from tests.support.layering import ROOT

METRICS = {*of_coordinator.METRICS, *of_agent.METRICS}
UNITS = ("_seconds", "_bytes", "_ratio", "_info")


def row(metric: Metric) -> str:
    """Return how a metric stands in the reference."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    values = f": {metric.values}" if metric.values and metric.labels else ""
    return f"| `{metric.full_name}` | {metric.kind} | {labels}{values} | {metric.help} |"


def test_each_metric_has_its_row_and_there_are_no_others() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    found = set(re.findall(r"^\| `drumbeat_.*$", text, re.MULTILINE))
    assert found == {row(metric) for metric in METRICS}


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"drumbeat(_[a-z]+)+", metric.name), metric
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket")), metric
        assert metric.help.endswith("."), metric
        assert (metric.kind == "histogram") == bool(metric.buckets), metric
        assert not {"le", "quantile", "job", "instance"} & {*metric.labels}, metric
        timed = "time" in metric.name.split("_") or metric.kind == "histogram"
        assert not timed or metric.name.endswith(UNITS), metric
