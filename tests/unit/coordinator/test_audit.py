"""The audit: who did what, one line each, and never more than the log can take."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from drumbeat.coordinator.access.audit import REFUSALS_HEARD_MAX, Audit, address_of
from drumbeat.coordinator.access.recent import ENTRIES_MAX
from drumbeat.coordinator.errors import Unauthenticated, UnknownRun


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refuse(
    audit: Audit, peer: str = "ipv4:10.0.0.7:999", token_id: str = "", why: str = "no token"
) -> None:
    shown = f" {token_id}" if token_id else ""
    audit.refused(peer, Unauthenticated(f"{why}{shown}"), token_id=token_id, method="/a.B/C")


def test_a_call_is_one_line_with_who_and_what() -> None:
    with capture_logs() as lines, Audit().call("CreateToken", "op", "exp1") as details:
        details["token.id"] = "t1"
    assert lines == [
        {
            "event": "control call",
            "log_level": "info",
            "message": "op called CreateToken, run.id=exp1, token.id=t1: OK",
            "method": "CreateToken",
            "caller": "op",
            "result": "OK",
            "reason": None,
            "run.id": "exp1",
            "token.id": "t1",
        }
    ]


@pytest.mark.parametrize(
    ("error", "result", "reason"),
    [
        (UnknownRun("r"), "NOT_FOUND", "there is no run 'r'"),
        (asyncio.CancelledError(), "CANCELLED", None),
        (ZeroDivisionError(), "INTERNAL", None),
    ],
)
def test_a_call_is_a_line_whatever_its_end(
    error: BaseException, result: str, reason: str | None
) -> None:
    with capture_logs() as lines, pytest.raises(type(error)), Audit().call("RevokeToken", ""):
        raise error
    (line,) = lines
    assert (line["result"], line["reason"]) == (result, reason)
    assert line["message"].startswith("an unauthenticated caller called RevokeToken: ")


def test_calls_and_refusals_are_kept_with_their_age_the_latest_of_them() -> None:
    audit = Audit()
    with audit.call("StopRun", "ann", "mt5"):
        pass
    audit.refused("ipv4:10.0.0.7:1", Unauthenticated("no token"), method="StopRun")
    call, refusal = audit.recent
    assert (call.caller, call.method, call.result) == ("ann", "StopRun", "OK")
    assert (refusal.caller, refusal.result) == ("10.0.0.7", "UNAUTHENTICATED")
    assert call.text == "ann called StopRun, run.id=mt5: OK"
    assert call.age.ToNanoseconds() >= refusal.age.ToNanoseconds() > 0
    for _ in range(ENTRIES_MAX):
        with audit.call("DrainAgent", "bob"):
            pass
    assert {entry.caller for entry in audit.recent} == {"bob"}
    assert len(list(audit.recent)) == ENTRIES_MAX


def test_a_callers_name_and_run_are_one_short_printable_line() -> None:
    with capture_logs() as lines, Audit().call("ResetLimits", "a\n\x1b[2J" * 999, "r\n" * 9999):
        pass
    assert lines[0]["message"].isprintable()
    assert len(lines[0]["message"]) < 700


def test_a_refusal_is_told_once_in_ten_seconds_and_then_how_many_there_were() -> None:
    clock = Clock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for port in range(50):
            refuse(audit, f"ipv4:10.0.0.7:{port}")
        clock.now = 10.0
        refuse(audit)
    first, second = lines
    assert first["message"] == (
        "10.0.0.7 refused: the coordinator does not let this caller in: no token"
    )
    assert (first["peer"], first["result"], first["left_out"]) == (
        "10.0.0.7",
        "UNAUTHENTICATED",
        0,
    )
    assert second["left_out"] == 49
    assert second["message"].endswith("(not shown since: 49 refusals more like it)")


def test_addresses_and_reasons_are_told_apart_and_made_up_ids_are_not() -> None:
    audit = Audit(Clock())
    with capture_logs() as lines:
        refuse(audit)
        refuse(audit, "ipv4:10.0.0.8:1")
        refuse(audit, why="revoked")
        for number in range(100):
            refuse(audit, token_id=f"made{number:04}")
    assert len(lines) == 4
    assert lines[-1]["token.id"] == "made0000"


def test_ever_new_addresses_fill_neither_memory_nor_log() -> None:
    clock = Clock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(10 * REFUSALS_HEARD_MAX):
            refuse(audit, f"ipv6:[2001:db8::{number:x}]:1")
        assert len(lines) == REFUSALS_HEARD_MAX
        clock.now = 10.0
        refuse(audit)
    assert lines[-1]["left_out_of_others"] == 9 * REFUSALS_HEARD_MAX


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4000", "10.0.0.7"),
        ("ipv6:[::1]:4000", "::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4000", "fe80::1%eth0"),
        ("unix:/x", "unix:/x"),
        ("\x1b[2J", ""),
    ],
)
def test_the_address_of_a_peer_has_no_port(peer: str, address: str) -> None:
    found: Any = address_of(peer)
    assert found == address or (not address and found.isprintable())
