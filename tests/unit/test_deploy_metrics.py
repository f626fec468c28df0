"""Rules and dashboard of deploy/ ask for metrics and labels that there are; promtool takes them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drumbeat.agent.telemetry.metrics import declared as of_agent
from drumbeat.coordinator.observe.metrics import declared as of_coordinator

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/drumbeat.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
# What Prometheus adds, and metrics of processes.
ADDED = {"job", "instance"}
OTHER_METRICS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
_NAME = re.compile(r"\b(?:drumbeat|process)_[a-z_]+\b|\bup\b")
_MATCHERS = re.compile(r"([a-z_]+)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on|group_left|without|ignoring)\s*\(([^)]*)\)")


def known() -> dict[str, set[str]]:
    """Return the labels of each series that there may be."""
    found: dict[str, set[str]] = {name: set() for name in OTHER_METRICS}
    for metric in (*of_coordinator.METRICS, *of_agent.METRICS):
        if metric.kind == "histogram":
            for suffix, more in (("bucket", {"le"}), ("sum", set()), ("count", set())):
                found[f"{metric.name}_{suffix}"] = {*metric.labels, *more}
        else:
            found[metric.full_name] = set(metric.labels)
    return found


def queries() -> list[str]:
    """Return the expressions of all panels, as Prometheus gets them."""
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [target["expr"].replace("$__rate_interval", "5m") for target in targets]


def legends() -> list[tuple[str, str]]:
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [(target["legendFormat"], target["expr"]) for target in targets]


def unknown(text: str) -> list[str]:
    """Return what an expression asks for that there is not."""
    series = known()
    names = set(_NAME.findall(text))
    found = [name for name in names if name not in series]
    of_all = ADDED.union(*(series.get(name, set()) for name in names))
    for name, matchers in _MATCHERS.findall(text):
        for label in re.findall(r"([a-z_]+)\s*[=!]", matchers):
            found += [f"{name}: {label}"] * (label not in {*series.get(name, ()), *ADDED})
    for labels in _GROUPING.findall(text):
        found += [label for label in re.findall(r"[a-z_]+", labels) if label not in of_all]
    return found


def test_what_is_not_there_is_found() -> None:
    assert unknown("sum by (phase) (drumbeat_runs)") == []
    assert unknown("drumbeat_run") == ["drumbeat_run"]
    assert unknown('drumbeat_runs{run_id="x"}') == ["drumbeat_runs: run_id"]
    assert unknown("sum by (rank) (drumbeat_runs)") == ["rank"]
    assert unknown("drumbeat_detection_duration_seconds") != []


def test_rules_ask_for_what_there_is() -> None:
    text = RULES.read_text()
    assert {problem for line in text.splitlines() for problem in unknown_names(line)} == set()
    rules = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels):", text)
    assert len(rules) == text.count("- alert:")
    assert [unknown(rule) for rule in rules] == [[] for _ in rules]


def unknown_names(line: str) -> list[str]:
    return [name for name in re.findall(r"\bdrumbeat_[a-z_]+\b", line) if name not in known()]


def test_the_dashboard_asks_for_what_there_is_and_shows_what_it_gets() -> None:
    found = queries()
    assert len(found) > 25
    assert [unknown(query) for query in found] == [[] for _ in found]
    for legend, expression in legends():
        for label in re.findall(r"\{\{(\w+)\}\}", legend):
            assert f"{label}" in {
                *re.findall(r"\w+", expression),
                "instance",
                *labels_of(expression),
            }


def labels_of(expression: str) -> set[str]:
    series = known()
    return set().union(*(series.get(name, set()) for name in _NAME.findall(expression)))


def test_each_metric_of_runs_is_on_the_dashboard_or_in_a_rule() -> None:
    shown = " ".join((*queries(), RULES.read_text()))
    left_out = {
        metric.full_name for metric in of_coordinator.OF_RUNS if metric.full_name not in shown
    }
    assert left_out == {
        "drumbeat_run_workers", "drumbeat_run_rounds_total", "drumbeat_run_host_time_seconds_total"
    }  # fmt: skip


def promtool(*arguments: object) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", DEPLOY / "prometheus/alerts_test.yml")


@needs_promtool
def test_promtool_takes_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{i}", "expr": query.replace("$run_id", ".*")}
        for i, query in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


@needs_promtool
def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "prometheus", tmp_path, dirs_exist_ok=True)
    for name in (
        "drumbeat-token",
        "drumbeat-ca.pem",
        "drumbeat-agent-token",
        "drumbeat-agent-ca.pem",
    ):
        (tmp_path / name).write_text("t")
    promtool("check", "config", tmp_path / "prometheus.yml")
