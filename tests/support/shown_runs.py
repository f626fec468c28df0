"""Runs in the list of a coordinator that are as a test says, without agents."""

import dataclasses
from typing import Any

import pytest

from drumbeat.coordinator.core.run.state import RunState
from drumbeat.coordinator.shell.driver import Driver
from drumbeat.coordinator.web.api import run_list
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration
from tests.support.world import a_running_story

HOUR = 3_600.0


class ShownRuns:
    """Has a coordinator list runs; they change when the test shows them again."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self._driver, self._messages = driver, dict[str, pb.Run]()
        self._state = a_running_story(1).run().state
        monkeypatch.setattr(run_list, "run_message", self._message)

    def show(self, run_id: str, health: str, reason: str = "", **fields: Any) -> None:
        """Show a run with this health; ``fields`` are those of ``Run``, durations in seconds."""
        given: dict[str, Any] = {"generation": 1, "agents_count": 2, "age": HOUR, **fields}
        given |= {name: duration(given[name]) for name in {"age", "ended_age"} & given.keys()}
        message = pb.Run(
            run_id=run_id,
            phase=pb.RUN_PHASE_ENDED if "ended_age" in given else pb.RUN_PHASE_RUNNING,
            health=pb.RunHealth(
                state=pb.RunHealthState.Value(f"RUN_HEALTH_STATE_{health.upper()}"), reason=reason
            ),
            **given,
        )
        state = dataclasses.replace(self._state, run_id=run_id, generation=message.generation)
        self._messages[state.key] = message
        self._driver.journal.runs.states[state.key] = state

    def _message(self, state: RunState, *_: object, **__: object) -> pb.Run:
        return self._messages[state.key]


def last_failure(reason: str, age_s: float) -> pb.LastFailure:
    """Return a failure for ``show``."""
    return pb.LastFailure(round_id=3, age=duration(age_s), reason=reason)
