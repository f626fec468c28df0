"""What `agent status` shows, and what an agent tells for it."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from agent.runtime.status import (
    AgentStatus,
    Leftover,
    WorkerStatus,
    as_json,
    as_table,
    decoded,
    encoded,
)

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


def test_what_is_written_is_read_again() -> None:
    assert decoded(encoded(STATUS)) == STATUS


def test_a_later_version_may_write_more() -> None:
    more = json.dumps({**json.loads(encoded(STATUS)), "weather": "fair"})
    assert decoded(more) == STATUS


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"run_id": 1}', '{"workers": [{}]}'])
def test_anything_else_is_no_status(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(text)


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
