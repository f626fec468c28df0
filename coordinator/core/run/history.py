"""Pure. A coordinator's decisions as lines of its log: each said once."""

from __future__ import annotations

import re

from coordinator.core.effects import Decided

_MADE_UP = re.compile("[0-9a-f]{32}")
_ID_CHARACTERS = 8


class CoordinatorHistory:
    """Turns decisions into lines."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}  # why runs fail that wait for their agents' end: said

    def line(self, decided: Decided) -> str:
        """Return a decision as a line: of which run, what, and why as far as that is new."""
        run_id, decision, reason = decided.run_id, decided.decision, decided.reason
        text = f"{decision}: {reason}"
        match decision:
            case "agent admitted" | "agent removed" | "round ended":
                text = reason
            case "round started":
                text = f"round {decided.round_id}: {reason}"
            case "run failing":
                self._failing[run_id] = reason
                text = f"stopping: {reason}"
            case "run failed" | "run succeeded" if run_id in self._failing:
                news = reason.removeprefix(self._failing.pop(run_id)).removeprefix("; ")
                text = f"{decision}: {news}" if news else decision
        # An id that was made up for lack of a name says nothing.
        shown = run_id[:_ID_CHARACTERS] if _MADE_UP.fullmatch(run_id) else run_id
        return f"{shown}: {text}"
