"""What the in-process restarts of a round cost where there are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.inprocess.restarts import InProcessRestarts


class Untouched(dict[str, Any]):
    """Seats of which all at once are never asked for: that takes as long as there are seats."""

    def keys(self) -> Any:
        raise AssertionError("linear in agents")


def test_an_event_with_nothing_to_tell_looks_at_no_seat() -> None:
    run: Any = SimpleNamespace(state=SimpleNamespace(iterations=None))
    current: Any = SimpleNamespace(seats=Untouched())
    assert InProcessRestarts(run, current, now=0.0).instructions() == []
