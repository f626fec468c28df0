"""What an agent tells people: one line an event, said once. The stories are in ``console.txt``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drumbeat.agent.telemetry.history import Line
from tests.support.agent_script import Command, Played, Step, Stories, parsed


def texts(_command: Command, step: Step) -> Iterator[str]:
    return (line.text for line in step.lines if line.level != "debug")


STORIES = Stories(Path(__file__).with_name("console.txt"), texts)


@pytest.mark.parametrize("title", STORIES.titles())
def test_a_console_reads_as_a_history(title: str, request: pytest.FixtureRequest) -> None:
    STORIES.check(title, request.config)


def last_lines(*commands: str, coordinator: str = "head:1") -> list[Line]:
    """Return what is said about the last of some commands."""
    played = Played(coordinator=coordinator)
    steps = [[*played.carry_out(parsed(command))] for command in commands]
    return [line for step in steps[-1] for line in step.lines]


def test_a_round_has_all_that_is_known_of_it_as_details() -> None:
    lines = last_lines("connected", "assign 0 with-another")
    assert [line.details for line in lines if line.level == "info"] == [
        {
            "run.round": 0,
            "restart_count": 0,
            "group_rank": 1,
            "ranks": "2-3",
            "world_size": 4,
            "role_ranks": "2-3",
            "role_world_size": 4,
            "master_addr": "10.0.0.1",
            "master_port": 29500,
            "reason": "all are there",
        }
    ]


def test_workers_that_the_agent_stopped_are_details() -> None:
    (line,) = last_lines("connected", "assign 0 alone", "started", "exit 1 1", "exit 0 -15 stopped")
    assert (line.level, line.text) == ("debug", "rank 0 was stopped: SIGTERM")


def test_who_leads_now_is_told_as_details() -> None:
    (line,) = last_lines("connected", "lost 1: reset", "welcome 2 term=7", coordinator="a:1,b:1")
    assert line.details == {"coordinator": "b:1", "term": 7}
