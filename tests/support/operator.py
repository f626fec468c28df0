"""What an operator asks of the runs of a story."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from coordinator.core import effects as fx
from coordinator.errors import CoordinatorError
from tests.support.world import RUN

if TYPE_CHECKING:
    from coordinator.core.events import ForgetAsked, RestartAsked, StopAsked
    from tests.support.world import Story

_request_ids = itertools.count(-1, -1)


def ask(
    story: Story, kind: type[StopAsked | RestartAsked | ForgetAsked], **fields: Any
) -> fx.Steered | CoordinatorError:
    """Ask for something; return the answer."""
    common: dict[str, Any] = {"run_id": RUN, "caller": "op", "request_id": next(_request_ids)}
    story.handle(kind(**(common | fields)))
    (answer,) = story.of(fx.Answer)
    assert isinstance(answer.result, fx.Steered | CoordinatorError)
    return answer.result
