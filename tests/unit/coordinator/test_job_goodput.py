"""What the time of a job went into: a second of each host of each group counts the same."""

import pytest

from drumbeat.coordinator.observe.jobs import merged_goodput
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration, seconds_of

TRAINING, WAITING, UNKNOWN = (
    pb.PART_KIND_TRAINING,
    pb.PART_KIND_WAITING,
    pb.PART_KIND_UNKNOWN,
)


def account(hosts: int, **parts_s: float) -> pb.GetGoodputResponse:
    """Return the account of a group of so many hosts."""
    kinds = {"training": TRAINING, "waiting": WAITING, "unknown": UNKNOWN}
    return pb.GetGoodputResponse(
        whole=duration(sum(parts_s.values())),
        parts=[
            pb.GoodputPart(kind=kinds[name], time=duration(part_s), host_seconds=part_s * hosts)
            for name, part_s in parts_s.items()
        ],
        failures_count=1,
    )


def test_a_large_group_weighs_more_than_a_small_one() -> None:
    merged = merged_goodput([account(1, training=100.0), account(3, training=50.0, waiting=50.0)])
    assert merged.effective_ratio == pytest.approx(250 / 400)
    times = {part.kind: seconds_of(part.time) for part in merged.parts}
    assert times == pytest.approx({TRAINING: 62.5, WAITING: 37.5})
    assert {part.kind: part.host_seconds for part in merged.parts} == {TRAINING: 250, WAITING: 150}
    assert seconds_of(merged.whole) == 100.0
    assert merged.failures_count == 2
    assert seconds_of(merged.mean_time_between_failures) == 50.0


def test_unknown_time_lowers_no_ratio() -> None:
    merged = merged_goodput([account(2, training=10.0, unknown=90.0)])
    assert merged.effective_ratio == 1.0
    assert not merged_goodput([account(2, unknown=90.0)]).HasField("effective_ratio")


def test_losses_are_those_of_all_groups() -> None:
    one, other = account(1, training=1.0), account(1, training=1.0)
    for each, lost_s in ((one, 2.0), (other, 3.0)):
        each.causes.add(cause=pb.LOSS_CAUSE_HANG, host_seconds=lost_s, restarts_count=1)
        each.hosts.add(name=f"h{lost_s:g}", host_seconds=lost_s)
    merged = merged_goodput([one, other])
    (hang,) = merged.causes
    assert (hang.host_seconds, hang.restarts_count) == (5.0, 2)
    assert [host.name for host in merged.hosts] == ["h3", "h2"]
