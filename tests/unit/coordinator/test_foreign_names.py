"""What an agent calls itself, its workers and its reasons has a place in one line of anything."""

import pytest

from drumbeat.coordinator.core.events import AgentLeft
from drumbeat.coordinator.errors import InvalidRequest
from drumbeat.coordinator.wire.failure import read_record as read
from drumbeat.coordinator.wire.failure import record_message
from drumbeat.coordinator.wire.session import (
    FINDINGS_MAX,
    PLACES_MAX,
    RANKS_NAMED_MAX,
    read_beat,
    session_event,
    session_opened,
)
from drumbeat.v1 import common_pb2, failure_pb2, session_pb2
from drumbeat.wire.mapping import refuse

ACTING = "\x1b]0;pwned\x07\x1b[2J\r\x00\u202e\n2026-11-22 01:54:49 coordinator: forged"
FENCE = common_pb2.Fence(run_id="r", incarnation="i", session_id="s", round_id=0)


def check(shown: str) -> None:
    assert shown.isprintable(), shown
    assert "pwned" in shown


def a_hello() -> session_pb2.AgentReport:
    spec = common_pb2.RunSpec(agents_min=1, agents_max=1, master_addr=ACTING)
    spec.rank_order = spec.block_label = spec.preflight = ACTING
    for name in ("join_timeout", "last_call", "shutdown_timeout", "coordinator_grace"):
        getattr(spec, name).FromSeconds(10)
    beat = session_pb2.Beat(state=session_pb2.GROUP_STATE_IDLE)
    hello = session_pb2.Hello(
        run=session_pb2.RunPurpose(run_id="r", spec=spec), local_world_size=1, beat=beat,
        host=ACTING, address=ACTING, role=ACTING, name=ACTING, version=ACTING,
        labels={ACTING: ACTING}, placement=[ACTING, ACTING], block=ACTING,
    )  # fmt: skip
    return session_pb2.AgentReport(fence=FENCE, hello=hello)


def test_an_agent_is_named_in_one_line() -> None:
    opened = session_opened(a_hello(), session_id="s")
    agent = opened.agent
    shown = (agent.host, agent.address, agent.role, agent.name, opened.version, *opened.labels)
    for text in (*shown, *opened.labels.values(), opened.spec.master_addr):
        check(text)
    spec = opened.spec
    for text in (*agent.placement, agent.block, spec.rank_order, spec.block_label, spec.preflight):
        check(text)


def test_an_agent_in_too_many_places_is_refused() -> None:
    hello = a_hello()
    hello.hello.placement.extend(["x"] * PLACES_MAX)
    with pytest.raises(InvalidRequest, match=f"placement.*at most {PLACES_MAX}"):
        session_opened(hello, session_id="s")


def test_whom_a_preflight_names_is_cut() -> None:
    finding = session_pb2.PreflightFinding(ranks=range(5000), reason=ACTING)
    beat = session_pb2.Beat(state=session_pb2.GROUP_STATE_RUNNING, preflight=[finding] * 100)
    read_of = read_beat(beat, common_pb2.Fence(round_id=0), 2, refuse).preflight
    assert len(read_of) == FINDINGS_MAX
    assert {len(each.ranks) for each in read_of} == {RANKS_NAMED_MAX}
    check(read_of[0].reason)


def test_a_goodbye_is_one_line() -> None:
    goodbye = session_pb2.AgentReport(fence=FENCE, goodbye=session_pb2.Goodbye(reason=ACTING))
    left = session_event(goodbye, session_opened(a_hello(), session_id="s"), refuse)
    assert isinstance(left, AgentLeft)
    check(left.reason)


def test_a_record_names_host_role_and_signal_in_one_line() -> None:
    """Its message and other long texts are shown as they are where lines have a place."""
    record = failure_pb2.FailureRecord(
        sequence=1, host=ACTING, name=ACTING, signal_name=ACTING, message=ACTING,
        worker=failure_pb2.WorkerRanks(role=ACTING),
    )  # fmt: skip
    told = record_message(read(record, FENCE, "record", 1000, refuse))
    for text in (told.host, told.name, told.signal_name, told.worker.role):
        check(text)
    assert told.message == ACTING
