"""Which restart rules match the error of a worker, and for how long that is looked for."""

import time

import pytest
import structlog

from drumbeat.agent.failures.error_rules import ALL_TIMEOUT_S, ErrorRules
from drumbeat.restart_rules import RULES_MAX, parse_rules

SLOW = "a" * 3000 + "b"


def error_rules(*texts: str) -> ErrorRules:
    return ErrorRules(parse_rules(texts))


def test_the_numbers_of_all_patterns_that_match_are_told() -> None:
    rules = error_rules("oom:fail", "error=CUDA:fail", r"error=^ValueError: b\w+m$:fail")
    assert rules.matching("ValueError: boom") == (3,)
    assert rules.matching("ValueError: CUDA") == (2,)
    assert error_rules().matching("x") == ()


def test_a_slow_pattern_is_no_match_and_does_not_keep_others_from_theirs() -> None:
    rules = error_rules("error=(a|aa)+$:fail", "error=b:fail")
    with structlog.testing.capture_logs() as logs:
        assert rules.matching(SLOW) == (2,)
    assert [entry["event"] for entry in logs] == ["pattern is slow"]


def test_many_slow_patterns_take_no_longer_together_than_they_may() -> None:
    rules = error_rules(*["error=(a|aa)+$:fail"] * RULES_MAX)
    began = time.process_time()
    assert rules.matching(SLOW) == ()
    assert time.process_time() - began < 4 * ALL_TIMEOUT_S


def test_a_pattern_that_the_library_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="bad fuzzy"):
        error_rules("error=(?P<a>x){e<a}(:fail")
