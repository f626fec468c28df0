"""What `agent status` shows, and what an agent tells for it."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.core.events import (
    Event,
    SessionWelcomed,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
)
from drumbeat.agent.runtime.status_file import NAME, read_status
from drumbeat.agent.telemetry.facts import AgentFacts
from drumbeat.agent.telemetry.status import (
    AgentStatus,
    Leftover,
    WorkerStatus,
    as_json,
    as_table,
    status_of,
)
from tests.support.agents import CONFIG, PACE, PORT, an_assignment, desired

STATUS = AgentStatus(
    run_id="exp",
    name="gpu3",
    pid=41,
    began_at=100.0,
    coordinator="head:29400",
    is_connected=True,
    state="RUNNING",
    reason="all are here",
    round_id=2,
    group_rank=1,
    workers=(
        WorkerStatus(rank=2, local_rank=0, pid=51, started_at=160.0),
        WorkerStatus(rank=3, local_rank=1, pid=52, started_at=160.0),
    ),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(msgspec.json.encode(STATUS))
    assert read_status(tmp_path) == STATUS


def test_a_later_version_may_write_more(tmp_path: Path) -> None:
    more = msgspec.json.encode({**msgspec.to_builtins(STATUS), "weather": "fair"})
    (tmp_path / NAME).write_bytes(more)
    assert read_status(tmp_path) == STATUS


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"run_id": 1}', '{"workers": [{}]}'])
def test_anything_else_is_no_status(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_status(tmp_path) is None


def test_a_line_for_each_worker() -> None:
    heads, first, second = as_table([STATUS], [], now=170.0).splitlines()
    assert heads.split()[:6] == ["RUN", "AGENT", "PID", "AGE", "STATE", "ROUND"]
    cells = ["exp", "gpu3", "41", "1m10s", "RUNNING", "2"]
    assert first.split() == [*cells, "2", "51", "10s", "head:29400"]
    assert second.split() == [*cells, "3", "52", "10s", "head:29400"]


def test_an_agent_without_workers_or_connection_has_a_line_too() -> None:
    alone = replace(STATUS, is_connected=False, state="IDLE", round_id=None, workers=())
    _, line = as_table([alone], [], now=170.0).splitlines()
    assert "IDLE (disconnected)" in line
    assert line.split()[-4:] == ["-", "-", "-", "head:29400"]


def test_what_would_act_on_a_terminal_is_written_out() -> None:
    foreign = replace(STATUS, name="a\x1b[2J\nb")
    left = Leftover(directory="/tmp/\x1b]0;x\x07", status=foreign, has_records=True)
    shown = as_table([foreign], [left], now=170.0)
    assert all(line.isprintable() for line in shown.splitlines())
    assert "failure records" in shown


def test_json_has_the_names_that_are_documented() -> None:
    left = Leftover(directory="/tmp/d", status=None, has_records=False)
    told = json.loads(as_json("gpu3", [STATUS], [left], now=170.0))
    assert told == {
        "host": "gpu3",
        "agents": [
            {
                "run_id": "exp",
                "name": "gpu3",
                "pid": 41,
                "coordinator": "head:29400",
                "is_connected": True,
                "state": "running",
                "reason": "all are here",
                "round_id": 2,
                "group_rank": 1,
                "age_s": 70.0,
                "workers": [
                    {"rank": 2, "local_rank": 0, "pid": 51, "age_s": 10.0},
                    {"rank": 3, "local_rank": 1, "pid": 52, "age_s": 10.0},
                ],
            }
        ],
        "leftovers": [
            {"directory": "/tmp/d", "run_id": None, "pid": None, "has_failure_records": False}
        ],
    }


def test_an_agent_shows_its_name_and_the_workers_of_its_round_that_have_not_ended() -> None:
    core, facts = AgentCore(CONFIG), AgentFacts(name="host", pid=41, began_at=100.0)

    def shown(*events: Event) -> AgentStatus:
        for event in events:
            facts.saw(event, core.handle(event, now=170.0), now=170.0)
        return status_of(CONFIG, core, facts)

    facts.saw(None, core.start(now=160.0, master_port=PORT), now=160.0)
    assert (shown().name, shown().workers, shown().round_id) == ("host", (), None)
    welcome = SessionWelcomed(attempt=1, pace=PACE, name="gpu3")
    status = shown(welcome, desired(an_assignment(0)), WorkersStarted(round_id=0, pids={1: 52}))
    assert (status.name, status.round_id, status.state) == ("gpu3", 0, "RUNNING")
    assert status.workers == (WorkerStatus(rank=3, local_rank=1, pid=52, started_at=170.0),)
    assert shown(WorkersStarted(round_id=7, pids={0: 9})).workers == status.workers
    ended = WorkerExited(
        round_id=0, local_rank=1, pid=52, exit_code=0, is_stopped=False, ended_at=0.0
    )
    assert shown(ended).workers == ()
    other = WorkersStarted(round_id=1, pids={0: 61, 1: 62})
    following = shown(desired(an_assignment(1)), WorkersStopped(round_id=0), other)
    assert [(each.rank, each.pid) for each in following.workers] == [(2, 61), (3, 62)]
    assert shown(WorkersStopped(round_id=1)).workers == ()
