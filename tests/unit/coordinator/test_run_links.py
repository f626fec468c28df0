"""Links from a run to other systems: what is allowed, and with what they are filled in."""

from typing import Any

import pytest

from drumbeat.coordinator.api.run_links import LINK, LINKS_MAX, links_of
from drumbeat.coordinator.config import CoordinatorConfig
from drumbeat.coordinator.core.run.records import RunCreated
from drumbeat.coordinator.core.run.state import RunState
from tests.support.world import a_spec

LOGS = "logs=https://logs.example/q?run={run_id}&n={generation}&team={label.team}"


def links(*templates: str, **created: Any) -> list[tuple[str, str]]:
    state = RunState.created(RunCreated(**{"run_id": "mt5", "spec": a_spec(), **created}))
    return list(links_of(LINK.read(templates), state))


def test_placeholders_are_filled_in_and_quoted() -> None:
    labels = {"team": "a b/../&x=ü"}
    assert links(LOGS, generation=2, labels=labels) == [
        ("logs", "https://logs.example/q?run=mt5&n=2&team=a%20b%2F..%2F%26x%3D%C3%BC")
    ]


def test_a_run_without_the_label_has_no_such_link() -> None:
    assert links(LOGS, "plain=http://h/{run_id}") == [("plain", "http://h/mt5")]


@pytest.mark.parametrize(
    "given",
    [
        "logs",
        "=https://h/",
        f"{'n' * 65}=https://h/",
        "logs=ftp://h/",
        "logs=javascript:alert(1)",
        "logs=https:///x",
        "logs=https://{label.host}/",
        "logs=https://h{run_id}/",
        "logs=https://h/{run}",
        "logs=https://h/{label.}",
        "logs=https://h/{run_id",
        "logs=https://h/a}b",
        "logs=https://h/a b",
        "logs=https://h/\x1b[1m",
        f"logs=https://h/{'x' * 2_048}",
    ],
)
def test_what_cannot_be_a_link_is_named(given: str) -> None:
    with pytest.raises(ValueError, match=r"is given, allowed is up to 16 times NAME=URL") as raised:
        LINK.parse(given)
    assert repr(given) in str(raised.value)


def test_too_many_links_break_a_rule() -> None:
    config = CoordinatorConfig(link=tuple(f"n{i}=https://h/" for i in range(LINKS_MAX + 1)))
    assert [violation.field for violation in config.validate()] == ["link"]
    assert CoordinatorConfig(link=(LOGS,)).shown()["--link"] == LOGS
