"""What failures of etcd mean: whether trying again helps, and what does."""

import pytest

from drumbeat.coordinator.journal.etcd.statuses import Meaning, failure


@pytest.mark.parametrize(
    ("status", "details", "meaning"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", Meaning.OUTAGE),
        ("UNAVAILABLE", "etcdserver: request timed out", Meaning.OUTAGE),
        ("UNKNOWN", "whatever it is", Meaning.OUTAGE),
        ("CANCELLED", "", Meaning.OUTAGE),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Meaning.OUTAGE),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Meaning.FULL),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Meaning.TOKEN_OVER),
        (
            "INVALID_ARGUMENT",
            "etcdserver: authentication failed, invalid user ID or password",
            Meaning.NOT_LET_IN,
        ),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Meaning.NOT_LET_IN),
        ("NOT_FOUND", "etcdserver: requested lease not found", Meaning.NO_LEASE),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision has been compacted",
            Meaning.COMPACTED,
        ),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Meaning.IMPOSSIBLE),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision is a future revision",
            Meaning.IMPOSSIBLE,
        ),
    ],
)
def test_a_failure_has_a_meaning(status: str, details: str, meaning: Meaning) -> None:
    found = failure(status, details)
    assert found.meaning is meaning
    assert found.hint or meaning in (Meaning.IMPOSSIBLE, Meaning.NO_LEASE, Meaning.COMPACTED)


def test_limits_below_those_of_etcd_are_named() -> None:
    found = failure("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
    assert found.meaning is Meaning.IMPOSSIBLE
    assert "--max-txn-ops 128" in found.hint


def test_what_grpc_repeats_is_cut() -> None:
    text = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2379: no way"
    assert failure("UNAVAILABLE", text).text == "no way"
    assert len(failure("UNAVAILABLE", "x" * 10_000).text) < 300
    assert failure("UNAVAILABLE", "").text == "UNAVAILABLE"
