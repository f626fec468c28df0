"""Shell. The live line of an agent on a terminal, drawn once a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from drumbeat.agent.core.agent import AgentCore
from drumbeat.agent.model.hang import WorkerProgress
from drumbeat.agent.settings.config import AgentConfig
from drumbeat.agent.telemetry.history import History
from drumbeat.agent.telemetry.live import TrainingPace
from drumbeat.command.live_line import open_line
from drumbeat.model import Assignment
from drumbeat.text.format import count

STDOUT, STDERR = 1, 2
REFRESH_S = 1.0
# After events it is drawn sooner, but not more often than that; and what is over at once at the
# start is not worth a word.
AT_EVENTS_S, START_S = 0.1, 0.5


class LiveStatus:
    """Without a terminal, or where workers write to it by themselves, there is no line."""

    def __init__(
        self,
        config: AgentConfig,
        core: AgentCore,
        history: History,
        standings: Callable[[int], Sequence[WorkerProgress]],
        *,
        now: float,
    ) -> None:
        self._core, self._history, self._standings = core, history, standings
        self._pace = TrainingPace()
        self._line = open_line(STDERR) if _is_wanted(config) else None
        self._due_at = self._not_before = now + START_S

    def next_deadline(self) -> float | None:
        """Return when it is to be drawn even if nothing happens."""
        return None if self._line is None else self._due_at

    def refresh(self, *, now: float) -> None:
        """Draw it as it is now, or soon if that was done just before."""
        if self._line is None:
            return
        if now < self._not_before:
            self._due_at = self._not_before
            return
        self._due_at, self._not_before = now + REFRESH_S, now + AT_EVENTS_S
        text, desired = self._history.waits_for(now=now), self._core.desired
        if not text and isinstance(desired, Assignment):
            self._pace.take(desired.round_id, self._standings(desired.round_id), now=now)
            agents = count(desired.group_world_size, "agent")
            text = f"round {desired.round_id}: {agents}, {self._pace.text(now=now)}"
        self._line.show(text)

    def close(self) -> None:
        """Erase it."""
        if self._line is not None:
            self._line.close()
            self._line = None


def _is_wanted(config: AgentConfig) -> bool:
    """Whether the log is one that a user reads here, and all output of workers comes this way."""
    is_read = config.log_format != "json" and config.log_level in ("debug", "info")
    is_read &= config.event_handler != "console"  # which writes JSON there
    is_passed_on = config.stderr_capture and (config.stdout_capture or not os.isatty(STDOUT))
    has_launcher = config.outcome_file is not None  # which writes there as well
    return is_read and is_passed_on and not has_launcher
