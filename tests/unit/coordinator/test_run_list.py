"""What readers of the list of runs are sent: what changed, and no more."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drumbeat.coordinator.cluster.term import Term
from drumbeat.coordinator.core.model import KeptDrain
from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.observe.failures import FailureGroup
from drumbeat.coordinator.observe.hosts import hosts_in_trouble
from drumbeat.coordinator.web.api import run_list
from drumbeat.coordinator.web.api.run_list import RunList
from drumbeat.coordinator.wire.run_status import run_message
from tests.support.shown_runs import ShownRuns, last_failure
from tests.support.world import a_running_story


class Clock:
    """A coordinator without agents, at an instant."""

    def __init__(self) -> None:
        self.at, self.drains = 1000.0, list[KeptDrain]()
        self.journal = SimpleNamespace(runs=SimpleNamespace(states=dict[str, "RunState"]()))
        self.registry = SimpleNamespace(runs={})

    def now(self) -> float:
        return self.at


@pytest.fixture
def driver() -> Clock:
    return Clock()


@pytest.fixture
def shown(driver: Clock, monkeypatch: pytest.MonkeyPatch) -> ShownRuns:
    return ShownRuns(cast("Any", driver), monkeypatch)


def list_of(driver: Clock, only_run: str = "") -> RunList:
    return RunList(cast("Term", SimpleNamespace(driver=driver)), only_run)


async def test_a_new_reader_is_sent_all_and_then_the_fields_that_changed(
    driver: Clock, shown: ShownRuns
) -> None:
    shown.show("mt5", "healthy", "training", step=10, last_failure=last_failure("OOM", 60))
    shown.show("bert", "waiting", "waiting for agents")
    listed = list_of(driver)
    await listed.look()
    whole, number = listed.since(0), listed.number
    assert whole["is_whole"]
    assert [run["run_id"] for run in whole["runs"]] == ["mt5", "bert"]
    assert whole["runs"][0]["last_failure"] == {"round_id": 3, "age_s": 60, "reason": "OOM"}
    assert [whole[name] for name in ("jobs", "drains", "hosts")] == [[], [], []]

    driver.at += 5
    shown.show(
        "mt5", "healthy", "training", step=11, age=3605, last_failure=last_failure("OOM", 65)
    )
    await listed.look()
    assert listed.since(number) == {
        "is_whole": False,
        "runs": [
            {
                "run_id": "mt5",
                "generation": 1,
                "age_s": 3605,
                "ended_age_s": None,
                "last_failure": {"round_id": 3, "age_s": 65, "reason": "OOM"},
                "step": 11,
                "made_age_s": 0.0,
            }
        ],
    }


async def test_time_alone_is_no_change(driver: Clock, shown: ShownRuns) -> None:
    shown.show("mt5", "healthy", last_failure=last_failure("OOM", 60))
    driver.drains.append(KeptDrain(name="gpu7", at_s=990.0, until_s=2000.0))
    listed = list_of(driver)
    await listed.look()
    number = listed.number
    driver.at += 60
    shown.show("mt5", "healthy", age=3660, last_failure=last_failure("OOM", 120))
    await listed.look()
    assert listed.number == number
    assert listed.since(number) == {"is_whole": False, "runs": []}
    whole = listed.since(0)
    assert (whole["runs"][0]["age_s"], whole["drains"][0]["time_left_s"]) == (3660, 940)


async def test_a_run_that_has_ended_is_not_written_again(
    driver: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = a_running_story(1)
    for name in story.agents:
        story.succeed(name)
    state = story.run().state
    assert state.verdict is not None
    driver.journal.runs.states[state.key] = state
    written = list[str]()

    def message(state: RunState, *rest: Any, **more: Any) -> Any:
        written.append(state.run_id)
        return run_message(state, *rest, **more)

    monkeypatch.setattr(run_list, "run_message", message)
    listed = list_of(driver)
    for _ in range(3):
        await listed.look()
        driver.at += 10
    assert written == ["run"]
    # Its ages are those of then.
    assert listed.since(0)["runs"][0]["made_age_s"] == 30


async def test_when_a_run_is_forgotten_all_is_sent_again(driver: Clock, shown: ShownRuns) -> None:
    shown.show("mt5", "healthy")
    shown.show("old", "succeeded", ended_age=1.0)
    listed = list_of(driver)
    await listed.look()
    number = listed.number
    del driver.journal.runs.states["old"]
    await listed.look()
    told = listed.since(number)
    assert (told["is_whole"], [run["run_id"] for run in told["runs"]]) == (True, ["mt5"])
    assert listed.since(listed.number) == {"is_whole": False, "runs": []}


async def test_a_reader_of_one_run_sees_its_drains_and_no_other_run(
    driver: Clock, shown: ShownRuns
) -> None:
    for run_id in ("mt5", "bert"):
        shown.show(run_id, "healthy")
    driver.drains += [KeptDrain(name=n, run_id=n, at_s=990.0) for n in ("", "mt5", "bert")]
    listed = list_of(driver, "mt5")
    await listed.look()
    told = listed.since(0)
    assert [run["run_id"] for run in told["runs"]] == ["mt5"]
    assert [drain["run_id"] for drain in told["drains"]] == [None, "mt5"]


def test_hosts_that_failed_in_several_runs_are_named_unless_none_is_to_blame() -> None:
    def state(run_id: str, *groups: FailureGroup) -> Any:
        failures = SimpleNamespace(groups=groups)
        return SimpleNamespace(run_id=run_id, observed=SimpleNamespace(failures=failures))

    def group(*names: str, ranks: int = 2, together: int = 1) -> FailureGroup:
        hit = dict.fromkeys(range(ranks), 1)
        return FailureGroup(cause="c", ranks=hit, names=dict.fromkeys(names, 1), together=together)

    assert hosts_in_trouble(
        [
            state("mt5", group("gpu7", "gpu1")),
            state("bert", group("gpu7"), group("gpu2", "gpu3", ranks=1)),
            state("t5", group("gpu2", "gpu3", ranks=1), group("gpu1", "gpu4", together=2)),
            state("t6", group("gpu7", "gpu5")),
        ]
    ) == [{"name": "gpu7", "runs": ["bert", "mt5", "t6"]}]
