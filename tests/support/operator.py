"""What an operator asks of the runs of a story."""

import itertools
from typing import Any

from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.events import (
    CheckpointAsked,
    DrainAsked,
    ForgetAsked,
    RehearsalAsked,
    RestartAsked,
    StopAsked,
)
from drumbeat.coordinator.errors import CoordinatorError
from tests.support.world import RUN, Story

Asked = RehearsalAsked | StopAsked | RestartAsked | CheckpointAsked | ForgetAsked | DrainAsked

_request_ids = itertools.count(-1, -1)


def ask(story: Story, kind: type[Asked], **fields: Any) -> fx.Steered | CoordinatorError:
    """Ask for something; return the answer."""
    run_id = "" if kind is DrainAsked else RUN
    common: dict[str, Any] = {"run_id": run_id, "caller": "op", "request_id": next(_request_ids)}
    story.handle(kind(**(common | fields)))
    (answer,) = story.of(fx.Answer)
    assert isinstance(answer.result, fx.Steered | CoordinatorError)
    return answer.result
