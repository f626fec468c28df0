"""Lines of torch's file timers are cut, understood, and reduced to what still counts."""

from __future__ import annotations

import json
import math

import pytest

from agent.watchdog.file_timers import (
    LINE_BYTES_MAX,
    FileTimerRequest,
    Lines,
    latest,
    parse,
)


def line(**changes: object) -> bytes:
    fields = {"version": 1, "pid": 7, "scope_id": "step", "expiration_time": 60.5, "signal": 9}
    return json.dumps({**fields, **changes}).encode()


def request(scope: str, expires_at: float | None, pid: int = 7) -> FileTimerRequest:
    return FileTimerRequest(pid=pid, scope=scope, expires_at=expires_at, signal=9)


def test_a_request_is_understood() -> None:
    assert parse(line()) == request("step", 60.5)
    assert parse(line(later_field=1, version=2)) == request("step", 60.5)
    assert parse(line(signal=-3)).signal == -3


@pytest.mark.parametrize("signal", [32, 33, 65, 2**31 - 1])
def test_a_signal_that_there_is_not_becomes_the_clients_default(signal: int) -> None:
    found = parse(line(signal=signal))
    assert (found.signal, found.has_odd_signal) == (9, True)


@pytest.mark.parametrize("value", [-1, -1.0, -math.inf, math.inf])
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
        (line(expiration_time=10**400), "out of range"),
        (line(signal=2**31), "signal"),
        (line(signal=9.0), "signal"),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


def test_lines_come_whole_however_they_are_cut() -> None:
    lines = Lines()
    taken = [line for byte in b"one\ntwo\n\nthr" for line in lines.feed(bytes([byte]))]
    assert taken == [b"one", b"two", b""]
    assert lines.feed(b"ee\n") == [b"three"]


def test_of_an_endless_line_only_the_beginning_is_kept() -> None:
    lines = Lines()
    taken = []
    for _ in range(10):
        taken += lines.feed(b"x" * LINE_BYTES_MAX)
        assert len(lines._rest) <= LINE_BYTES_MAX
    assert [*taken, *lines.feed(b"x\nnext\n")] == [b"x" * LINE_BYTES_MAX, b"next"]


def test_only_the_last_request_about_a_timer_counts() -> None:
    requests = [
        request("a", 1.0),
        request("b", 2.0),
        request("a", None),
        request("a", 3.0, pid=8),
        request("b", 4.0),
    ]
    assert latest(requests) == [requests[2], requests[3], requests[4]]
