"""What an agent tells people: one line an event, said once. The stories are in ``console.txt``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drumbeat.agent.core import events as ev
from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.model import Assignment, DesiredState, Exit, Standby, Stop
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.history import History, Line
from drumbeat.agent.workers.supervisor.messages import WorkerError
from drumbeat.command.leader_search import Outcome
from drumbeat.coordinator.errors import NotLeader
from tests.support.agents import CONFIG, NOW, PACE, PORT, an_assignment, desired

if TYPE_CHECKING:
    from collections.abc import Iterable

STORIES = Path(__file__).with_name("console.txt")
ALONE = {"group_rank": 0, "group_world_size": 1, "rank_first": 0, "world_size": 2}


class Console:
    """A core, its history and a clock; ``say`` carries out a command and returns what is said."""

    def __init__(self, *, workers: str = "2", coordinator: str = "head:1") -> None:
        config = dataclasses.replace(CONFIG, nproc_per_node=int(workers), coordinator=coordinator)
        self.core, self.now = AgentCore(config), NOW
        facts = AgentFacts(name="b", pid=1, began_at=self.now)
        self.history = History(self.core, facts, local_world_size=int(workers), now=self.now)
        effects = self.core.start(now=self.now, master_port=PORT)
        assert self.history.saw(None, effects, now=self.now) == []

    def lines(self, event: ev.Event) -> list[Line]:
        return self.history.saw(event, self.core.handle(event, now=self.now), now=self.now)

    def say(self, command: str) -> list[Line]:
        command, _, why = command.partition(": ")
        verb, *words = command.split()
        if verb == "wait":
            return self._wait(float(words[0]))
        if verb == "advance":
            self.now += float(words[0])
            return []
        fields = dict(word.split("=") for word in words if "=" in word)
        return self.lines(event_of(verb, [word for word in words if "=" not in word], fields, why))

    def _wait(self, seconds: float) -> list[Line]:
        """Let time pass as the driver does: from deadline to deadline."""
        until, lines = self.now + seconds, list[Line]()
        while True:
            dues = (self.core.next_deadline(), self.history.next_deadline())
            due = min((due for due in dues if due is not None), default=until)
            self.now = min(until, max(self.now, due))
            if due > until:
                return lines
            lines += self.lines(ev.DeadlineReached())


def event_of(verb: str, words: list[str], fields: dict[str, str], why: str) -> ev.Event:
    match verb, *words:
        case "welcome", attempt:
            term = int(fields.get("term", 0))
            return ev.SessionWelcomed(attempt=int(attempt), pace=PACE, term=term)
        case "lost", attempt, *refused:
            leader, outcome = fields.get("leader", ""), fields.get("outcome", "NO_ANSWER")
            if refused:
                why, outcome = str(NotLeader(leader, why)), "NOT_LEADER"
            kind, number = Outcome[outcome], int(attempt)
            return ev.SessionLost(attempt=number, reason=why, outcome=kind, leader=leader)
        case "assign" | "standby" | "stop" | "end", *_:
            return desired(state_of(verb, words, fields, why))
        case "signal", number:
            return ev.SignalReceived(signum=int(number))
        case "suspend", *_:
            return ev.SuspendRequested()
    return event_of_workers(verb, words, why)


def event_of_workers(verb: str, words: list[str], why: str) -> ev.Event:
    match verb, *words:
        case "exit", rank, code, *stopped:
            return exited(int(rank), int(code), why, is_stopped=bool(stopped))
        case "not-started", rank:
            return ev.WorkerStartFailed(round_id=0, local_rank=int(rank), message=why)
    assert verb in {"started", "gone"}, f"unknown command: {verb}"
    return ev.WorkersStarted(round_id=0) if verb == "started" else ev.WorkersStopped(round_id=0)


def state_of(verb: str, words: list[str], fields: dict[str, str], why: str) -> DesiredState:
    match verb, *words:
        case "assign", round_id, company:
            return assignment(int(round_id), company, fields, why)
        case "standby", seconds:
            return Standby(reason=why, time_left_s=float(seconds))
        case "end", how:
            is_released = how == "released"
            return Exit(is_success=how != "failure", reason=why, is_released=is_released)
    return Stop(reason=why)


def assignment(round_id: int, company: str, fields: dict[str, str], why: str) -> Assignment:
    """Return a round of which this host has a part or all; each restart is charged."""
    numbers = {name: int(value) for name, value in fields.items()}
    budget = {"restarts_used": numbers.get("restart_count", 0), "restarts_max": 3}
    here = (ALONE if company == "alone" else {}) | budget | numbers
    return an_assignment(round_id, **here, reason=why or "all are there")


def exited(rank: int, code: int, message: str, *, is_stopped: bool) -> ev.WorkerExited:
    return ev.WorkerExited(
        round_id=0,
        local_rank=rank,
        pid=70 + rank,
        exit_code=code,
        is_stopped=is_stopped,
        ended_at=99.0,
        error=WorkerError(message=f"{message}\nmore") if message else None,
    )


def played(commands: Iterable[str]) -> Iterable[str]:
    console = Console()
    for command in commands:
        yield command
        if command.startswith("agent "):
            console = Console(**dict(word.split("=") for word in command.split()[1:]))
            continue
        lines = console.say(command)
        yield from (f"    {line.text}" for line in lines if line.level != "debug")


def stories() -> dict[str, list[str]]:
    """Return the lines of each story, by its title."""
    parts = (part.splitlines() for part in STORIES.read_text().split("\n== ")[1:])
    return {title: [line for line in lines if line] for title, *lines in parts}


def rewrite() -> None:
    text = STORIES.read_text().partition("\n== ")[0]
    for title, story in stories().items():
        text += "\n".join((f"\n== {title}", *played(line for line in story if line[0] != " "), ""))
    STORIES.write_text(text)


@pytest.mark.parametrize("title", stories())
def test_a_console_reads_as_a_history(title: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        rewrite()
    story = stories()[title]
    assert [*played(line for line in story if line[0] != " ")] == story


def test_a_round_has_all_that_is_known_of_it_as_details() -> None:
    console = Console()
    console.say("welcome 1")
    (line,) = (line for line in console.say("assign 0 with-another") if line.level == "info")
    assert line.details == {
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


def test_workers_that_the_agent_stopped_are_details() -> None:
    console = Console()
    for command in ("welcome 1", "assign 0 alone", "started", "exit 1 1"):
        console.say(command)
    (line,) = console.say("exit 0 -15 stopped")
    assert (line.level, line.text) == ("debug", "rank 0 was stopped: SIGTERM")


def test_who_leads_now_is_told_as_details() -> None:
    console = Console(coordinator="a:1,b:1")
    for command in ("welcome 1", "lost 1: reset"):
        console.say(command)
    (line,) = console.say("welcome 2 term=7")
    assert line.details == {"coordinator": "b:1", "term": 7}
