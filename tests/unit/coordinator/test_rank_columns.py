"""The ranks of a run as columns: in order, of one round, and cheap."""

import json
from array import array
from base64 import b64decode
from typing import Any

import pytest

from drumbeat.coordinator.observe import ranks
from drumbeat.coordinator.observe.ranks import MOST, OTHER_SCOPES, UNKNOWN, Grid, make_grid
from drumbeat.coordinator.observe.steps.worker_progress import WorkerProgress
from drumbeat.model import GroupState
from tests.support.turns import made
from tests.support.world import Story, a_running_story, a_story

Document = dict[str, Any]
TYPES = {"host_silence": "H", "host_step_time_s": "f", "lag": "H", "silence": "H", "counts": "H"}
BYTES = ("host_state", "scope_index")


def read(written: bytes) -> Document:
    """Return a document with its columns as lists, states and scopes in words."""
    found: Document = json.loads(written)
    for name in found.keys() & TYPES.keys():
        found[name] = array(TYPES[name], b64decode(found[name])).tolist()
    for name in BYTES:
        found[name] = list(b64decode(found[name]))
    if "states" in found:
        found["host_state"] = [found["states"][code] for code in found["host_state"]]
    found["scope"] = [found["scopes"][index] for index in found["scope_index"]]
    return found


def grid(story: Story, latest: Grid | None = None) -> Grid:
    return made(make_grid(story.state(), story.run(), latest, now=story.now))[0]


def whole(story: Story) -> Document:
    return read(grid(story).whole)


def worker(local_rank: int, step: int | None, scope: str = "", **more: float) -> WorkerProgress:
    told: dict[str, Any] = {"heartbeat_age_s": 1.0} | more
    return WorkerProgress(local_rank=local_rank, step=step, scope=scope, **told)


def test_ranks_are_in_order_whatever_hosts_hold_and_in_whatever_order_workers_are_told() -> None:
    story = a_story(3)
    for name, count in (("a", 2), ("b", 1), ("c", 3)):
        story.join(name, local_world_size=count, host=f"machine-{name}", name=name)
    story.obey_all()
    story.beat("a", workers=(worker(1, 11, "load"), worker(0, 10)))
    story.beat("b", workers=(worker(0, 20, "load", step_time_s=0.25),))
    story.beat("c", workers=(worker(2, 32),))
    found = whole(story)
    assert (found["round_id"], found["furthest_step"], found["standbys_count"]) == (0, 32, 0)
    assert found["names"] == ["a", "b", "c"]
    assert found["hosts"] == ["machine-a", "machine-b", "machine-c"]
    assert found["counts"] == [2, 1, 3]
    assert found["host_state"] == ["running"] * 3
    assert found["lag"] == [22, 21, 12, UNKNOWN, UNKNOWN, 0]
    assert found["scope"] == ["", "load", "load", "", "", ""]
    assert found["host_step_time_s"][1] == 0.25
    assert found["interval_s"] > 0


def test_a_rank_is_silent_since_its_heartbeat_or_else_since_its_agent_was_heard() -> None:
    story = a_story(1)
    story.join("a", local_world_size=2)
    story.obey_all()
    story.beat("a", workers=(worker(0, 1, heartbeat_age_s=3.0),))
    story.now += 0.5
    found = whole(story)
    assert (found["silence"], found["host_silence"]) == ([35, 5], [5])
    story.beat("a", workers=(worker(0, 1, heartbeat_age_s=1e6),))
    assert whole(story)["silence"] == [MOST, 0]


def test_a_step_far_behind_or_below_zero_is_as_far_as_can_be_told() -> None:
    story = a_running_story(3)
    for name, step in (("a", 2**63 - 1), ("b", 0), ("c", -(2**63))):
        story.beat(name, workers=(worker(0, step),))
    assert whole(story)["lag"] == [0, MOST, UNKNOWN]


def test_scopes_beyond_the_limit_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SCOPES_MAX", 2)
    story = a_running_story(5)
    for name, scope in zip("abcde", ("x", "y", "z", "x", "w"), strict=True):
        story.beat(name, workers=(worker(0, 1, scope),))
    found = whole(story)
    assert found["scope"] == ["x", "y", OTHER_SCOPES, "x", OTHER_SCOPES]
    assert len(found["scopes"]) == 4


def test_the_scopes_there_may_be_fit_into_a_byte() -> None:
    story = a_story(1)
    story.join("a", local_world_size=300)
    story.obey_all()
    story.beat("a", workers=tuple(worker(i, 1, f"scope {i}") for i in range(300)))
    found = whole(story)
    assert max(found["scope_index"]) == 255
    assert found["scope"][:254] == [f"scope {i}" for i in range(254)]
    assert set(found["scope"][254:]) == {OTHER_SCOPES}


def test_each_state_of_a_host_is_told() -> None:
    story = a_running_story(7, restarts_max=1)
    lease_s = story.run().members.pace.lease_s
    for name in "adefg":
        story.beat(name, workers=(worker(0, 1),))
    story.silence("b")
    story.advance(0.9 * lease_s)
    story.break_session("c")
    story.beat("d", GroupState.STARTING)
    story.beat("e", GroupState.STOPPING)
    story.succeed("f")
    story.beat("g", GroupState.IDLE)
    found = whole(story)
    told = dict(zip(found["names"], found["host_state"], strict=True))
    assert told == {
        "a": "running", "b": "silent", "c": "away", "d": "starting", "e": "stopping",
        "f": "succeeded", "g": "waiting",
    }  # fmt: skip


def test_standbys_have_no_ranks_and_are_counted_and_failed_hosts_are_told() -> None:
    story = a_running_story(2)
    story.join("stands by")
    story.fail("b")
    found = whole(story)
    assert found["host_state"] == ["running", "failed"]
    assert (found["names"], found["standbys_count"]) == (["a", "b"], 1)


def test_hosts_that_left_or_were_not_heard_yet_keep_the_place_of_their_ranks() -> None:
    story = a_running_story(3, restarts_max=3)
    story.leave("b")
    assert whole(story)["host_state"] == ["running", "lost", "running"]
    story.restart()
    story.back("a")
    found = whole(story)
    assert found["host_state"] == ["running", "lost", "unknown"]
    assert found["host_silence"] == [0, UNKNOWN, UNKNOWN]


def test_what_was_told_of_another_round_is_not_shown_as_of_this_one() -> None:
    story = a_running_story(2, restarts_max=3)
    story.beat("a", workers=(worker(0, 5, "load"),))
    story.beat("b", workers=(worker(0, 6, "load"),))
    story.fail("b")
    story.obey("a")
    story.obey("b")
    assert story.state().round_id == 1
    found = whole(story)
    assert found["lag"] == [UNKNOWN, UNKNOWN]
    assert found["furthest_step"] is None
    assert found["scope"] == ["", ""]


def test_a_run_without_a_round_and_one_that_has_ended_have_no_ranks() -> None:
    story = a_story(2)
    story.join("a")
    found = whole(story)
    assert (found["round_id"], found["names"], found["lag"]) == (None, [], [])
    assert found["standbys_count"] == 1
    story = a_running_story(2)
    story.succeed("a")
    story.succeed("b")
    found = whole(story)
    assert (found["round_id"], found["names"], found["lag"]) == (0, [], [])


def test_others_have_their_turn_after_so_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    story = a_running_story(40)
    monkeypatch.setattr(ranks, "ROWS_PER_TURN", 4)
    assert made(make_grid(story.state(), story.run(), now=story.now))[1] >= 10


def test_the_hosts_of_a_round_are_written_once_and_are_in_the_whole_alone() -> None:
    story = a_running_story(2, restarts_max=1)
    first = grid(story)
    assert json.loads(first.columns).items() <= json.loads(first.whole).items()
    assert json.loads(first.whole).keys() - json.loads(first.columns).keys() == {
        "states", "names", "hosts", "counts",
    }  # fmt: skip
    assert grid(story, first).hosts is first.hosts
    story.leave("b")
    story.join("c")
    story.live()
    assert sorted(read(grid(story, first).whole)["names"]) == ["a", "c"]
