"""What a coordinator's decisions are on its console."""

from drumbeat.coordinator.core.effects import Decided
from drumbeat.coordinator.core.run.reasons import CoordinatorHistory


def lines_of(*decisions: tuple[str, str]) -> list[str]:
    history = CoordinatorHistory()
    return [
        history.line(Decided(run_id="mt5", decision=decision, reason=reason, round_id=1))
        for decision, reason in decisions
    ]


def test_why_a_run_fails_is_said_once() -> None:
    why = "round 1 failed: a worker on a; no restarts are allowed"
    assert lines_of(
        ("agent admitted", "a joined"),
        ("round started", "2 agents; 2 of 2 agents are there"),
        ("run failing", why),
        ("run failed", f"{why}; root cause: rank 1 on a (exit code 1)"),
    ) == [
        "mt5: a joined",
        "mt5: round 1: 2 agents; 2 of 2 agents are there",
        f"mt5: stopping: {why}",
        "mt5: run failed: root cause: rank 1 on a (exit code 1)",
    ]
    assert lines_of(("run failing", why), ("run failed", why))[1] == "mt5: run failed"


def test_a_run_that_ends_without_a_stop_says_why() -> None:
    assert lines_of(("run failed", "join timeout")) == ["mt5: run failed: join timeout"]
