"""Shell. Which restart rules have a pattern that matches the error of a worker.

Patterns are matched by the library regex, because it can give up a search: ADR 53.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from drumbeat.agent.settings.kinds import OutputPattern
from drumbeat.agent.workers.output.rules import MATCH_TIMEOUT_S, compiled
from drumbeat.restart_rules import RestartRule

log = structlog.get_logger()

# For all patterns in one error. Of the processor: a busy machine must not change what matches.
ALL_TIMEOUT_S = 0.5


class ErrorRules:
    """The rules ``error=REGEX`` of a run."""

    def __init__(self, rules: Iterable[RestartRule]) -> None:
        """Compile the patterns. Raises ``ValueError``, and ``ImportError`` without the library."""
        patterns = [(rule, rule.regex) for rule in rules if rule.regex]
        self._rules = [(rule, compiled(OutputPattern(regex))) for rule, regex in patterns]

    def matching(self, error: str) -> tuple[int, ...]:
        """Return the numbers of the rules that match; blocks for a bounded processor time."""
        matches, until = [], time.thread_time() + ALL_TIMEOUT_S
        for rule, pattern in self._rules:
            left_s = min(MATCH_TIMEOUT_S, until - time.thread_time())
            try:
                if left_s > 0 and pattern.search(error, timeout=left_s) is not None:
                    matches.append(rule.number)
            except TimeoutError:
                left_s = 0.0
            if left_s <= 0:
                why = "it took too long in one error and counts as no match: simplify repetitions"
                log.warning("pattern is slow", reason=why, pattern=rule.text)
        return tuple(matches)
