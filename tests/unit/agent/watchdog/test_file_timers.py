"""Lines of torch's file timers are understood, or refused."""

import json
import math

import pytest

from drumbeat.agent.compat.file_timers import LINE_BYTES_MAX, FileTimerRequest, parse


def line(**changes: object) -> bytes:
    fields = {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 60.5, "signal": 9}
    return json.dumps({**fields, **changes}).encode()


def test_a_request_is_understood() -> None:
    assert parse(line()) == FileTimerRequest(7, "step", 60.5, 9)
    assert parse(line(later_field=1, version=2)) == FileTimerRequest(7, "step", 60.5, 9)
    assert parse(line(signal=-3)).signal == -3


@pytest.mark.parametrize("value", [-1, -1.0, -math.inf, math.inf, 10**400])
def test_a_negative_or_endless_time_releases(value: float) -> None:
    assert parse(line(expiration_time=value)).expires_at is None


def test_half_a_character_becomes_one_that_can_be_sent() -> None:
    assert parse(line(scope_id="a\ud800b")).scope == "a?b"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec"),
        (b"[]", "no JSON object"),
        (b"[" * LINE_BYTES_MAX, "nested too deeply"),
        (b"9" * LINE_BYTES_MAX + b"9", "longer than"),
        (line(pid="7"), "pid"),
        (line(pid=True), "pid"),
        (line(pid=0), "pid"),
        (line(pid=2**31), "pid"),
        (line(scope_id=None), "scope_id"),
        (line(expiration_time=None), "expiration_time is no number"),
        (line(expiration_time=True), "expiration_time is no number"),
        (line(expiration_time=math.nan), "expiration_time is no number"),
        (line(signal=2**31), "signal"),
        (line(signal=9.0), "signal"),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)
